// Closed-form bounds (planner/search/bounds.hpp).  Where an engine or a layer does less than the common form (an engine without a
// master copy, fused layers, routing that drops tokens), the form takes the least of them.
#include "planner/search/bounds.hpp"

#include <algorithm>

#include "planner/spec/held_parameters.hpp"
#include "planner/spec/trained.hpp"

namespace plimsoll {
namespace {

/// Weights that every token is multiplied with, forwards and backwards.
bool is_product(Role role) { return is_linear(role) && !is_indexer(role); }

struct Held {
  std::int64_t dense = 0, expert = 0;
  std::int64_t all() const { return dense + expert; }
};

/// Parameters that a rank computes with, those that `counts` takes.
template <class Counts>
Held held_by_rank(const ModelSpec& model, const Plan& plan, Counts counts) {
  Held held;
  const bool local = holds_local_experts(plan.moe.implementation);
  for (const ParameterDecl& parameter : model.parameters) {
    if (!counts(parameter)) continue;
    if (is_native(plan) && is_mlp(parameter.role)) continue;  // replaced by experts, which are left out
    if (local && is_expert(parameter.role))
      held.expert += parameter.numel / plan.expert_parallel;
    else
      held.dense += parameter.numel;
  }
  return held;
}

/// Elements that one token leaves behind in a layer for its backward, beside the residual stream.
std::int64_t kept_by_layer(const LayerSpec& layer, std::int64_t hidden, const Plan& plan) {
  std::int64_t kept = 0;
  const AttentionSpec& attention = layer.attention;
  if (attention.kind == AttentionSpec::Kind::grouped_query)  // input of the products; q, k, v, output
    kept += hidden + 2 * attention.q_width() + 2 * attention.kv_width();
  if (layer.mlp && !is_native(plan)) kept += hidden + 3 * layer.mlp->intermediate;
  if (layer.moe) {
    kept += 3 * layer.moe->shared_intermediate;
    if (rows_are_even(plan)) kept += layer.moe->top_k * 3 * layer.moe->expert_intermediate;
  }
  return kept;
}

bool is_recomputed(const Plan& plan, std::size_t layer) {
  return plan.recompute.every > 0 && layer % static_cast<std::size_t>(plan.recompute.every) == 0;
}

}  // namespace

PeakRates published_peaks(const DeviceSpec& device) {
  return {device.bf16_flops_per_s, device.fp32_flops_per_s, {}, {}};
}

PlanBounds::PlanBounds(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks, const Plan& plan)
    : sequence_(plan.sequence), communication_(model, cluster, peaks.links, peaks.host, plan) {
  bound_states(model, cluster, peaks, plan);
  bound_activations(model, plan);
  bound_compute(model, peaks, plan);
  bound_exchange(model, cluster, peaks, plan);
}

// fsdp2 and plimsoll shard everything; their gathered weights are not counted.  ddp shards nothing.
void PlanBounds::bound_states(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks,
                              const Plan& plan) {
  // What is frozen has no state but its weights.  Adapters and weights of 4 bits are left out.
  const bool in_part = trains_in_part(plan);
  const Held weights = held_by_rank(model, plan, [&](const ParameterDecl& p) { return !is_quantized(plan, p); });
  const Held trained =
      in_part ? held_by_rank(model, plan, [&](const ParameterDecl& p) { return is_trained(plan, p); }) : weights;
  const std::int64_t moments = 2 * size_of(plan.optimizer.moments);
  const bool in_fp32 = plan.precision == Precision::bf16_autocast && !in_part;
  const std::int64_t computing = size_of(in_fp32 ? DType::fp32 : plan.compute_dtype());
  const bool has_master = plan.master_fp32 && computing == 2 && !in_part;
  const auto sharded = [](const Held& held, std::int64_t ranks, std::int64_t expert_ranks) {
    return held.dense / ranks + held.expert / std::max<std::int64_t>(1, expert_ranks);
  };
  const auto of_rank = [&](const Held& held) { return sharded(held, plan.world_size, plan.expert_data_parallel()); };
  const std::int64_t own = of_rank(weights), own_trained = of_rank(trained);
  switch (plan.engine) {
    case Engine::ddp: states_ = Bytes(computing * weights.all() + moments * trained.all()); return;
    case Engine::fsdp2: {
      const int shards = plan.world_size / plan.fsdp.replicate;
      const std::int64_t stored = plan.master_fp32 && !in_part ? 4 : computing;
      const std::int64_t kept = stored * sharded(weights, shards, shards), updated = sharded(trained, shards, shards);
      if (plan.offload.parameters == OffloadDevice::none) {
        states_ = Bytes(kept + moments * updated);
        return;
      }
      // With the gradients, which the update on the host is made of.
      host_ = Bytes(kept + (stored + moments) * updated) * std::min(plan.world_size, cluster.devices_per_node);
      after_layers_s_ = static_cast<double>(updated) * peaks.host.update_s_per_element;
      return;
    }
    case Engine::plimsoll: states_ = Bytes((4 + moments) * own_trained); return;
    case Engine::deepspeed: break;
  }
  const int stage = plan.zero.stage;
  const std::int64_t updated = (stage == 0 ? trained.all() : own_trained) * ((has_master ? 4 : 0) + moments);
  const std::int64_t computed_with = (stage == 3 ? own : weights.all()) * computing;
  const bool on_host = plan.offload.optimizer != OffloadDevice::none;
  const bool away = plan.offload.parameters != OffloadDevice::none && stage == 3;
  states_ = Bytes((on_host ? 0 : updated) + (away ? 0 : computed_with));
  const auto is_kept_on_host = [&](OffloadDevice device) {  // below stage 3 NVMe silently becomes the host
    return device == OffloadDevice::cpu || (device == OffloadDevice::nvme && stage < 3);
  };
  double on_host_bytes = 0;
  if (is_kept_on_host(plan.offload.optimizer)) {
    // The gradient as the master is, and a copy in the computing type: staging below stage 3, gradients at stage 3.
    const std::int64_t gradients = has_master ? 4 + computing : 0;
    const double share = stage == 3 ? plan.zero.offload_optimizer_ratio : 1;
    on_host_bytes += share * static_cast<double>(updated + own_trained * gradients);
  }
  if (away && is_kept_on_host(plan.offload.parameters)) on_host_bytes += static_cast<double>(own * computing);
  // The update begins once the gradients' norm is known, group after group; a partial offload goes by whole groups.
  const bool updates_all_on_host = on_host && (stage < 3 || plan.zero.offload_optimizer_ratio == 1);
  if (updates_all_on_host && !in_part) {
    after_layers_s_ = static_cast<double>(own) * peaks.host.update_s_per_element;
    if (stage == 3 && !away && peaks.host.copy_bytes_per_s > 0)
      after_layers_s_ += static_cast<double>(own * computing) / peaks.host.copy_bytes_per_s;
  }
  host_ = Bytes(static_cast<std::int64_t>(on_host_bytes)) * std::min(plan.world_size, cluster.devices_per_node);
}

// Of a plan that trains in part only what any keeps: a frozen weight needs no input for a gradient of its own, and below all that
// is trained no gradient is passed on.
void PlanBounds::bound_activations(const ModelSpec& model, const Plan& plan) {
  const std::int64_t width = size_of(plan.compute_dtype());
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (plan.trainable_patterns.empty()) elements += model.hidden;
    if (plan.engine == Engine::plimsoll || trains_in_part(plan) || is_recomputed(plan, i)) continue;
    elements += kept_by_layer(model.layers[i], model.hidden, plan);
  }
  const bool whole_loss = plan.engine != Engine::plimsoll && plan.loss_chunk == 0 && !model.sketch;
  bytes_per_token_ = Bytes(elements * width + (whole_loss ? 12 * model.vocab : 0));
}

void PlanBounds::bound_compute(const ModelSpec& model, const PeakRates& peaks, const Plan& plan) {
  double weights = 0, recomputed = 0, attention = 0;
  const bool even = rows_are_even(plan);
  for (const ParameterDecl& parameter : model.parameters) {
    double passed = 0;
    if (is_expert(parameter.role) && even && parameter.shape.size() == 3) {
      const MoeSpec& moe = *model.layers[static_cast<std::size_t>(parameter.layer)].moe;
      passed = static_cast<double>(parameter.numel) * static_cast<double>(moe.top_k) / static_cast<double>(moe.experts);
    } else if (is_product(parameter.role) && !(is_native(plan) && is_mlp(parameter.role))) {
      passed = static_cast<double>(parameter.numel);
    }
    if (parameter.role == Role::embedding && model.tied_embeddings) passed = static_cast<double>(parameter.numel);
    weights += passed;
    if (parameter.layer >= 0 && is_recomputed(plan, static_cast<std::size_t>(parameter.layer))) recomputed += passed;
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const AttentionSpec& spec = model.layers[i].attention;
    if (spec.kind == AttentionSpec::Kind::lightning) continue;
    const std::int64_t values = spec.value_head_dim > 0 ? spec.value_head_dim : spec.head_dim;
    const double flops = static_cast<double>(spec.q_heads * (spec.head_dim + values)) * static_cast<double>(sequence_);
    attention += flops * (is_recomputed(plan, i) ? 4 : 3);
  }
  const double flops = trains_in_part(plan) ? 2 * weights + attention / 4 : 6 * weights + 2 * recomputed + attention;
  const double peak = plan.precision == Precision::fp32 ? peaks.fp32_flops_per_s : peaks.matrix_flops_per_s;
  if (peak > 0) seconds_per_token_ = flops / peak;
}

void PlanBounds::bound_exchange(const ModelSpec& model, const ClusterSpec& cluster, const PeakRates& peaks,
                                const Plan& plan) {
  if (plan.expert_parallel <= 1 || !rows_are_even(plan)) return;
  std::int64_t rows = 0, mixtures = 0;
  for (const LayerSpec& layer : model.layers) {
    if (!layer.moe) continue;
    rows += layer.moe->top_k;
    ++mixtures;
  }
  constexpr std::int64_t exchanges = 4;  // rows to the experts and back, in the forward and in the backward
  const std::int64_t sent = exchanges * rows * model.hidden * size_of(plan.compute_dtype());
  const LeastSeconds least = peaks.links.least(cluster, CollectiveKind::all_to_all, {plan.expert_parallel, 1, 0});
  const double seconds = static_cast<double>(sent) * least.s_per_byte;
  // Nothing runs between a layer's rows and its experts; the reference runtime splits them to hide some of it.
  const bool with_compute = plan.engine == Engine::deepspeed;
  seconds_per_token_ = with_compute ? seconds_per_token_ + seconds : std::max(seconds_per_token_, seconds);
  if (with_compute) exchange_latency_s_ = static_cast<double>(exchanges * mixtures) * least.latency_s;
}

Bytes PlanBounds::device_memory(std::int64_t micro_batch) const {
  return states_ + bytes_per_token_ * (micro_batch * sequence_);
}

double PlanBounds::step_seconds(std::int64_t micro_batch, std::int64_t accumulation) const {
  const double micro_batch_s = seconds_per_token_ * static_cast<double>(micro_batch * sequence_) + exchange_latency_s_;
  const double layers = micro_batch_s * static_cast<double>(accumulation);
  const double micro_batches =
      std::max(layers + communication_.beside_compute(accumulation), communication_.step_seconds(accumulation));
  return micro_batches + after_layers_s_;
}

double PlanBounds::step_seconds(const LayersTime& layers, std::int64_t accumulation, double beside_layers) const {
  const auto micro_batches = static_cast<double>(accumulation);
  const double on_device =
      layers.device_s * micro_batches + communication_.beside_compute(accumulation) * beside_layers;
  return std::max(on_device, layers.host_s * micro_batches) + after_layers_s_ * beside_layers;
}

}  // namespace plimsoll
