// The table of controls, and the trial of every value (gui/session/controls.hpp).
#include "gui/session/controls.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

using Kind = Control::Kind;
using Values = std::vector<std::string>;

std::vector<Control> make_controls() {  // NOLINT(readability-function-size): a table
  const char *run = "Run", *sharding = "Sharding", *batch = "Batch", *memory = "Memory",
             *zero = "ZeRO sizes (elements)", *experts = "Experts", *numbers = "Arithmetic";
  return {
      {"engine",
       "Eng&ine",
       run,
       "Whose training step: DeepSpeed, PyTorch FSDP2, plain data parallelism, or the reference runtime.",
       Kind::choice,
       {"deepspeed", "fsdp2", "ddp", "plimsoll"},
       {}},
      {"world_size",
       "&GPUs",
       run,
       "Data-parallel ranks: one process a GPU.",
       Kind::number,
       {"1", "2", "4", "8", "16", "24", "32", "48", "64", "96", "128", "192", "256", "384", "512", "768", "1024"},
       {}},
      {"zero.stage",
       "ZeRO &stage",
       sharding,
       "What data-parallel ranks shard: 1 optimizer states, 2 also gradients, 3 also parameters.",
       Kind::choice,
       {"0", "1", "2", "3"},
       {"0 - nothing", "1 - optimizer states", "2 - and gradients", "3 - and parameters"}},
      {"expert_parallel",
       "E&xpert parallel (ep)",
       sharding,
       "Ranks that hold the experts of a layer together. Expert data parallelism edp = dp / ep ranks hold the same "
       "experts.",
       Kind::number,
       {"1", "2", "4", "8", "16", "32", "64", "128", "256"},
       {}},
      {"fsdp.reshard_after_forward",
       "&Reshard after forward",
       sharding,
       "FSDP2 frees a layer's whole weights after its forward and gathers them again in backward.",
       Kind::choice,
       {"true", "false"},
       {"yes", "no"}},
      {"micro_batch",
       "&Micro-batch",
       batch,
       "Sequences that one GPU takes at once.",
       Kind::number,
       {"1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",  "10", "12",
        "14", "16", "20", "24", "28", "32", "48", "64", "96", "128"},
       {}},
      {"gradient_accumulation",
       "&Accumulation",
       batch,
       "Micro-batches of one optimizer step.",
       Kind::number,
       {"1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "64", "128", "256"},
       {}},
      {"sequence",
       "Se&quence",
       batch,
       "Tokens of one sequence.",
       Kind::number,
       {"512", "1024", "2048", "3072", "4096", "6144", "8192", "12288", "16384", "24576", "32768", "65536", "131072"},
       {}},
      {"recompute",
       "Re&compute",
       memory,
       "Activation checkpointing: a layer's activations are dropped after its forward and computed again in backward.",
       Kind::choice,
       {"none", "full", R"({"every":2})", R"({"every":4})"},
       {"none", "every layer", "every 2nd layer", "every 4th layer"}},
      {"offload.optimizer",
       "&Optimizer on",
       memory,
       "Where the optimizer's states live.",
       Kind::choice,
       {"none", "cpu", "nvme"},
       {"GPU", "host memory", "NVMe"}},
      {"offload.parameters",
       "Parameters on",
       memory,
       "Where sharded parameters live (stage 3).",
       Kind::choice,
       {"none", "cpu", "nvme"},
       {"GPU", "host memory", "NVMe"}},
      {"loss",
       "Loss",
       memory,
       "The loss over all tokens at once, or in chunks whose logits are never all alive.",
       Kind::choice,
       {"full", R"({"chunked":1024})", R"({"chunked":4096})"},
       {"all tokens at once", "chunks of 1024", "chunks of 4096"}},
      {"attention", "Attention", memory, "Implementation of attention.", Kind::choice, {"sdpa", "flash", "eager"}, {}},
      {"expandable_segments",
       "Expandable segments",
       memory,
       "The allocator's segments grow in place, which avoids fragmentation (PYTORCH_CUDA_ALLOC_CONF).",
       Kind::choice,
       {"false", "true"},
       {"no", "yes"}},
      {"moe.implementation",
       "Im&plementation",
       experts,
       "How experts run: one by one, one grouped GEMM, or DeepSpeed's own expert layers.",
       Kind::choice,
       {"grouped", "loop", "autoep", "native", "fused"},
       {}},
      {"moe.leaf",
       "ZeRO-3 leaf",
       experts,
       "Stage 3 fetches and reduces the whole MoE block as one module.",
       Kind::choice,
       {"false", "true"},
       {"no", "yes"}},
      {"routing",
       "Rou&ting",
       experts,
       "How tokens spread over the experts: equally, with one fuller than the mean, or nearly all to one.",
       Kind::choice,
       {R"({"kind":"balanced"})", R"({"kind":"skew","max_over_mean":1.5})", R"({"kind":"skew","max_over_mean":2})",
        R"({"kind":"skew","max_over_mean":4})", R"({"kind":"collapse","share":0.5})",
        R"({"kind":"collapse","share":0.92})"},
       {"balanced", "skew, max/mean 1.5", "skew, max/mean 2", "skew, max/mean 4", "collapse, half to one",
        "collapse, 92 % to one"}},
      {"zero.reduce_bucket_size",
       "Reduce &bucket",
       zero,
       "A flat buffer in which gradients wait to be reduced together.",
       Kind::number,
       {"5000000", "10000000", "20000000", "50000000", "100000000", "200000000", "500000000", "1000000000"},
       {}},
      {"zero.stage3_prefetch_bucket_size",
       "Prefetch bucket",
       zero,
       "Weights that stage 3 gathers ahead of their use.",
       Kind::number,
       {"0", "5000000", "10000000", "20000000", "50000000", "100000000", "200000000", "500000000"},
       {}},
      {"zero.stage3_max_live_parameters",
       "Max live parameters",
       zero,
       "Gathered weights that stage 3 keeps at once.",
       Kind::number,
       {"10000000", "50000000", "100000000", "200000000", "500000000", "1000000000", "2000000000"},
       {}},
      {"zero.stage3_param_persistence_threshold",
       "Persistence threshold",
       zero,
       "Parameters below it are never sharded by stage 3.",
       Kind::number,
       {"0", "10000", "100000", "1000000", "10000000"},
       {}},
      {"precision",
       "Precision",
       numbers,
       "Types of parameters and compute.",
       Kind::choice,
       {"bf16", "fp16", "fp32", "bf16_autocast"},
       {"bf16", "fp16", "fp32", "fp32 under bf16 autocast"}},
      {"master_weights",
       "Master &weights",
       numbers,
       "An fp32 copy of the parameters that the optimizer updates.",
       Kind::choice,
       {"fp32", "none"},
       {}},
      {"gradient_dtype",
       "Gradient t&ype",
       numbers,
       "In which micro-batches are summed.",
       Kind::choice,
       {"bf16", "fp16", "fp32"},
       {}},
      {"optimizer.implementation",
       "Optimizer &kernel",
       numbers,
       "One fused kernel, one pass a tensor list, one a tensor, or on the CPU.",
       Kind::choice,
       {"fused", "foreach", "single", "deepspeed_cpu", "torch_cpu"},
       {}},
      {"compile", "torch.compile", numbers, "Decoder layers compiled.", Kind::choice, {"false", "true"}, {"no", "yes"}},
  };
}

/// Why the scenario with this value is refused; "" if it is not.
std::string refusal(const Inputs& inputs, const std::string& key, const std::string& value) {
  if (key == "world_size" && std::stoi(value) > inputs.cluster()->world())
    return fmt::format("the cluster has {}; add nodes", counted(inputs.cluster()->world(), "GPU"));
  const auto scenario = inputs.with({key + "=" + value});
  return scenario ? std::string() : refusal_in_words(scenario.diagnostics());
}

std::string routing_text(const Routing& routing) {
  switch (routing.kind) {
    case Routing::Kind::balanced: return R"({"kind":"balanced"})";
    case Routing::Kind::skew: return fmt::format(R"({{"kind":"skew","max_over_mean":{}}})", routing.max_over_mean);
    case Routing::Kind::collapse: return fmt::format(R"({{"kind":"collapse","share":{}}})", routing.share);
    case Routing::Kind::histogram: return R"({"kind":"histogram"})";
  }
  return {};
}

std::string flag(bool value) { return value ? "true" : "false"; }

/// The values that are in effect, as --set would take them.
std::map<std::string, std::string> values_of(const Plan& plan) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const int every = plan.recompute.every;
  return {
      {"engine", name_of(plan.engine)},
      {"world_size", number(plan.world_size)},
      {"zero.stage", number(plan.zero.stage)},
      {"expert_parallel", number(plan.expert_parallel)},
      {"fsdp.reshard_after_forward", flag(plan.fsdp.reshard_after_forward)},
      {"micro_batch", number(plan.micro_batch)},
      {"gradient_accumulation", number(plan.gradient_accumulation)},
      {"sequence", number(plan.sequence)},
      {"recompute", every == 0   ? "none"
                    : every == 1 ? "full"
                                 : fmt::format(R"({{"every":{}}})", every)},
      {"offload.optimizer", name_of(plan.offload.optimizer)},
      {"offload.parameters", name_of(plan.offload.parameters)},
      {"loss", plan.loss_chunk == 0 ? "full" : fmt::format(R"({{"chunked":{}}})", plan.loss_chunk)},
      {"attention", name_of(plan.attention)},
      {"expandable_segments", flag(plan.expandable_segments)},
      {"moe.implementation", name_of(plan.moe.implementation)},
      {"moe.leaf", flag(plan.moe.leaf)},
      {"routing", routing_text(plan.routing)},
      {"zero.reduce_bucket_size", number(plan.zero.reduce_bucket_size)},
      {"zero.stage3_prefetch_bucket_size", number(plan.zero.stage3_prefetch_bucket_size)},
      {"zero.stage3_max_live_parameters", number(plan.zero.stage3_max_live_parameters)},
      {"zero.stage3_param_persistence_threshold", number(plan.zero.stage3_param_persistence_threshold)},
      {"precision", name_of(plan.precision)},
      {"master_weights", plan.master_fp32 ? "fp32" : "none"},
      {"gradient_dtype", name_of(plan.gradient_dtype)},
      {"optimizer.implementation", name_of(plan.optimizer.implementation)},
      {"compile", flag(plan.compile)},
  };
}

std::string pointer_of(std::string key) {
  std::replace(key.begin(), key.end(), '.', '/');
  return "/" + key;
}

}  // namespace

const std::vector<Control>& controls() {
  static const std::vector<Control> table = make_controls();
  return table;
}

const Control* find_control(const std::string& key) {
  const auto& all = controls();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Control& c) { return c.key == key; });
  return found == all.end() ? nullptr : &*found;
}

ControlStates states_of(const Inputs& inputs, const ScenarioText& text, bool want_reasons) {
  ControlStates states;
  const std::optional<Plan>& plan = inputs.report().plan;
  if (!plan) {  // nothing is known but what was set
    for (const auto& [key, value] : text.settings) states[key] = {value, true, {}};
    return states;
  }
  const bool can_try = want_reasons && inputs.model() && inputs.cluster() && !has_errors(inputs.diagnostics());
  const auto values = values_of(*plan);
  for (const Control& control : controls()) {
    ControlState& state = states[control.key];
    state.value = values.at(control.key);
    state.stated = plan->states(pointer_of(control.key));
    state.refused.resize(control.values.size());
    if (!can_try) continue;
    for (std::size_t i = 0; i < control.values.size(); ++i)
      if (control.values[i] != state.value) state.refused[i] = refusal(inputs, control.key, control.values[i]);
  }
  return states;
}

}  // namespace plimsoll::gui
