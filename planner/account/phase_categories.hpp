// What is alive, by category, at the highest point of each phase of the job?  For pictures of the whole job; and a replay
// without an allocator, for answers that cannot wait for one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "planner/account/replay.hpp"

namespace plimsoll {

struct PhaseCategories {
  std::string name;
  std::array<Bytes, category_count> categories{};  ///< of 512-rounded sizes
  Bytes total() const;
};

/// One entry a phase of the replay, at the phase's peak_op; at the steady step's peak_op they are its categories_at_peak.
/// Cost: one walk over the program.
std::vector<PhaseCategories> categories_by_phase(const RankProgram& program, const Replay& replay);

/// Live tensors alone: blocks are as large as their 512-rounded tensors, and nothing is reserved.  Phases, peaks, categories
/// and who is alive, with every figure of the pool and of the host left at 0.  Never above what replay_allocator() gives,
/// which counts blocks that were not split.  Cost: one walk over the program.
struct SizeReplay {
  Replay replay;
  std::vector<PhaseCategories> categories;  ///< one a phase of the replay, at its allocated_peak
};
SizeReplay replay_sizes(const RankProgram& program);

}  // namespace plimsoll
