// Where does each buffer lie, if all memory is one block laid out beforehand?  Two buffers share addresses only if they cannot
// be alive at once on any lanes (planner/account/lifetimes.hpp); the arena's size is then the memory a step needs, not an
// estimate of it.
//
// With all lifetimes known beforehand this is dynamic storage allocation, which is NP-hard (Garey and Johnson 1979, SR2).
// Buffers are placed one after the other, each at the lowest offset at which it meets none that was placed: first what lasts to
// the end, then what is kept from forward to backward, the longest first, so that it forms a stack, then the rest by size
// (greedy by size: Pisarchyk and Lee, arXiv:2001.03288).  Where that loses more than 1 % the rest by size times lifetime, and
// where more than 2 % all by size alone; the smallest arena is taken.  tests/unit/account shows how near to `least` that comes.
#pragma once

#include <vector>

#include "planner/step/program.hpp"

namespace plimsoll {

struct ArenaPlan {
  Bytes size;                  ///< of the arena
  Bytes least;                 ///< highest sum of live sizes in issue order: no placement can be smaller
  std::vector<Bytes> offsets;  ///< by BufferId; of buffers on the GPU
};

/// Offsets are multiples of `alignment` bytes.
ArenaPlan plan_arena(const RankProgram& program, Bytes alignment = Bytes(512));

}  // namespace plimsoll
