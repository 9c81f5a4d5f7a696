// Which tensor does an out-of-memory message name?  Every tensor whose size is the printed one, likeliest first: those of the
// step program where there is one, and those of the table of formulas (planner/cli/oom_formulas.hpp).
//
// A size matches if it lies within half a unit of the last printed digit, or if the segment that PyTorch's allocator would
// take for it does: that is what "Tried to allocate" prints (2 MiB up to 1 MiB, 20 MiB up to 10 MiB, else whole 2 MiB).
// Likelier are tensors that the program has, whose function the traceback names (most, if it names it last), that the stage
// and the offload call for, and that nothing had to be assumed for.  A traceback ends with the call that asked: a layer
// takes no bucket, a gather no activation, and a forward nothing that only backward allocates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/cli/oom_message.hpp"
#include "planner/cli/oom_sizes.hpp"
#include "planner/cli/remedy.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

struct OomCandidate {
  std::string tensor;
  std::string formula;        ///< "4*P/N = 4*13897000000/4"
  Bytes bytes;                ///< by the formula
  double relative_error = 0;  ///< bytes / printed - 1
  std::string remedy;
  std::vector<std::string> assumed;     ///< "T = 4096 tokens", "sizes of llama-3.1-8b"
  std::vector<std::string> in_program;  ///< buffers of the program that have this size
  double asked = 0;                     ///< what who asked says of the likeliest of them
  double unlikeliness = 0;              ///< orders the candidates
};

/// @param program of the scenario; null: none could be built
std::vector<OomCandidate> decode(const OomMessage& message, const KnownSizes& sizes, const RankProgram* program);

/// {"requested": "...", ..., "candidates": [...], "smallest_change": {...} or null}
/// @param change of the ledger's own; nothing: there is no ledger, or it fits
std::string oom_json(const OomMessage& message, const std::vector<OomCandidate>& candidates,
                     const std::optional<SmallestChange>& change);

}  // namespace plimsoll
