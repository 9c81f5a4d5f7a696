// How is a plan written down?  plan.json with every key that its engine looks at; ds_config.json with every key that
// DeepSpeed looks at at that stage, and beside it the overrides for what such a file cannot say.
#include "planner/spec/write_plan.hpp"

#include <fmt/core.h>

#include <limits>

#include <nlohmann/json.hpp>

#include "planner/spec/deepspeed_families.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

/// The keys of zero_optimization that have an effect at the plan's stage.
Json zero_section(const Plan& plan) {
  const ZeroOptions& zero = plan.zero;
  Json json = {{"stage", zero.stage}};
  if (zero.stage == 0 || plan.engine != Engine::deepspeed) return json;
  json["reduce_bucket_size"] = zero.reduce_bucket_size;
  json["overlap_comm"] = zero.overlap_comm;
  json["contiguous_gradients"] = zero.contiguous_gradients;
  json["reduce_scatter"] = zero.reduce_scatter;
  if (zero.stage < 3) {
    json["use_multi_rank_bucket_allreduce"] = zero.use_multi_rank_bucket_allreduce;
    json["round_robin_gradients"] = zero.round_robin_gradients;
    if (zero.parameter_alignment) json["parameter_alignment"] = true;
    return json;
  }
  json["sub_group_size"] = zero.sub_group_size;
  json["stage3_prefetch_bucket_size"] = zero.stage3_prefetch_bucket_size;
  json["stage3_param_persistence_threshold"] = zero.stage3_param_persistence_threshold;
  if (zero.stage3_model_persistence_threshold != std::numeric_limits<std::int64_t>::max())
    json["stage3_model_persistence_threshold"] = zero.stage3_model_persistence_threshold;
  json["stage3_max_live_parameters"] = zero.stage3_max_live_parameters;
  json["stage3_max_reuse_distance"] = zero.stage3_max_reuse_distance;
  json["stage3_gather_16bit_weights_on_model_save"] = zero.stage3_gather_16bit_weights_on_model_save;
  if (zero.stage3_module_granularity_threshold != 0)
    json["stage3_module_granularity_threshold"] = zero.stage3_module_granularity_threshold;
  if (zero.stage3_use_all_reduce_for_fetch_params) json["stage3_use_all_reduce_for_fetch_params"] = true;
  if (zero.stage3_allgather_sequential) json["stage3_allgather_sequential"] = true;
  if (!zero.memory_efficient_linear) json["memory_efficient_linear"] = false;
  return json;
}

Json offload_section(OffloadDevice device, bool pinned) {
  return {{"device", name_of(device)}, {"pin_memory", pinned}};
}

/// With the offload sections, as DeepSpeed has them.
Json zero_optimization(const Plan& plan) {
  Json json = zero_section(plan);
  const OffloadOptions& offload = plan.offload;
  if (offload.optimizer != OffloadDevice::none) {
    json["offload_optimizer"] = offload_section(offload.optimizer, offload.pin_optimizer);
    if (plan.zero.offload_optimizer_ratio != 1.0)
      json["offload_optimizer"]["ratio"] = plan.zero.offload_optimizer_ratio;
  }
  if (offload.parameters != OffloadDevice::none)
    json["offload_param"] = offload_section(offload.parameters, offload.pin_parameters);
  return json;
}

Json moe_section(const Plan& plan) {
  const MoeOptions& moe = plan.moe;
  Json json = {{"implementation", name_of(moe.implementation)}, {"leaf", moe.leaf}};
  if (moe.implementation != MoeImplementation::native && moe.implementation != MoeImplementation::fused) return json;
  json["capacity_factor"] = moe.capacity_factor;
  json["min_capacity"] = moe.min_capacity;
  json["drop_tokens"] = moe.drop_tokens;
  json["use_residual"] = moe.use_residual;
  if (moe.num_experts.size() == 1)
    json["num_experts"] = moe.num_experts.front();
  else if (!moe.num_experts.empty())
    json["num_experts"] = moe.num_experts;
  if (!moe.num_experts.empty()) json["top_k"] = moe.top_k;
  return json;
}

Json routing_section(const Routing& routing) {
  switch (routing.kind) {
    case Routing::Kind::balanced: return {{"kind", "balanced"}};
    case Routing::Kind::skew: return {{"kind", "skew"}, {"max_over_mean", routing.max_over_mean}};
    case Routing::Kind::collapse: return {{"kind", "collapse"}, {"share", routing.share}};
    case Routing::Kind::histogram: return {{"kind", "histogram"}, {"counts", routing.counts}};
  }
  return {};
}

Json recompute_value(const Recompute& recompute) {
  if (recompute.every == 0) return "none";
  if (recompute.every == 1) return "full";
  return {{"every", recompute.every}};
}

Json loss_value(std::int64_t chunk) {
  if (chunk == 0) return "full";
  return {{"chunked", chunk}};
}

Json trainable_value(const Plan& plan) {
  if (plan.lora) {
    Json lora = {{"rank", plan.lora->rank}, {"targets", plan.lora->targets}};
    if (plan.lora->base_nf4) lora["base"] = "nf4";
    if (!plan.lora->fp32) lora["dtype"] = "16bit";
    if (plan.lora->dropout > 0) lora["dropout"] = plan.lora->dropout;
    return {{"lora", std::move(lora)}};
  }
  if (!plan.trainable_patterns.empty()) return plan.trainable_patterns;
  return "all";
}

Json optimizer_section(const OptimizerOptions& optimizer) {
  return {{"type", optimizer.type},
          {"implementation", name_of(optimizer.implementation)},
          {"moments", name_of(optimizer.moments)}};
}

Json plan_json(const Plan& plan) {
  Json json;
  json["engine"] = name_of(plan.engine);
  json["engine_version"] = plan.engine_version;
  json["world_size"] = plan.world_size;
  json["expert_parallel"] = plan.expert_parallel;
  json["micro_batch"] = plan.micro_batch;
  json["sequence"] = plan.sequence;
  json["gradient_accumulation"] = plan.gradient_accumulation;
  json["precision"] = name_of(plan.precision);
  json["master_weights"] = plan.master_fp32 ? "fp32" : "none";
  if (plan.engine == Engine::deepspeed) json["zero"] = zero_optimization(plan);
  if (plan.engine == Engine::plimsoll) json["zero"] = zero_section(plan);
  if (plan.engine == Engine::fsdp2)
    json["fsdp"] = {{"reshard_after_forward", plan.fsdp.reshard_after_forward},
                    {"reduce_dtype", name_of(plan.fsdp.reduce_dtype)},
                    {"replicate", plan.fsdp.replicate}};
  if (plan.engine != Engine::deepspeed && plan.offload.parameters != OffloadDevice::none)
    json["offload"] = {{"optimizer", name_of(plan.offload.optimizer)},
                       {"parameters", name_of(plan.offload.parameters)},
                       {"pin_memory", plan.offload.pin_parameters}};
  json["moe"] = moe_section(plan);
  json["routing"] = routing_section(plan.routing);
  json["recompute"] = recompute_value(plan.recompute);
  json["attention"] = name_of(plan.attention);
  json["loss"] = loss_value(plan.loss_chunk);
  json["optimizer"] = optimizer_section(plan.optimizer);
  json["gradient_clipping"] = plan.gradient_clipping;
  json["gradient_dtype"] = name_of(plan.gradient_dtype);
  json["communication_dtype"] = name_of(plan.communication_dtype);
  json["trainable"] = trainable_value(plan);
  json["construction"] = name_of(plan.construction);
  json["compile"] = plan.compile;
  json["expandable_segments"] = plan.expandable_segments;
  return json;
}

/// Arguments of the optimizer; lr is the usual one of fine-tuning, for the user to change.
Json ds_optimizer(const Plan& plan) {
  Json params = {{"lr", 1e-5}};
  switch (plan.optimizer.implementation) {
    case OptimizerImplementation::fused:
      params["torch_adam"] = true;
      params["fused"] = true;
      break;
    case OptimizerImplementation::foreach: params["torch_adam"] = true; break;
    case OptimizerImplementation::single:
      params["torch_adam"] = true;
      params["foreach"] = false;
      break;
    case OptimizerImplementation::torch_cpu:
      params["torch_adam"] = true;
      params["fused"] = true;
      break;
    case OptimizerImplementation::deepspeed_cpu: break;
  }
  if (plan.optimizer.type == "adam") params["adam_w_mode"] = false;
  return {{"type", plan.optimizer.type == "adam" ? "Adam" : "AdamW"}, {"params", params}};
}

}  // namespace

std::string write_plan_json(const Plan& plan) { return plan_json(plan).dump(2) + "\n"; }

bool same_settings(const Plan& a, const Plan& b) { return plan_json(a) == plan_json(b); }

std::string write_ds_config(const Plan& plan, const ModelSpec* model) {
  Json json;
  json["train_batch_size"] = plan.micro_batch * plan.gradient_accumulation * plan.world_size;
  json["train_micro_batch_size_per_gpu"] = plan.micro_batch;
  json["gradient_accumulation_steps"] = plan.gradient_accumulation;
  json["bf16"] = {{"enabled", plan.precision == Precision::bf16}};
  if (plan.precision == Precision::fp16) json["fp16"] = {{"enabled", true}};
  json["zero_optimization"] = zero_optimization(plan);
  const bool hf_experts =
      plan.moe.implementation == MoeImplementation::grouped || plan.moe.implementation == MoeImplementation::loop;
  if (plan.zero.stage == 3 && hf_experts && !plan.moe.leaf && model != nullptr && is_leaf_family(model->family))
    json["zero_optimization"]["leaf_module"] = {{"classes", Json::array()}};
  json["gradient_clipping"] = plan.gradient_clipping;
  const DType model_type = plan.compute_dtype();
  if (plan.gradient_dtype != model_type) json["data_types"] = {{"grad_accum_dtype", name_of(plan.gradient_dtype)}};
  if (plan.communication_dtype != model_type) json["communication_data_type"] = name_of(plan.communication_dtype);
  json["optimizer"] = ds_optimizer(plan);
  if (plan.optimizer.implementation == OptimizerImplementation::torch_cpu) {
    json["zero_force_ds_cpu_optimizer"] = false;
    json["zero_allow_untested_optimizer"] = true;
  }
  if (plan.moe.implementation == MoeImplementation::autoep) {
    json["expert_parallel"] = {{"enabled", true}, {"autoep_size", plan.expert_parallel}};
    const std::string preset = model == nullptr ? "" : autoep_preset(model->family);
    if (!preset.empty()) json["expert_parallel"]["preset_model"] = preset;
  }
  json["wall_clock_breakdown"] = false;
  return json.dump(2) + "\n";
}

std::vector<std::string> beside_ds_config(const Plan& plan) {
  std::vector<std::string> overrides = {fmt::format("world_size={}", plan.world_size),
                                        fmt::format("sequence={}", plan.sequence),
                                        fmt::format("engine_version={}", plan.engine_version),
                                        "recompute=" + recompute_value(plan.recompute).dump(),
                                        "loss=" + loss_value(plan.loss_chunk).dump(),
                                        fmt::format("attention={}", name_of(plan.attention)),
                                        fmt::format("construction={}", name_of(plan.construction)),
                                        fmt::format("moe.leaf={}", plan.moe.leaf)};
  if (plan.compile) overrides.emplace_back("compile=true");
  if (plan.expandable_segments) overrides.emplace_back("expandable_segments=true");
  if (plan.routing.kind != Routing::Kind::balanced)
    overrides.push_back("routing=" + routing_section(plan.routing).dump());
  if (plan.moe.implementation == MoeImplementation::autoep) return overrides;
  overrides.push_back("moe=" + moe_section(plan).dump());
  overrides.push_back(fmt::format("expert_parallel={}", plan.expert_parallel));
  return overrides;
}

}  // namespace plimsoll
