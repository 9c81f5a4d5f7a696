// Which of a model's parameters does a rank compute with under a plan?  Questions that the bounds on memory, on compute and on
// communication share.
#pragma once

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"
#include "planner/spec/scenario.hpp"

namespace plimsoll {

/// Each rank of an expert-parallel group holds its own experts.
inline bool holds_local_experts(MoeImplementation implementation) {
  return implementation == MoeImplementation::native || implementation == MoeImplementation::autoep ||
         implementation == MoeImplementation::fused;
}

inline bool is_expert(Role role) {
  return role == Role::experts_gate_up || role == Role::experts_down || role == Role::experts_gate_up_bias ||
         role == Role::experts_down_bias;
}

inline bool is_mlp(Role role) {
  return role == Role::gate || role == Role::up || role == Role::down || role == Role::gate_bias ||
         role == Role::up_bias || role == Role::down_bias;
}

/// The weight of a linear layer: fused experts and routers are none.
inline bool is_linear(Role role) {
  switch (role) {
    case Role::q:
    case Role::k:
    case Role::v:
    case Role::o:
    case Role::q_a:
    case Role::q_b:
    case Role::kv_a:
    case Role::kv_b:
    case Role::gate:
    case Role::up:
    case Role::down:
    case Role::shared_gate:
    case Role::shared_up:
    case Role::shared_down:
    case Role::shared_expert_gate:
    case Role::output_gate:
    case Role::index_q:
    case Role::index_k:
    case Role::index_weights:
    case Role::head: return true;
    default: return false;
  }
}

/// Of the sparse indexer, which passes no gradient on.
inline bool is_indexer(Role role) {
  return role == Role::index_q || role == Role::index_k || role == Role::index_weights;
}

/// Every token's rows reach some expert, and this rank's experts receive as many as it sends.
inline bool rows_are_even(const Plan& plan) {
  const bool stays =
      plan.moe.implementation == MoeImplementation::grouped || plan.moe.implementation == MoeImplementation::loop;
  return !is_native(plan) && (stays || plan.routing.kind == Routing::Kind::balanced);
}

}  // namespace plimsoll
