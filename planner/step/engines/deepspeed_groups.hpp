// How does DeepSpeed group parameters for its optimizer, and how is a group cut into partitions?
//
//   dense group    every trainable parameter that is no expert's, in order of named_parameters(); n = N ranks
//   expert groups  experts of native MoE or AutoEP, filled in the same order until the next parameter would exceed
//                  178,956,971 elements (counted whole, not per partition); n = edp ranks
//   stages 1, 2    a group of Psi_g elements is one flat buffer of A_g = roundup(Psi_g, 2 n); a_g = A_g / n are a rank's
//   stage 3        every parameter is cut by itself: ceil(numel / n) elements a rank
// Experts of Hugging Face's own blocks are ordinary parameters: they are in the dense group.
// Source: DeepSpeed 0.19.8, checked against measured residents of 30 runs.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/step/layers/module.hpp"

namespace plimsoll {

/// The largest expert group, in full elements (max_group_size of DeepSpeed's split of MoE parameter groups).
inline constexpr std::int64_t expert_group_limit = 178'956'971;

/// One parameter group of the optimizer, and its layout as a flat buffer (stages 1 and 2).
struct OptimizerGroup {
  std::vector<Parameter*> parameters;  ///< in order of the flat buffer: as above, or dealt round robin over the ranks
  std::vector<std::int64_t> offsets;   ///< of each parameter in the flat buffer, in elements
  std::int64_t numel = 0;              ///< Psi_g, with the padding between parameters if there is any
  bool expert = false;
  std::int64_t ranks = 1;  ///< n
  std::int64_t rank = 0;   ///< this rank's place among them
  GroupId group = 0;       ///< the ranks that hold the same parameters

  std::int64_t padded() const { return round_up(numel, 2 * ranks); }
  std::int64_t partition() const { return padded() / ranks; }
  std::int64_t partition_begin() const { return rank * partition(); }
  /// How many elements of the i-th parameter lie in the partition of `owner`.
  std::int64_t slice(std::size_t i, std::int64_t owner) const;
};

/// True if the parameter belongs to experts that DeepSpeed knows as such (native MoE, AutoEP).
bool on_expert_mesh(const Plan& plan, const Parameter& parameter);

/// The optimizer's groups: the dense one first, then the expert groups.  Groups without parameters are left out.
/// @param rank whose partitions OptimizerGroup::rank speaks of
std::vector<OptimizerGroup> optimizer_groups(const Plan& plan, int rank, std::deque<Parameter>& parameters);

}  // namespace plimsoll
