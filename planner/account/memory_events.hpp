// Which ops move memory?  The program's Alloc, Free and EmptyCache ops on their own, so that a replay walks a list that is
// short and dense; and which tensors a range of ops that runs again makes anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/step/program.hpp"

namespace plimsoll {

struct MemoryEvent {
  enum class Kind : std::uint8_t { alloc, free, empty_cache };
  OpId op = 0;
  BufferId buffer = 0;  ///< none for empty_cache
  Kind kind = Kind::alloc;
};

class MemoryEvents {
 public:
  explicit MemoryEvents(const RankProgram& program);
  /// Those of ops [first, end), in order.
  std::span<const MemoryEvent> of(OpId first, OpId end) const;

 private:
  std::vector<MemoryEvent> events_;
};

/// A buffer allocated in a range of ops and alive at its end takes, when the range runs again, the place of one that was
/// alive at its beginning and freed in it: the same tensor, made anew in every run.
struct Carried {
  BufferId freed, allocated;
};
/// @param events of a range of ops
std::vector<Carried> carried_over(const RankProgram& program, std::span<const MemoryEvent> events);

}  // namespace plimsoll
