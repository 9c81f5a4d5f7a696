// What is the least that must change for the plan to fit?  On the same GPUs first, one key, then two together, and so on, from
// what costs least: a smaller micro-batch, recomputation, a higher stage, expert parallelism, hybrid sharding where full
// sharding pads, offload; then more GPUs.  Each is tried on the ledger itself.  Where a ds_config.json states the global batch,
// accumulation makes up for what changes it.
#pragma once

#include <chrono>
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

struct SmallestChange {
  /// The first change after which the verdict is `fits`, else the first after which it is `tight`, on the same GPUs if on these
  /// any is enough; nothing if none of them is.
  std::optional<Remedy> found;
  bool all_tried = true;  ///< false: the time was up before, so that another change may be smaller, or one be enough
};

/// What a command takes for it at most: no further change is tried after so long.
inline constexpr std::chrono::seconds longest_change_search{60};

/// @param stop where it is requested no further change is tried, and the result is worth nothing
/// @param longest likewise after so long, and what was found until then is the result
SmallestChange smallest_change(const Inputs& inputs, const Evaluation& evaluation, std::stop_token stop = {},
                               std::chrono::seconds longest = longest_change_search);

/// What was tried, where nothing of it is enough.
std::string no_remedy_in_words(const Ledger& ledger, bool all_tried);

/// Lines for a terminal: what to set and how much room is then, on which cluster; where nothing is enough, what was tried.
std::string change_in_words(const Inputs& inputs, const Ledger& ledger, const SmallestChange& change);

}  // namespace plimsoll
