// Is a step program sound?  Checked whenever one is built:
//   - each buffer is allocated once before it is used, and freed at most once after its last use;
//   - accesses of one buffer on different lanes, one of them a write, are ordered (vector clocks);
//   - every edge points backwards in issue order, so that no lane waits for what comes after it;
//   - all rank classes issue the same collectives in the same order on every group, so that none waits for ever: the graph of
//     who waits for whom has no cycle.
// A failure names the ops by their listing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/step/program.hpp"

namespace plimsoll {

/// For each lane, the latest of its ops known to have ended: id + 1, 0 for none.
using Clock = std::array<OpId, lane_count>;

/// Which ops have ended when another starts, by lanes and edges.
class HappensBefore {
 public:
  explicit HappensBefore(const RankProgram& program);
  /// True if `first` has ended before `second` starts.
  bool ordered(OpId first, OpId second) const {
    return clocks_[second][static_cast<std::size_t>(program_.ops[first].lane)] > first;
  }
  const Clock& before(OpId op) const { return clocks_[op]; }

 private:
  const RankProgram& program_;
  std::vector<Clock> clocks_;  ///< by op; of Alloc and Free: of the next op on their lane as far as it is known
};

/// Empty if the program is sound; else one line per fault, with the ops concerned.
std::vector<std::string> verify_step(const StepProgram& program);

}  // namespace plimsoll
