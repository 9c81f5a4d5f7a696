// What does a plan mean where it says nothing?  The engine's own defaults, by version; every one taken is listed in
// Plan::defaults_taken.  Also what an engine silently does instead of what was asked (NVMe below stage 3 is the CPU,
// offloaded parameters below stage 3 are not offloaded), with a warning.
//
// Sources: DeepSpeed 0.19.8's configuration classes and engine; PyTorch 2.11 (AdamW keeps its moments in the parameters'
// type); leaf modules: runtime/zero/leaf_module_config.py.
#include <fmt/core.h>

#include <algorithm>

#include "planner/spec/deepspeed_families.hpp"
#include "planner/spec/engine_version.hpp"
#include "planner/spec/plan_draft.hpp"

namespace plimsoll {
namespace {

std::string json(bool value) { return value ? "true" : "false"; }
std::string json(std::int64_t value) { return fmt::format("{}", value); }
std::string json(double value) { return fmt::format("{}", value); }
std::string json(const char* word) { return fmt::format("\"{}\"", word); }

/// Sets a field unless the plan stated its key, and lists the default.
template <class Field, class Value>
void take(Plan& plan, const std::string& key, Field& field, Value value, const std::string& shown) {
  if (plan.states(key)) return;
  field = static_cast<Field>(value);
  plan.defaults_taken[key] = shown;
}
void take_number(Plan& plan, const std::string& key, std::int64_t& field, std::int64_t value) {
  take(plan, key, field, value, json(value));
}
void take_number(Plan& plan, const std::string& key, int& field, int value) {
  take(plan, key, field, value, json(std::int64_t{value}));
}
void take_number(Plan& plan, const std::string& key, double& field, double value) {
  take(plan, key, field, value, json(value));
}
void take_switch(Plan& plan, const std::string& key, bool& field, bool value) {
  take(plan, key, field, value, json(value));
}
template <class Word>
void take_word(Plan& plan, const std::string& key, Word& field, Word value) {
  take(plan, key, field, value, json(name_of(value)));
}

DType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::bf16: return DType::bf16;
    case Precision::fp16: return DType::fp16;
    case Precision::fp32:
    case Precision::bf16_autocast: return DType::fp32;
  }
  return DType::fp32;
}

EngineVersion take_deepspeed_version(PlanDraft& draft) {
  using namespace deepspeed_versions;
  Plan& plan = draft.plan;
  const Place place = place_of(plan, "/engine_version");
  const std::optional<EngineVersion> version = parse_version(plan.engine_version);
  if (!version) {
    draft.report(Severity::error, "plan.version", place,
                 fmt::format("{} is no version of DeepSpeed", plan.engine_version), "known: 0.19.3 to 0.19.8");
    return measured;
  }
  if (*version < oldest) {
    draft.report(
        Severity::error, "plan.version", place,
        fmt::format("DeepSpeed {} is not answered: before 0.19.3 gradient_clipping is 0 unless stated (1.0 since), "
                    "the overflow check of bf16 is off, and AutoEP at stage 3 does not exist",
                    plan.engine_version),
        "known: 0.19.3 to 0.19.8");
  } else if (*version < indexed_dispatch && plan.moe.implementation == MoeImplementation::native) {
    draft.report(Severity::error, "plan.version", place,
                 fmt::format("DeepSpeed {} is not answered with native MoE: before 0.19.4 it dispatches by masks of "
                             "[tokens, experts, capacity]",
                             plan.engine_version),
                 "known: 0.19.4 to 0.19.8");
  } else if (version->parts[0] != 0 || version->parts[1] != 19) {
    draft.report(Severity::error, "plan.version", place,
                 fmt::format("DeepSpeed {} is not known: how it behaves was not looked at", plan.engine_version),
                 "known: 0.19.3 to 0.19.8");
  } else if (*version != measured) {
    draft.report(Severity::note, "plan.version", place,
                 fmt::format("DeepSpeed {} is answered as 0.19.8, which was measured{}", plan.engine_version,
                             *version < pinned_by_default ? ", with its own default pin_memory false" : ""));
  }
  return *version;
}

EngineVersion take_version(PlanDraft& draft) {
  Plan& plan = draft.plan;
  switch (plan.engine) {
    case Engine::deepspeed:
      take(plan, "/engine_version", plan.engine_version, "0.19.8", json("0.19.8"));
      return take_deepspeed_version(draft);
    case Engine::fsdp2:
    case Engine::ddp: {
      take(plan, "/engine_version", plan.engine_version, "2.11", json("2.11"));
      const std::optional<EngineVersion> version = parse_version(plan.engine_version);
      if (!version || version->parts[0] != 2 || version->parts[1] != 11)
        draft.report(
            Severity::error, "plan.version", place_of(plan, "/engine_version"),
            fmt::format("PyTorch {} is not known: what a step keeps was measured with 2.11", plan.engine_version),
            "known: 2.11");
      return version.value_or(EngineVersion{{2, 11, 0}});
    }
    case Engine::plimsoll: take(plan, "/engine_version", plan.engine_version, "0.1", json("0.1")); break;
  }
  return {};
}

bool is_leaf_by_default(const Plan& plan, const ModelSpec* model) {
  const bool hf_experts =
      plan.moe.implementation == MoeImplementation::grouped || plan.moe.implementation == MoeImplementation::loop;
  return model != nullptr && hf_experts && plan.engine == Engine::deepspeed && plan.zero.stage == 3 &&
         is_leaf_family(model->family);
}

void take_moe(PlanDraft& draft) {
  Plan& plan = draft.plan;
  MoeOptions& moe = plan.moe;
  const bool replaces = !moe.num_experts.empty();
  const bool by_deepspeed = plan.engine == Engine::deepspeed && plan.expert_parallel > 1;
  const MoeImplementation implementation = plan.engine == Engine::plimsoll ? MoeImplementation::fused
                                           : replaces                      ? MoeImplementation::native
                                           : by_deepspeed                  ? MoeImplementation::autoep
                                                                           : MoeImplementation::grouped;
  take_word(plan, "/moe/implementation", moe.implementation, implementation);
  take_switch(plan, "/moe/leaf", moe.leaf, is_leaf_by_default(plan, draft.context.model));
  if (moe.implementation == MoeImplementation::fused) {
    take_switch(plan, "/moe/drop_tokens", moe.drop_tokens, false);
    take_number(plan, "/moe/capacity_factor", moe.capacity_factor, 1.25);
    take_number(plan, "/moe/min_capacity", moe.min_capacity, 4);
  }
  if (moe.implementation != MoeImplementation::native) return;
  take_number(plan, "/moe/top_k", moe.top_k, 1);
  take_number(plan, "/moe/capacity_factor", moe.capacity_factor, 1.0);
  take_number(plan, "/moe/min_capacity", moe.min_capacity, 4);
  take_switch(plan, "/moe/drop_tokens", moe.drop_tokens, true);
  take_switch(plan, "/moe/use_residual", moe.use_residual, false);
}

/// What zero_optimization offloads is DeepSpeed's matter; PyTorch's engines never see that section.
void forget_zeros_offload(Plan& plan) {
  if (plan.engine != Engine::fsdp2 && plan.engine != Engine::ddp) return;
  const auto forget = [&](const char* pointer, OffloadDevice& device) {
    if (!place_of(plan, pointer).pointer.starts_with("/zero/")) return;
    device = OffloadDevice::none;
    plan.places.erase(pointer);
  };
  forget("/offload/optimizer", plan.offload.optimizer);
  forget("/offload/parameters", plan.offload.parameters);
}

/// What DeepSpeed does instead below stage 3.
void correct_offload(PlanDraft& draft) {
  Plan& plan = draft.plan;
  if (plan.engine != Engine::deepspeed || plan.zero.stage == 3) return;
  if (plan.offload.optimizer == OffloadDevice::nvme && plan.zero.stage > 0) {
    draft.report(Severity::warning, "plan.offload.nvme", place_of(plan, "/offload/optimizer"),
                 fmt::format("at stage {} DeepSpeed silently takes nvme for cpu", plan.zero.stage),
                 "NVMe needs stage 3; write cpu to say what happens");
    plan.offload.optimizer = OffloadDevice::cpu;
  }
  if (plan.offload.parameters == OffloadDevice::none) return;
  const Place place = place_of(plan, "/offload/parameters");
  if (place.pointer == "/offload/parameters")  // in a section of zero_optimization the linter says it
    draft.report(
        Severity::warning, "plan.offload.stage", place,
        fmt::format("parameters are not offloaded at stage {}: DeepSpeed ignores it below stage 3", plan.zero.stage),
        "use stage 3, or leave it out");
  draft.reading.ignored.insert(place.pointer);
  plan.offload.parameters = OffloadDevice::none;
}

void take_zero(Plan& plan) {
  ZeroOptions& zero = plan.zero;
  if (plan.engine == Engine::plimsoll) take_number(plan, "/zero/stage", zero.stage, 3);
  if (plan.engine != Engine::deepspeed) return;
  const ZeroOptions defaults;
  take_number(plan, "/zero/stage", zero.stage, 0);
  if (zero.stage == 0) return;
  take_switch(plan, "/zero/overlap_comm", zero.overlap_comm, zero.stage == 3);
  take_number(plan, "/zero/reduce_bucket_size", zero.reduce_bucket_size, defaults.reduce_bucket_size);
  if (zero.stage < 3) {
    take_switch(plan, "/zero/reduce_scatter", zero.reduce_scatter, defaults.reduce_scatter);
    take_switch(plan, "/zero/contiguous_gradients", zero.contiguous_gradients, defaults.contiguous_gradients);
    return;
  }
  const auto stage_3 = [&](const char* key, std::int64_t& field, std::int64_t value) {
    take_number(plan, std::string("/zero/") + key, field, value);
  };
  stage_3("sub_group_size", zero.sub_group_size, defaults.sub_group_size);
  stage_3("stage3_prefetch_bucket_size", zero.stage3_prefetch_bucket_size, defaults.stage3_prefetch_bucket_size);
  stage_3("stage3_param_persistence_threshold", zero.stage3_param_persistence_threshold,
          defaults.stage3_param_persistence_threshold);
  stage_3("stage3_max_live_parameters", zero.stage3_max_live_parameters, defaults.stage3_max_live_parameters);
  stage_3("stage3_max_reuse_distance", zero.stage3_max_reuse_distance, defaults.stage3_max_reuse_distance);
  take_switch(plan, "/zero/stage3_gather_16bit_weights_on_model_save", zero.stage3_gather_16bit_weights_on_model_save,
              false);
}

void take_precision(Plan& plan) {
  take_word(plan, "/precision", plan.precision, Precision::bf16);
  const DType model_type = dtype_of(plan.precision);
  const bool keeps_no_master = plan.engine == Engine::ddp && model_type != DType::fp32;
  take(plan, "/master_weights", plan.master_fp32, !keeps_no_master, json(keeps_no_master ? "none" : "fp32"));
  const bool fp32_shards = plan.engine == Engine::fsdp2 && plan.master_fp32;
  const DType gradients = fp32_shards ? DType::fp32 : model_type;
  take_word(plan, "/gradient_dtype", plan.gradient_dtype, gradients);
  if (plan.engine == Engine::fsdp2) take_word(plan, "/fsdp/reduce_dtype", plan.fsdp.reduce_dtype, DType::fp32);
  const DType wire = plan.engine == Engine::fsdp2 ? plan.fsdp.reduce_dtype
                     : plan.engine == Engine::ddp ? plan.gradient_dtype
                                                  : model_type;
  take_word(plan, "/communication_dtype", plan.communication_dtype, wire);
}

void take_optimizer(Plan& plan, EngineVersion version) {
  if (plan.engine == Engine::deepspeed) {
    const bool pinned = version >= deepspeed_versions::pinned_by_default;
    if (!plan.states("/offload/pin_memory")) {
      if (!plan.states("/offload/pin_optimizer")) plan.offload.pin_optimizer = pinned;
      if (!plan.states("/offload/pin_parameters")) plan.offload.pin_parameters = pinned;
      if (plan.offload.optimizer != OffloadDevice::none || plan.offload.parameters != OffloadDevice::none)
        plan.defaults_taken["/offload/pin_memory"] = json(pinned);
    }
  }
  const bool on_cpu = plan.offload.optimizer != OffloadDevice::none;
  take(plan, "/optimizer/type", plan.optimizer.type, "adamw", json("adamw"));
  take_word(plan, "/optimizer/implementation", plan.optimizer.implementation,
            !on_cpu                        ? OptimizerImplementation::fused
            : plan.engine == Engine::fsdp2 ? OptimizerImplementation::torch_cpu
                                           : OptimizerImplementation::deepspeed_cpu);
  const bool pure_16_bit = !plan.master_fp32 && plan.precision == Precision::bf16;
  take_word(plan, "/optimizer/moments", plan.optimizer.moments, pure_16_bit ? DType::bf16 : DType::fp32);
  take_number(plan, "/gradient_clipping", plan.gradient_clipping, plan.engine == Engine::deepspeed ? 1.0 : 0.0);
}

}  // namespace

void take_defaults(PlanDraft& draft) {
  Plan& plan = draft.plan;
  take_word(plan, "/engine", plan.engine, Engine::deepspeed);
  take_number(plan, "/world_size", plan.world_size, std::max(1, draft.context.cluster_world));
  take_number(plan, "/expert_parallel", plan.expert_parallel, 1);
  take_number(plan, "/micro_batch", plan.micro_batch, 1);
  take_number(plan, "/sequence", plan.sequence, 4096);
  take_number(plan, "/gradient_accumulation", plan.gradient_accumulation, 1);
  take_zero(plan);
  forget_zeros_offload(plan);
  correct_offload(draft);
  take_moe(draft);
  const EngineVersion version = take_version(draft);
  take_precision(plan);
  take_optimizer(plan, version);
  if (plan.engine == Engine::fsdp2) {
    take_switch(plan, "/fsdp/reshard_after_forward", plan.fsdp.reshard_after_forward, true);
    take_number(plan, "/fsdp/replicate", plan.fsdp.replicate, 1);
  }
  take_word(plan, "/attention", plan.attention, AttentionImplementation::sdpa);
  take(plan, "/loss", plan.loss_chunk, 0, json("full"));
  take(plan, "/recompute", plan.recompute.every, 0, json("none"));
  take(plan, "/routing/kind", plan.routing.kind, Routing::Kind::balanced, json("balanced"));
  const Construction construction = plan.engine == Engine::deepspeed && plan.zero.stage == 3 ? Construction::zero_init
                                    : plan.engine == Engine::fsdp2                           ? Construction::meta
                                                                                             : Construction::gpu;
  take_word(plan, "/construction", plan.construction, construction);
  take_switch(plan, "/compile", plan.compile, false);
  take_switch(plan, "/expandable_segments", plan.expandable_segments, false);
}

}  // namespace plimsoll
