// What is the smallest number of GPUs that runs a model?  What the user states of the plan stays, but for the number of GPUs;
// stage, expert parallelism, recomputation and offload are searched where he leaves them open, at micro-batch 1 unless he states
// one.  A tight plan runs; then the smallest number that fits is told beside it.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "planner/cli/evaluate.hpp"

namespace plimsoll {

/// The smallest number of GPUs, with the mildest plan for it.
struct Need {
  Evaluation fewest;
  std::optional<Evaluation> with_room;       ///< where those are tight: the smallest that fits
  std::optional<Evaluation> in_whole_nodes;  ///< beyond one node, where the last one has GPUs to spare: with them
};

/// One device's answer.
struct NeedAnswer {
  std::string device;
  std::optional<Need> smallest;         ///< nothing: no number of GPUs that was tried runs it
  std::optional<Need> without_offload;  ///< where the smallest offloads
  std::int64_t global_batch = 0;        ///< sequences of a step, where a ds_config.json states them: they stay
  std::vector<int> divisors;            ///< of it, that were tried
};

/// @param inputs read for any number of GPUs (InputOptions::any_world)
NeedAnswer find_need(const Inputs& inputs);

/// The largest number of GPUs that is tried, and whether any plan runs on it; nothing: not known by the deadline.
struct MostGpus {
  int gpus = 0;
  std::optional<bool> run;
};
MostGpus runs_on_most_gpus(const Inputs& inputs, std::chrono::steady_clock::time_point deadline);

}  // namespace plimsoll
