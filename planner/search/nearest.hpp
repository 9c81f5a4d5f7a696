// Which plan comes nearest to fitting where none does?  That which lacks least: what exceeds the GPU's memory, as a share of it,
// and what exceeds the node's, as a share of that, together.
//
// Best first by what a plan lacks at least: by closed forms (planner/search/bounds.hpp), then by short models
// (planner/search/short_model.hpp), then evaluated.  Micro-batches are looked at from the smallest on, as closed forms grow with
// them.  Of plans that differ only in their buckets, gathers, micro-batch and accumulation the thriftiest comes first and the
// others after all such, so that an answer whose time was up is a good one.  What lacks no less by its bounds than an evaluated
// plan is dropped.
#pragma once

#include <optional>

#include "planner/search/round.hpp"

namespace plimsoll {

/// What an evaluated plan lacks; 0: it fits.
double lack(const Evaluated& evaluated, const ClusterSpec& cluster);

struct Nearest {
  std::optional<CandidateId> id;
  bool proven = false;  ///< no other lacks less; else the time was up
};

/// Evaluates into the memo, until the context's deadline; at least one plan where there is any.
Nearest nearest_to_fit(RoundContext& context);

}  // namespace plimsoll
