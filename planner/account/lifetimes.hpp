// Which buffers may be alive at once, on whatever lanes?  A buffer lives from its Alloc to its Free in the order of issue, and on
// until every use has ended as far as the lane of the other's first use knows (vector clocks, planner/step/verify_step.hpp).
// Between steps and between the rounds of a repeated micro-batch all lanes meet (runtime/core/execute_step.cpp), so that a lane
// then knows of all that was issued before.
//
// On one lane knowledge only grows.  So the buffers first used on a lane, in the order of their Alloc, are a row, and those that
// a buffer may meet among the later ones of a row are neighbours: a range, which may hold a few more where a buffer is
// allocated before another and used after it.
#pragma once

#include <array>
#include <vector>

#include "planner/step/program.hpp"

namespace plimsoll {

struct Lifetime {
  BufferId buffer = 0;
  std::int64_t size = 0;     ///< of its block, in bytes
  OpId alloc = 0, free = 0;  ///< the ops; free: the program's end if it is never freed
  std::uint32_t place = 0;   ///< in the rows of all lanes, one behind the other: 0 to the number of lifetimes
  struct Places {
    std::uint32_t first = 0, end = 0;
  };
  std::array<Places, lane_count> meets;  ///< by lane: the places of buffers allocated later that it may meet
};

/// Of all buffers on the GPU, in the order of their Alloc.
/// @param alignment blocks are multiples of so many bytes
std::vector<Lifetime> lifetimes_of(const RankProgram& program, Bytes alignment);

}  // namespace plimsoll
