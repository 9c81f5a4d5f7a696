// What is asked, as a whole: one model on one cluster with one plan, read and checked against each other.
#pragma once

#include <algorithm>

#include "planner/spec/cluster.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

struct Scenario {
  ModelSpec model;
  ClusterSpec cluster;
  Plan plan;
};

/// Native experts replace the dense MLPs.
inline bool is_native(const Plan& plan) {
  return plan.moe.implementation == MoeImplementation::native && !plan.moe.num_experts.empty();
}

/// True if layers have routed experts: the model's own, or DeepSpeed's that the plan puts in the place of dense MLPs.
inline bool has_experts(const ModelSpec& model, const Plan& plan) {
  return is_native(plan) || std::any_of(model.layers.begin(), model.layers.end(),
                                        [](const LayerSpec& layer) { return layer.moe.has_value(); });
}

}  // namespace plimsoll
