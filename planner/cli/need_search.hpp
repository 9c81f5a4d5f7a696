// What is the smallest number of GPUs that runs a model?  What the user states of the plan stays; stage, expert parallelism,
// recomputation and offload are searched where he leaves them open, at micro-batch 1 unless he states one.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "planner/cli/evaluate.hpp"

namespace plimsoll {

/// The smallest number of GPUs, with the mildest plan for it.
struct Need {
  Evaluation fewest;
  std::optional<Evaluation> in_whole_nodes;  ///< beyond one node, where the last one has GPUs to spare: with them
};

/// One device's answer.
struct NeedAnswer {
  std::string device;
  std::optional<Need> smallest;         ///< nothing: no number of GPUs that was tried runs it
  std::optional<Need> without_offload;  ///< where the smallest offloads
};

NeedAnswer find_need(const Inputs& inputs);

/// No larger number of GPUs is tried.
inline constexpr int most_gpus = 8192;

/// Whether any plan fits that many; nothing: not known by the deadline.
std::optional<bool> runs_on_most_gpus(const Inputs& inputs, std::chrono::steady_clock::time_point deadline);

}  // namespace plimsoll
