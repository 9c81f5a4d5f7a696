// Sizes by engine and stage, and the rates of their groups (planner/search/communication_bound.hpp).
#include "planner/search/communication_bound.hpp"

#include <algorithm>
#include <map>

#include "planner/search/held_parameters.hpp"
#include "planner/spec/trained.hpp"

namespace plimsoll {
namespace {

/// Elements of one mesh that a rank computes with.
struct MeshElements {
  double all = 0;
  double gathered = 0;   ///< of these, what stage 3 does not keep whole
  double in_layers = 0;  ///< of these, what the backward needs again
  double largest_layer = 0;
};

MeshElements elements_of(const ModelSpec& model, const Plan& plan, bool of_experts) {
  MeshElements sum;
  std::map<int, double> layers;
  for (const ParameterDecl& parameter : model.parameters) {
    const bool expert = is_expert(parameter.role);
    if (is_native(plan) && is_mlp(parameter.role)) continue;
    // Experts that no row reaches may be left out, of a loop even where rows are even.
    if (expert && (!rows_are_even(plan) || plan.moe.implementation == MoeImplementation::loop)) continue;
    const bool local = expert && holds_local_experts(plan.moe.implementation);
    if (local != of_experts) continue;
    const auto numel = static_cast<double>(parameter.numel) / (local ? plan.expert_parallel : 1);
    sum.all += numel;
    if (parameter.numel / (local ? plan.expert_parallel : 1) <= plan.zero.stage3_param_persistence_threshold) continue;
    sum.gathered += numel;
    if (parameter.layer < 0) continue;
    sum.in_layers += numel;
    layers[parameter.layer] += numel;
  }
  for (const auto& [layer, elements] : layers) sum.largest_layer = std::max(sum.largest_layer, elements);
  return sum;
}

}  // namespace

double sent_per_byte(CollectiveKind kind, int ranks) {
  constexpr Bytes large{std::int64_t{1} << 40};  // next to which rounding does not count
  return wire_bytes(kind, large, ranks) / large;
}

double least_seconds_per_byte(const ClusterSpec& cluster, const LinkPeaks& peaks, CollectiveKind kind,
                              const GroupShape& group) {
  if (group.size <= 1) return 0;
  const auto shares = tier_share(cluster, group, kind);
  if (!shares) return 0;
  const double sent = sent_per_byte(kind, group.size);
  for (const Tier tier : {Tier::spine, Tier::nic, Tier::pcie, Tier::nvlink}) {
    if (shares->of(tier) <= 0) continue;
    const double share = peaks.by_curve[static_cast<std::size_t>(kind)][static_cast<std::size_t>(tier)];
    const double bandwidth = bandwidth_per_gpu(cluster, tier).count;
    if (share > 0 && bandwidth > 0) return sent / (share * bandwidth);
    break;
  }
  double slowest = 0;
  for (const Tier tier : {Tier::spine, Tier::nic, Tier::pcie, Tier::nvlink}) {
    const double bandwidth = bandwidth_per_gpu(cluster, tier).count * peaks.without_curve;
    if (bandwidth > 0) slowest = std::max(slowest, sent * shares->load(tier) / bandwidth);
  }
  return slowest;
}

CommunicationBound::CommunicationBound(const ModelSpec& model, const ClusterSpec& cluster, const LinkPeaks& links,
                                       const HostPeaks& host, const Plan& plan) {
  if (trains_in_part(plan) || plan.engine == Engine::plimsoll) return;
  const bool deepspeed = plan.engine == Engine::deepspeed;
  const int stage = deepspeed ? plan.zero.stage : 0;
  with_compute_ = deepspeed && !plan.zero.overlap_comm;
  const auto computed = static_cast<double>(size_of(plan.compute_dtype()));
  const double communicated = std::min(computed, static_cast<double>(size_of(plan.communication_dtype)));
  for (const bool of_experts : {false, true}) {
    const MeshElements elements = elements_of(model, plan, of_experts);
    GroupShape shape{plan.world_size, 1, 0};
    if (of_experts) shape = {plan.expert_data_parallel(), plan.expert_parallel, 0};
    if (plan.engine == Engine::fsdp2) shape = {plan.world_size / plan.fsdp.replicate, 1, 0};
    const auto seconds = [&](CollectiveKind kind, double bytes) {
      return bytes * least_seconds_per_byte(cluster, links, kind, shape);
    };
    const bool copies = stage > 0 && stage < 3 && plan.offload.optimizer != OffloadDevice::none;
    if (copies && host.copy_bytes_per_s > 0) {
      const bool sums_on_device = plan.gradient_dtype == DType::fp32 && computed < 4;
      const double own = elements.all / shape.size;
      const double master = plan.master_fp32 ? 4 : computed;
      if (stage == 2 && !sums_on_device) copies_.each_s += 2 * computed * elements.all / host.copy_bytes_per_s;
      copies_.once_s += master * own / host.copy_bytes_per_s;
    }
    OfGroup& group = groups_[static_cast<std::size_t>(of_experts)];
    const double gather_all = seconds(CollectiveKind::all_gather, computed * elements.all);
    // Stages 1 and 2 all-reduce, or reduce to one rank after another; both send at least what a reduce-scatter does.
    const double all_reduce = seconds(CollectiveKind::all_reduce, communicated * elements.all);
    const double reduction = std::min(all_reduce, seconds(CollectiveKind::broadcast, communicated * elements.all));
    if (plan.engine == Engine::fsdp2) {
      const double again = plan.fsdp.reshard_after_forward ? elements.in_layers : 0;
      group.each_s = seconds(CollectiveKind::all_gather, computed * (elements.all + again));
    } else if (stage == 0) {
      group.once_s = all_reduce;
    } else if (stage < 3) {
      group.once_s = gather_all + (stage == 1 ? reduction : 0);
      group.each_s = stage == 2 ? reduction : 0;
    } else {
      const ZeroOptions& zero = plan.zero;
      const double kept = static_cast<double>(zero.stage3_max_reuse_distance) +
                          static_cast<double>(zero.stage3_max_live_parameters) +
                          static_cast<double>(zero.stage3_prefetch_bucket_size) + elements.largest_layer;
      const double again = std::max(0.0, elements.in_layers - kept);
      const double gathers = seconds(CollectiveKind::all_gather, computed * (elements.gathered + again));
      group.each_s =
          gathers + std::min(all_reduce, seconds(CollectiveKind::reduce_scatter, communicated * elements.all));
    }
  }
}

double CommunicationBound::step_seconds(std::int64_t accumulation) const {
  return std::max(groups_[0].of(accumulation), groups_[1].of(accumulation));
}

double CommunicationBound::beside_compute(std::int64_t accumulation) const {
  return copies_.of(accumulation - 1) + (with_compute_ ? groups_[0].of(accumulation) + groups_[1].of(accumulation) : 0);
}

}  // namespace plimsoll
