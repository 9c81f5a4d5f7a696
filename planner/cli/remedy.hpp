// What is the least that must change for the plan to fit?  One key after the other, from what costs least: a smaller
// micro-batch, recomputation, a higher stage, expert parallelism, offload, more GPUs; each tried on the ledger itself.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "planner/cli/evaluate.hpp"

namespace plimsoll {

struct Remedy {
  std::vector<std::string> sets;  ///< "micro_batch=1": what --set takes
  Verdict verdict = Verdict::fits;
  Bytes margin;
};

/// The first change after which the verdict is `fits`, else the first after which it is `tight`; nothing if none of them is
/// enough.
/// @param stop where it is requested no further change is tried, and the result is worth nothing
std::optional<Remedy> smallest_change(const Inputs& inputs, const Evaluation& evaluation, std::stop_token stop = {});

}  // namespace plimsoll
