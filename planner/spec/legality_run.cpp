// Which runs does an engine take?  Ranks and sizes, what belongs to which engine, DeepSpeed's rules on stages, offload and
// types, and what the contract has but nothing computes yet.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/base/format.hpp"
#include "planner/spec/ds_batch.hpp"
#include "planner/spec/legality_rules.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/topology.hpp"

namespace plimsoll {
namespace {

constexpr Severity error = Severity::error;

bool is(const RuleInput& in, Engine engine) { return in.plan.engine == engine; }
bool is_deepspeed(const RuleInput& in) { return is(in, Engine::deepspeed); }
bool is_16_bit(const Plan& plan) { return plan.precision == Precision::bf16 || plan.precision == Precision::fp16; }
bool offloads_optimizer(const Plan& plan) { return plan.offload.optimizer != OffloadDevice::none; }
bool is_cpu_optimizer(OptimizerImplementation implementation) {
  return implementation == OptimizerImplementation::deepspeed_cpu ||
         implementation == OptimizerImplementation::torch_cpu;
}

/// What of the model's layers the reference runtime's fused layers lack; empty: nothing.
std::string fused_layers_lack(const ModelSpec* model) {
  if (model == nullptr) return "";
  if (model->layer_norm) return "LayerNorm";
  if (model->head_bias) return "bias in the head";
  for (const LayerSpec& layer : model->layers) {
    const AttentionSpec& a = layer.attention;
    if (a.kind != AttentionSpec::Kind::grouped_query) return "latent or linear attention";
    if (a.qkv_bias || a.output_bias || (layer.mlp && layer.mlp->bias)) return "biases";
    if (a.sinks) return "attention sinks";
    if (a.qk_norm == AttentionSpec::QkNorm::whole_width) return "norms over all heads at once";
    if (a.rotary_dim != 0 && a.rotary_dim != a.head_dim) return "rotary embedding of a part of a head";
    if (!layer.moe) continue;
    if (layer.moe->router_bias || layer.moe->score_correction_bias) return "biased router";
    if (layer.moe->expert_bias) return "biases of experts";
    if (layer.moe->shared_gate) return "gate on the shared expert";
    if (model->family.starts_with("llama4")) return "router by sigmoid";
  }
  return "";
}

/// What PyTorch 2.11 does with a layer around experts that are no grouped product (measured on H200s, AutoEP with ep 1 and 2).
std::string_view compiled_experts(MoeImplementation implementation) {
  switch (implementation) {
    case MoeImplementation::native:
      return "DeepSpeed's experts break the graph at the gate's capacity (.item()); all local experts become one "
             "program, whose buffers take each other's memory wherever their sizes happen to agree";
    case MoeImplementation::autoep:
      return "PyTorch 2.11 loses the gradient at AutoEP's exchanges: in the program it makes at ep 2 the experts' "
             "weight "
             "gradients are products with zeros, made in forward; the one program of ep 1 is not built here";
    default:
      return "PyTorch gives up the graph at the loop over experts and runs that module uncompiled (measured with "
             "transformers 5's loop; version 4's, which this is, was not)";
  }
}

/// What of the model or plan has no known program where each module of a layer is compiled by itself; empty: nothing.
std::string compiled_modules_lack(const RuleInput& in) {
  const bool experts = has_experts(in);
  if (experts && in.plan.moe.implementation != MoeImplementation::grouped) return "experts other than grouped ones";
  if (experts && !in.plan.moe.leaf) return "experts that are no leaf module";
  if (in.plan.attention != AttentionImplementation::sdpa) return "attention other than sdpa's";
  if (in.model == nullptr) return "";
  if (experts && in.model->family != "mixtral" && in.model->family != "qwen3_moe")
    return "experts other than Mixtral's and Qwen3's";
  if (in.model->layer_norm) return "LayerNorm";
  for (const LayerSpec& layer : in.model->layers) {
    const AttentionSpec& a = layer.attention;
    if (a.kind != AttentionSpec::Kind::grouped_query || a.sinks) return "latent or linear attention, or sinks";
    if (a.qkv_bias || a.output_bias || (layer.mlp && layer.mlp->bias)) return "biases";
    if (a.qk_norm == AttentionSpec::QkNorm::whole_width) return "norms over all heads at once";
    if (a.rotary_dim != 0 && a.rotary_dim != a.head_dim) return "rotary embedding of a part of a head";
  }
  return "";
}

/// log2 of the largest count of bytes that a program of this scenario could add up: activations of all layers, rows of a
/// rank that receives every routed token of its group, attention scores if they are materialised, states.
double log2_bytes(const RuleInput& in) {
  if (in.model == nullptr) return 0;
  const auto real = [](std::int64_t value) { return static_cast<double>(std::max<std::int64_t>(value, 1)); };
  double widest = real(in.model->hidden), routed = 1, parameters = 0, scores = 1;
  for (const LayerSpec& layer : in.model->layers) {
    widest = std::max({widest, real(layer.attention.q_width()), real(layer.mlp ? layer.mlp->intermediate : 0)});
    if (layer.moe) {
      widest = std::max({widest, real(layer.moe->expert_intermediate), real(layer.moe->experts)});
      routed = std::max(routed, real(layer.moe->top_k));
    }
    scores = std::max(scores, real(layer.attention.q_heads));
  }
  for (const ParameterDecl& parameter : in.model->parameters) parameters += real(parameter.numel);
  routed = std::max(routed, real(in.plan.moe.top_k)) * std::max(1.0, in.plan.moe.capacity_factor);
  for (const std::int64_t experts : in.plan.moe.num_experts) parameters *= real(experts);
  const double tokens = real(in.plan.tokens()), layers = real(static_cast<std::int64_t>(in.model->layers.size()));
  const double activations = tokens * routed * real(in.plan.expert_parallel) * widest * layers * 64;
  const double attention =
      in.plan.attention == AttentionImplementation::eager ? tokens * real(in.plan.sequence) * scores * layers * 16 : 0;
  const double logits = tokens * real(in.model->vocab) * 16;
  return std::log2(activations + attention + logits + parameters * 32);
}

/// Whether every rank can send to every other: an error that names two that cannot.
Result<TierShare> reach_of_all(const RuleInput& in) {
  return tier_share(*in.cluster, {static_cast<int>(in.plan.world_size), 1, 0}, CollectiveKind::all_gather);
}

constexpr Rule world[] = {
    {"plan.world.cluster", error, "any", "any", "by definition",
     [](const RuleInput& in) { return in.cluster != nullptr && in.plan.world_size > in.cluster->world(); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/world_size",
           fmt::format("{} is {}, but the cluster {} has {}", key(in, "/world_size"), in.plan.world_size,
                       in.cluster->name, counted(in.cluster->world(), "GPU")),
           fmt::format("at most {}, or a larger cluster (--nodes)", in.cluster->world()));
     }},
    {"cluster.unreachable", error, "any", "any", "the graph of the cluster; data parallelism joins all ranks",
     [](const RuleInput& in) {
       return in.cluster != nullptr && in.plan.world_size <= in.cluster->world() && !reach_of_all(in);
     },
     [](const RuleInput& in, Diagnostic& d) { d = reach_of_all(in).diagnostics().front(); }},
    {"plan.too_large", error, "any", "any", "bounds of 64-bit byte counts",
     [](const RuleInput& in) { return in.plan.micro_batch > limits::tokens / in.plan.sequence; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/micro_batch",
           fmt::format("{} x {} tokens in one micro-batch is beyond what is answered",
                       format_count(in.plan.micro_batch), format_count(in.plan.sequence)),
           fmt::format("at most {} tokens", format_count(limits::tokens)));
     }},
    {"plan.too_large", error, "any", "any", "size of the step program",
     [](const RuleInput& in) {
       return in.model != nullptr && static_cast<std::int64_t>(in.model->layers.size()) >
                                         limits::layer_micro_batches / in.plan.gradient_accumulation;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/gradient_accumulation",
           fmt::format("{} micro-batches through {} layers make a step program beyond what is answered",
                       in.plan.gradient_accumulation, in.model->layers.size()),
           fmt::format("at most {} micro-batches",
                       limits::layer_micro_batches / static_cast<std::int64_t>(in.model->layers.size())));
     }},
    {"plan.too_large", error, "any", "any", "size of the step program",
     [](const RuleInput& in) {
       return in.plan.loss_chunk > 0 && ceil_div(in.plan.tokens(), in.plan.loss_chunk) > limits::loss_chunks;
     },
     [](const RuleInput& in, Diagnostic& d) {
       const std::int64_t tokens = in.plan.tokens();
       say(in, d, "/loss",
           fmt::format("a loss of {} tokens in parts of {} makes a step program beyond what is answered",
                       format_count(tokens), format_count(in.plan.loss_chunk)),
           fmt::format("parts of at least {} tokens", format_count(ceil_div(tokens, limits::loss_chunks))));
     }},
    {"plan.too_large", error, "any", "any", "bounds of 64-bit byte counts",
     [](const RuleInput& in) { return log2_bytes(in) > 60; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/micro_batch", "the bytes of this step are beyond 64-bit counts",
           "reduce micro_batch or sequence, or look at the dimensions of the model");
     }},
};

/// Sections that only one engine looks at, and are stated for another.
constexpr Rule engine[] = {
    {"plan.engine.expert_parallel", error, "fsdp2, ddp", "2.11", "neither shards experts over an expert mesh",
     [](const RuleInput& in) { return (is(in, Engine::fsdp2) || is(in, Engine::ddp)) && in.plan.expert_parallel > 1; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/expert_parallel",
           fmt::format("{} is {}: engine {} has no expert parallelism", key(in, "/expert_parallel"),
                       in.plan.expert_parallel, name_of(in.plan.engine)),
           "use engine deepspeed or plimsoll, or expert_parallel 1");
     }},
    {"plan.fsdp.replicate", error, "fsdp2", "2.11", "device mesh of replicate x shard",
     [](const RuleInput& in) { return is(in, Engine::fsdp2) && in.plan.world_size % in.plan.fsdp.replicate != 0; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/fsdp/replicate",
           fmt::format("{} is {}, which does not divide {}", key(in, "/fsdp/replicate"), in.plan.fsdp.replicate,
                       counted(in.plan.world_size, "rank")),
           "divisors: " + divisors_in_words(in.plan.world_size));
     }},
    {"plan.unsupported", error, "plimsoll", "any", "its fused layers are those of Llama, Mixtral and Qwen3",
     [](const RuleInput& in) { return is(in, Engine::plimsoll) && !fused_layers_lack(in.model).empty(); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/engine",
           fmt::format("engine plimsoll has no {}, which this model's layers use", fused_layers_lack(in.model)),
           "use engine deepspeed or fsdp2");
     }},
    {"plan.unsupported", error, "plimsoll", "any", "its kernels compute in bf16 or fp32",
     [](const RuleInput& in) { return is(in, Engine::plimsoll) && in.plan.precision == Precision::fp16; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/precision", "engine plimsoll has no loss scaling, which fp16 needs", "bf16, or fp32");
     }},
    {"plan.engine.precision", error, "deepspeed, fsdp2", "any", "autocast is measured under ddp only",
     [](const RuleInput& in) { return !is(in, Engine::ddp) && in.plan.precision == Precision::bf16_autocast; },
     [](const RuleInput& in, Diagnostic& d) {
       d.code = "plan.unsupported";
       say(in, d, "/precision", fmt::format("bf16_autocast under engine {} is not built yet", name_of(in.plan.engine)),
           "use bf16, or engine ddp");
     }},
    {"plan.unsupported", error, "plimsoll", "any", "its kernels are its own",
     [](const RuleInput& in) { return in.plan.compile && is(in, Engine::plimsoll); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/compile", "engine plimsoll has no compiled layers: its kernels are fused already", "compile false");
     }},
    {"plan.unsupported", error, "deepspeed", "0.19.8", "measured: hooks break the graph at every module of a layer",
     [](const RuleInput& in) {
       return in.plan.compile && is_deepspeed(in) && in.plan.zero.stage == 3 && !compiled_modules_lack(in).empty();
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/compile",
           fmt::format("at ZeRO stage 3 the hooks break the graph at every module, and the program that PyTorch 2.11 "
                       "makes of {} is not known",
                       compiled_modules_lack(in)),
           "compile false, zero.stage 2 or below, or engine fsdp2");
     }},
    {"plan.unsupported", error, "ddp, fsdp2, deepspeed", "any", "measured with Hugging Face's grouped experts",
     [](const RuleInput& in) {
       return in.plan.compile && has_experts(in) && in.plan.moe.implementation != MoeImplementation::grouped;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/compile", std::string(compiled_experts(in.plan.moe.implementation)),
           "compile false, or moe.implementation grouped");
     }},
    {"plan.engine.master_weights", error, "ddp", "2.11", "PyTorch's AdamW updates the parameters themselves",
     [](const RuleInput& in) { return is(in, Engine::ddp) && is_16_bit(in.plan) && in.plan.master_fp32; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/master_weights", "plain PyTorch keeps no fp32 master copy beside 16-bit parameters",
           "master_weights none, precision bf16_autocast (fp32 parameters), or engine fsdp2 or deepspeed");
     }},
    {"plan.unsupported", error, "deepspeed", "0.19", "bf16_master_weights_and_grads",
     [](const RuleInput& in) { return is_deepspeed(in) && is_16_bit(in.plan) && !in.plan.master_fp32; },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/master_weights", "16-bit master weights under DeepSpeed are not built yet", "master_weights fp32");
     }},
    {"plan.unsupported", error, "fsdp2", "2.11", "shards that are materialised on the CPU",
     [](const RuleInput& in) {
       return is(in, Engine::fsdp2) && in.plan.offload.parameters == OffloadDevice::cpu &&
              in.plan.construction != Construction::meta;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/construction", "offload under fsdp2 is answered for models that are built on the meta device",
           "construction meta");
     }},
    {"plan.unsupported", error, "any", "any", "nothing computes it yet",
     [](const RuleInput& in) {
       const DType moments = in.plan.optimizer.moments;
       return moments == DType::bf16 && in.plan.master_fp32;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/optimizer/moments",
           fmt::format("{} is {}: not built yet here", key(in, "/optimizer/moments"),
                       name_of(in.plan.optimizer.moments)),
           "fp32; bf16 together with master_weights none under engine ddp or fsdp2");
     }},
    {"plan.optimizer.moments", error, "fsdp2, ddp", "2.11", "torch.optim.AdamW: zeros_like(parameter)",
     [](const RuleInput& in) {
       return !is_deepspeed(in) && !is(in, Engine::plimsoll) && !in.plan.master_fp32 &&
              in.plan.precision == Precision::bf16 && in.plan.optimizer.moments == DType::fp32 && !in.plan.lora;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/optimizer/moments", "PyTorch's AdamW keeps its moments in the type of the parameters, here bf16",
           "moments bf16, or master_weights fp32");
     }},
    {"plan.unsupported", error, "ddp, plimsoll", "any", "nothing computes it yet",
     [](const RuleInput& in) {
       return !is_deepspeed(in) && !is(in, Engine::fsdp2) &&
              (offloads_optimizer(in.plan) || in.plan.offload.parameters != OffloadDevice::none);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/offload", fmt::format("offload under engine {} is not built yet", name_of(in.plan.engine)),
           "use engine deepspeed or fsdp2, or leave it out");
     }},
    {"plan.offload.policy", error, "fsdp2", "2.11", "CPUOffloadPolicy: shards, gradients and so the optimizer",
     [](const RuleInput& in) {
       const OffloadOptions& offload = in.plan.offload;
       return is(in, Engine::fsdp2) &&
              (offload.optimizer != offload.parameters || offload.optimizer == OffloadDevice::nvme);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/offload", "fully_shard offloads parameters, gradients and optimizer together, to the CPU",
           "offload.optimizer and offload.parameters both cpu, or both none");
     }},
};

constexpr Rule deepspeed[] = {
    {"plan.unsupported", error, "deepspeed", "0.19", "NVMe swapping",
     [](const RuleInput& in) {
       return is_deepspeed(in) &&
              (in.plan.offload.optimizer == OffloadDevice::nvme || in.plan.offload.parameters == OffloadDevice::nvme);
     },
     [](const RuleInput& in, Diagnostic& d) {
       const bool optimizer = in.plan.offload.optimizer == OffloadDevice::nvme;
       const char* pointer = optimizer ? "/offload/optimizer" : "/offload/parameters";
       say(in, d, pointer, fmt::format("{} is nvme: not built yet", key(in, pointer)), "cpu, or none");
     }},
    {"plan.offload.stage", error, "deepspeed", "0.19", "engine: offload needs a ZeRO optimizer",
     [](const RuleInput& in) { return is_deepspeed(in) && in.plan.zero.stage == 0 && offloads_optimizer(in.plan); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/offload/optimizer", "the optimizer cannot be offloaded at stage 0", "legal stages: 1, 2, 3");
     }},
    {"plan.offload.ratio", error, "deepspeed", "0.19", "runtime/zero/stage_1_and_2.py: assertion",
     [](const RuleInput& in) {
       return is_deepspeed(in) && in.plan.zero.stage < 3 && in.plan.zero.offload_optimizer_ratio < 1;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/offload_optimizer_ratio",
           fmt::format("a ratio of {} needs stage 3; DeepSpeed asserts at stage {}",
                       in.plan.zero.offload_optimizer_ratio, in.plan.zero.stage),
           "legal value below stage 3: 1");
     }},
    {"plan.optimizer.offload", error, "any", "any", "where the optimizer's states are",
     [](const RuleInput& in) {
       const bool refused_already = is_deepspeed(in) && in.plan.zero.stage == 0 && offloads_optimizer(in.plan);
       return !refused_already && is_cpu_optimizer(in.plan.optimizer.implementation) != offloads_optimizer(in.plan);
     },
     [](const RuleInput& in, Diagnostic& d) {
       const char* name = name_of(in.plan.optimizer.implementation);
       if (offloads_optimizer(in.plan))
         say(in, d, "/optimizer/implementation",
             fmt::format("the optimizer is offloaded, but {} runs on the GPU", name),
             is(in, Engine::fsdp2) ? "legal value with offload under fsdp2: torch_cpu"
                                   : "legal values with offload.optimizer cpu: deepspeed_cpu, torch_cpu");
       else
         say(in, d, "/optimizer/implementation", fmt::format("{} needs offload.optimizer cpu", name),
             "legal values without offload: fused, foreach, single");
     }},
    {"plan.gradient_dtype", error, "deepspeed", "0.19", "runtime/engine.py: NotImplementedError",
     [](const RuleInput& in) {
       return is_deepspeed(in) && in.plan.zero.stage == 0 && is_16_bit(in.plan) &&
              in.plan.gradient_dtype == DType::fp32;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/gradient_dtype", "DeepSpeed raises for fp32 gradient accumulation of a 16-bit model at stage 0",
           fmt::format("{}, or stage 1, 2 or 3", name_of(in.plan.compute_dtype())));
     }},
    {"plan.gradient_dtype", error, "any", "any", "types that gradients can have",
     [](const RuleInput& in) {
       return in.plan.gradient_dtype != DType::fp32 && in.plan.gradient_dtype != in.plan.compute_dtype();
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/gradient_dtype",
           fmt::format("{} gradients of a {} model", name_of(in.plan.gradient_dtype), name_of(in.plan.precision)),
           in.plan.compute_dtype() == DType::fp32
               ? "legal value: fp32"
               : fmt::format("legal values: {}, fp32", name_of(in.plan.compute_dtype())));
     }},
    {"plan.zero.allgather", error, "deepspeed", "0.19", "runtime/zero/stage_1_and_2.py: assertion",
     [](const RuleInput& in) {
       return is_deepspeed(in) && in.plan.zero.stage > 0 && in.plan.zero.stage < 3 &&
              in.plan.zero.allgather_bucket_size % 2 != 0;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/zero/allgather_bucket_size", "DeepSpeed asserts that allgather_bucket_size is even",
           "leave it out: nothing reads it afterwards");
     }},
    {"plan.construction", error, "any", "any", "zero.Init partitions at construction, which is stage 3",
     [](const RuleInput& in) {
       return in.plan.construction == Construction::zero_init && !(is_deepspeed(in) && in.plan.zero.stage == 3);
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/construction", "zero_init needs engine deepspeed at stage 3",
           is(in, Engine::fsdp2) ? "legal values: meta, gpu, cpu" : "legal values: gpu, cpu");
     }},
};

}  // namespace

std::span<const Rule> world_rules() { return world; }
std::span<const Rule> engine_rules() { return engine; }
std::span<const Rule> deepspeed_rules() { return deepspeed; }

}  // namespace plimsoll
