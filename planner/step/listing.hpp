// What does the step program look like, op by op?  One op a line, for people and for diff: no running numbers, so that an op
// more or less changes its own line only.  Other ops are named by their distance ("after -3": the third line above), buffers
// by name, layer and size.
#pragma once

#include <optional>
#include <string>

#include "planner/step/program.hpp"

namespace plimsoll {

/// What of the program is listed.
struct ListingFilter {
  std::string phase;         ///< of the job, e.g. "steady_backward"; empty: all
  std::optional<int> layer;  ///< nothing: all
  bool memory = true;        ///< allocations and frees too
};

/// The op's line, without newline: lane, layer, micro-batch, action, role, what it waits for.
std::string line_of(const StepProgram& program, const RankProgram& rank, OpId op);

/// A head (digest, ranks, groups), then the phases with their ops.
std::string list_program(const StepProgram& program, const RankClass& ranks, const ListingFilter& filter = {});

}  // namespace plimsoll
