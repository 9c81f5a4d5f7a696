// Sizes by engine and stage, and the rates of their groups (planner/search/communication_bound.hpp).
#include "planner/search/communication_bound.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "planner/spec/held_parameters.hpp"
#include "planner/spec/trained.hpp"

namespace plimsoll {
namespace {

/// Elements of one mesh that a rank computes with.
struct MeshElements {
  double all = 0;
  double gathered = 0;   ///< of these, what stage 3 does not keep whole
  double in_layers = 0;  ///< of these, what the backward needs again
  double largest_layer = 0;
  double largest = 0;  ///< parameter
  int layers = 0;      ///< that hold some
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
    sum.largest = std::max(sum.largest, numel);
    if (parameter.numel / (local ? plan.expert_parallel : 1) <= plan.zero.stage3_param_persistence_threshold) continue;
    sum.gathered += numel;
    if (parameter.layer < 0) continue;
    sum.in_layers += numel;
    layers[parameter.layer] += numel;
  }
  for (const auto& [layer, elements] : layers) sum.largest_layer = std::max(sum.largest_layer, elements);
  sum.layers = static_cast<int>(layers.size());
  return sum;
}

/// How many collectives carry that many elements, none of them more than `most`.
double collectives_of(double elements, double most) { return std::ceil(elements / std::max(1.0, most)); }

}  // namespace

LeastSeconds LinkPrices::least(const ClusterSpec& cluster, CollectiveKind kind, const GroupShape& group) const {
  if (!calibrated) return least_by_published_links(cluster, kind, group);
  const auto curve = collective_curve(*calibrated, cluster, kind, group);
  return curve ? curve->least() : LeastSeconds{};
}

CommunicationBound::CommunicationBound(const ModelSpec& model, const ClusterSpec& cluster, const LinkPrices& links,
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
    if (elements.all <= 0) continue;
    const auto seconds = [&](CollectiveKind kind, double bytes, double collectives) {
      const LeastSeconds least = links.least(cluster, kind, shape);
      return collectives * least.latency_s + bytes * least.s_per_byte;
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
    const ZeroOptions& zero = plan.zero;
    // Stages 1 and 2 all-reduce, or reduce to one rank after another; both send at least what a reduce-scatter does.
    const double buckets =
        stage == 0 ? 1 : collectives_of(elements.all, static_cast<double>(zero.reduce_bucket_size) + elements.largest);
    const double all_reduce = seconds(CollectiveKind::all_reduce, communicated * elements.all, buckets);
    const double reduction =
        std::min(all_reduce, seconds(CollectiveKind::broadcast, communicated * elements.all, buckets));
    if (plan.engine == Engine::fsdp2) {
      const bool again = plan.fsdp.reshard_after_forward;
      group.each_s = seconds(CollectiveKind::all_gather, computed * (elements.all + (again ? elements.in_layers : 0)),
                             elements.layers * (again ? 2 : 1));
    } else if (stage == 0) {
      group.once_s = all_reduce;
    } else if (stage < 3) {
      group.once_s = seconds(CollectiveKind::all_gather, computed * elements.all, 1) + (stage == 1 ? reduction : 0);
      group.each_s = stage == 2 ? reduction : 0;
    } else {
      const double prefetch = static_cast<double>(zero.stage3_prefetch_bucket_size) + elements.largest_layer;
      const double kept = static_cast<double>(zero.stage3_max_reuse_distance) +
                          static_cast<double>(zero.stage3_max_live_parameters) + prefetch;
      const double gathered = elements.gathered + std::max(0.0, elements.in_layers - kept);
      const double gathers = seconds(CollectiveKind::all_gather, computed * gathered,
                                     collectives_of(gathered, prefetch + elements.largest));
      group.each_s =
          gathers + std::min(all_reduce, seconds(CollectiveKind::reduce_scatter, communicated * elements.all, buckets));
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
