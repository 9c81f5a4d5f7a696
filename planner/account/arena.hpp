// Where does each buffer lie, if all memory is one block laid out beforehand?  Two buffers share addresses only where every
// use of the one has ended before the first use of the other, by lanes and edges; the arena's size is then the memory a step
// needs, not an estimate of it.
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
