// What is the least that must change for the plan to fit?  On the same GPUs first, one key, then two together, and so on, from
// what costs least: a smaller micro-batch, recomputation, a higher stage, expert parallelism, offload; then more GPUs.  Each is
// tried on the ledger itself.  Where a ds_config.json states the global batch, accumulation makes up for what changes it.
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

/// The first change after which the verdict is `fits`, else the first after which it is `tight`, on the same GPUs if on these
/// any is enough; nothing if none of them is.
/// @param stop where it is requested no further change is tried, and the result is worth nothing
std::optional<Remedy> smallest_change(const Inputs& inputs, const Evaluation& evaluation, std::stop_token stop = {});

/// What was tried, where nothing of it is enough.
std::string no_remedy_in_words(const Ledger& ledger);

}  // namespace plimsoll
