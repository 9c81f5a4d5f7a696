// Which of a model's parameters does a rank compute with under a plan?  Questions that the bounds on memory, on compute and on
// communication share.
#pragma once

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// Each rank of an expert-parallel group holds its own experts.
inline bool holds_local_experts(MoeImplementation implementation) {
  return implementation == MoeImplementation::native || implementation == MoeImplementation::autoep ||
         implementation == MoeImplementation::fused;
}

/// Native experts replace the dense MLPs.
inline bool is_native(const Plan& plan) {
  return plan.moe.implementation == MoeImplementation::native && !plan.moe.num_experts.empty();
}

inline bool is_expert(Role role) {
  return role == Role::experts_gate_up || role == Role::experts_down || role == Role::experts_gate_up_bias ||
         role == Role::experts_down_bias;
}

inline bool is_mlp(Role role) {
  return role == Role::gate || role == Role::up || role == Role::down || role == Role::gate_bias ||
         role == Role::up_bias || role == Role::down_bias;
}

/// Every token's rows reach some expert, and this rank's experts receive as many as it sends.
inline bool rows_are_even(const Plan& plan) {
  const bool stays =
      plan.moe.implementation == MoeImplementation::grouped || plan.moe.implementation == MoeImplementation::loop;
  return !is_native(plan) && (stays || plan.routing.kind == Routing::Kind::balanced);
}

}  // namespace plimsoll
