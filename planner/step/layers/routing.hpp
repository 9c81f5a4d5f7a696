// How many rows does each rank's set of local experts receive, layer by layer?  From the plan's routing.
//
// Experts are split evenly over the ep consecutive ranks of a group: rank r holds experts [p El, (p + 1) El), p = r mod ep,
// El = E / ep.  A router sends each of N tokens to k experts, so a rank sends N k rows and receives
//   R = sum over the ranks of its group of the rows that they send to its own experts.
#pragma once

#include <optional>
#include <vector>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// The mixture of experts in a decoder layer: the model's own, or the one that replaces the dense MLP under native
/// DeepSpeed MoE; none in a dense layer.
std::optional<MoeSpec> moe_of_layer(const Scenario& scenario, std::size_t layer);

/// Rows of every MoE layer for `rank`.  Capacities are those of native DeepSpeed MoE.
///   balanced    every expert gets N k / E rows; what does not divide goes to the first experts
///   skew        the first expert gets max_over_mean times that, the others share the rest evenly
///   collapse    the first expert gets `share` of the rows, the others share the rest evenly
///   histogram   as counted; one rank stands for all, one layer for all
std::vector<RoutedRows> route(const Scenario& scenario, int rank);

/// The same, averaged over the ranks (rounded up).
std::vector<RoutedRows> mean_route(const Scenario& scenario);

/// The first rank that receives the most rows, summed over layers.
int hottest_rank(const Scenario& scenario);

/// Slots per expert of native DeepSpeed MoE that drops tokens: max(min_capacity, ceil(f32(N / E) * f32(factor))), in
/// 32-bit arithmetic.  The factor is capacity_factor * k for k >= 2.  Source: deepspeed 0.19.8, moe/sharded_moe.py.
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, double factor, std::int64_t min_capacity);

}  // namespace plimsoll
