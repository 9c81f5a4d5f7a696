// Best fit in issue order; a freed range is free for a lane once that lane is ordered behind its last uses
// (planner/account/arena.hpp).
#include "planner/account/arena.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "planner/step/verify_step.hpp"

namespace plimsoll {

namespace {

/// The last op of each lane that touches each buffer, and the first op that touches it.
struct Uses {
  std::vector<Clock> last;  ///< by buffer: op id + 1 by lane
  std::vector<OpId> first;
};

Uses uses_of(const RankProgram& program) {
  constexpr OpId none = ~OpId{0};
  Uses uses{std::vector<Clock>(program.buffers.size()), std::vector<OpId>(program.buffers.size(), none)};
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    for (std::size_t i = 0; i < std::size_t{op.read_count} + op.write_count; ++i) {
      const BufferId buffer = program.refs[op.first_ref + i];
      uses.last[buffer][static_cast<std::size_t>(op.lane)] = id + 1;
      if (uses.first[buffer] == none) uses.first[buffer] = id;
    }
  }
  return uses;
}

class Placer {
 public:
  Placer(const RankProgram& program, Bytes alignment)
      : program_(program), alignment_(alignment.count), happens_(program), uses_(uses_of(program)) {
    plan_.offsets.resize(program.buffers.size());
  }

  ArenaPlan run() {
    Bytes live;
    for (OpId id = 0; id < program_.ops.size(); ++id) {
      const Action& action = program_.ops[id].action;
      if (const auto* alloc = std::get_if<Alloc>(&action)) {
        const BufferDecl& buffer = program_.buffers[alloc->buffer];
        if (buffer.pool == Lane::host) continue;
        live += Bytes(size_of_block(buffer));
        plan_.least = std::max(plan_.least, live);
        place(alloc->buffer);
      } else if (const auto* free = std::get_if<Free>(&action)) {
        const BufferDecl& buffer = program_.buffers[free->buffer];
        if (buffer.pool == Lane::host) continue;
        live -= Bytes(size_of_block(buffer));
        add_hole(plan_.offsets[free->buffer].count, {size_of_block(buffer), uses_.last[free->buffer]});
      }
    }
    plan_.size = Bytes(end_);
    return std::move(plan_);
  }

 private:
  std::int64_t size_of_block(const BufferDecl& buffer) const {
    return std::max(alignment_, round_up(buffer.size.count, alignment_));
  }

  /// A free range, and what must have ended before it is used again.
  struct Hole {
    std::int64_t size = 0;
    Clock last{};
  };

  /// True if all that used the hole has ended before the first use of `next`.
  bool may_follow(const Hole& hole, BufferId next) const {
    const OpId first = uses_.first[next];
    if (first >= program_.ops.size()) return true;  // never used
    const Clock& known = happens_.before(first);
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      if (hole.last[lane] > known[lane]) return false;
    }
    return true;
  }

  void place(BufferId buffer) {
    const std::int64_t size = size_of_block(program_.buffers[buffer]);
    auto best = holes_.end();
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second.size < size || (best != holes_.end() && hole->second.size >= best->second.size)) continue;
      if (may_follow(hole->second, buffer)) best = hole;
    }
    if (best == holes_.end()) {
      best = grow_last_hole(buffer, size);
      if (best == holes_.end()) {
        plan_.offsets[buffer] = Bytes(end_);
        end_ += size;
        return;
      }
    }
    const auto [offset, hole] = *best;
    holes_.erase(best);
    if (hole.size > size) holes_.emplace(offset + size, Hole{hole.size - size, hole.last});
    plan_.offsets[buffer] = Bytes(offset);
  }

  /// A hole at the end of the arena grows until the buffer fits.
  std::map<std::int64_t, Hole>::iterator grow_last_hole(BufferId buffer, std::int64_t size) {
    if (holes_.empty()) return holes_.end();
    const auto last = std::prev(holes_.end());
    if (last->first + last->second.size != end_ || last->second.size >= size || !may_follow(last->second, buffer))
      return holes_.end();
    last->second.size = size;
    end_ = last->first + size;
    return last;
  }

  void add_hole(std::int64_t offset, Hole hole) {
    const auto join = [](Clock& into, const Clock& other) {
      for (std::size_t lane = 0; lane < lane_count; ++lane) into[lane] = std::max(into[lane], other[lane]);
    };
    auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && offset + hole.size == next->first) {
      hole.size += next->second.size;
      join(hole.last, next->second.last);
      next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second.size == offset) {
        previous->second.size += hole.size;
        join(previous->second.last, hole.last);
        return;
      }
    }
    holes_.emplace(offset, hole);
  }

  const RankProgram& program_;
  const std::int64_t alignment_;
  const HappensBefore happens_;
  const Uses uses_;
  ArenaPlan plan_;
  std::vector<BufferId> waiting_;       ///< freed, but perhaps still in use on some lane
  std::map<std::int64_t, Hole> holes_;  ///< by offset
  std::int64_t end_ = 0;
};

}  // namespace

ArenaPlan plan_arena(const RankProgram& program, Bytes alignment) { return Placer(program, alignment).run(); }

}  // namespace plimsoll
