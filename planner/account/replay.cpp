// The walk over the job's Alloc and Free events (planner/account/replay.hpp).
#include "planner/account/replay.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

namespace plimsoll {

namespace {

constexpr std::int64_t unit = 512;

Bytes rounded(const BufferDecl& buffer) { return Bytes(std::max(unit, round_up(buffer.size.count, unit))); }
Bytes pinned_block(const BufferDecl& buffer) {
  return Bytes(static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, buffer.size.count)))));
}

/// A buffer allocated in a range of ops and alive at its end takes, when the range runs again, the place of one that was
/// alive at its beginning and freed in it: the same tensor, made anew in every run.
struct Carried {
  BufferId freed, allocated;
};

std::vector<Carried> carried_over(const RankProgram& program, OpId first, OpId end) {
  using Key = std::tuple<std::int64_t, std::string_view, Lane, int>;
  std::map<Key, std::deque<BufferId>> left;
  std::vector<BufferId> lost;
  std::vector<bool> made(program.buffers.size());
  for (OpId id = first; id < end; ++id) {
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) {
      made[alloc->buffer] = true;
    } else if (const auto* free = std::get_if<Free>(&program.ops[id].action)) {
      if (!made[free->buffer]) lost.push_back(free->buffer);
      made[free->buffer] = false;
    }
  }
  const auto key = [&](BufferId id) {
    const BufferDecl& b = program.buffers[id];
    return Key{b.size.count, b.name, b.pool, b.layer};
  };
  for (OpId id = first; id < end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    if (alloc && made[alloc->buffer]) left[key(alloc->buffer)].push_back(alloc->buffer);
  }
  std::vector<Carried> result;
  for (const BufferId freed : lost) {
    auto found = left.find(key(freed));
    if (found == left.end() || found->second.empty()) continue;
    result.push_back({freed, found->second.front()});
    found->second.pop_front();
  }
  return result;
}

/// Host memory of one rank: pageable bytes, and pinned blocks that stay cached by their power of two.
class HostMemory {
 public:
  void allocate(const BufferDecl& buffer) {
    if (!buffer.pinned) {
      unpinned_ += buffer.size;
    } else {
      Power& power = powers_[pinned_block(buffer).count];
      if (++power.used > power.held) {
        ++power.held;
        pinned_ += pinned_block(buffer);
      }
    }
  }
  void free(const BufferDecl& buffer) {
    if (!buffer.pinned) {
      unpinned_ -= buffer.size;
    } else {
      --powers_[pinned_block(buffer).count].used;
    }
  }
  Bytes unpinned() const { return unpinned_; }
  Bytes pinned() const { return pinned_; }

 private:
  struct Power {
    int used = 0, held = 0;
  };
  std::map<std::int64_t, Power> powers_;
  Bytes unpinned_, pinned_;
};

class Walker {
 public:
  Walker(const RankProgram& program, const ReplayOptions& options)
      : program_(program),
        options_(options),
        allocator_(options.rules),
        blocks_(program.buffers.size(), BlockId::empty),
        live_(program.buffers.size()) {}

  Replay run() {
    prepare_pool();
    walk_range(0, program_.steady_first);
    if (program_.steady_end > program_.steady_first) {
      const std::vector<Carried> carried = carried_over(program_, program_.steady_first, program_.steady_end);
      for (int step = 0; step < options_.steady_steps && !replay_.out_of_memory; ++step) {
        const bool last = step + 1 == options_.steady_steps;
        measuring_ = last;
        if (step > 0) move_carried(carried);
        walk_range(program_.steady_first, program_.steady_end);
        measuring_ = false;
        replay_.resident = allocator_.now().allocated;
      }
      walk_range(program_.steady_end, static_cast<OpId>(program_.ops.size()));
    }
    replay_.job_reserved_peak = allocator_.peak().reserved;
    collect_peak();
    return std::move(replay_);
  }

 private:
  void prepare_pool() {
    if (options_.workspaces_first) {
      for (int i = 0; i < 2; ++i) {
        if (const auto block = allocator_.malloc(Bytes(std::int64_t{32} << 20))) allocator_.free(*block);
      }
    }
    if (options_.hole.count > 0) {
      if (const auto block = allocator_.malloc(options_.hole)) allocator_.free(*block);
    }
  }

  void move_carried(const std::vector<Carried>& carried) {
    for (const Carried& pair : carried) {
      blocks_[pair.freed] = std::exchange(blocks_[pair.allocated], BlockId::empty);
      live_[pair.freed] = true;
      live_[pair.allocated] = false;
    }
  }

  // Runs a range, its repeated micro-batches as often as it takes for the pool to settle.
  void walk_range(OpId first, OpId end) {
    OpId next = first;
    for (const Repeat& repeat : program_.repeats) {
      if (repeat.first < first || repeat.end > end) continue;
      walk_ops(next, repeat.end);
      const std::vector<Carried> carried = carried_over(program_, repeat.first, repeat.end);
      for (std::int64_t i = 1; i < std::min<std::int64_t>(repeat.count, 3); ++i) {
        move_carried(carried);
        walk_ops(repeat.first, repeat.end);
      }
      next = repeat.end;
    }
    walk_ops(next, end);
  }

  void walk_ops(OpId first, OpId end) {
    for (OpId id = first; id < end && !replay_.out_of_memory; ++id) {
      if (!phase_ || id >= phase_end_ || id < phase_first_) enter_phase(id);
      const Action& action = program_.ops[id].action;
      if (const auto* alloc = std::get_if<Alloc>(&action)) {
        allocate(id, alloc->buffer);
      } else if (const auto* free = std::get_if<Free>(&action)) {
        release(free->buffer);
      } else if (std::holds_alternative<EmptyCache>(action)) {
        allocator_.empty_cache();
      }
    }
    close_phase();
  }

  void allocate(OpId id, BufferId buffer) {
    const BufferDecl& decl = program_.buffers[buffer];
    if (decl.pool == Lane::host) {
      host_.allocate(decl);
      live_[buffer] = true;
      note_host_peak();
      return;
    }
    if (options_.gather_lag > 0) let_go(decl.pool);
    const auto block = allocator_.malloc(decl.size, static_cast<int>(decl.pool));
    if (!block) {
      replay_.out_of_memory = true;
      replay_.failed_op = id;
      return;
    }
    blocks_[buffer] = *block;
    live_[buffer] = true;
    sizes_ += rounded(decl);
    const Bytes now = allocator_.now().allocated;
    if (now > phase_->allocated_peak) {
      phase_->allocated_peak = now;
      phase_->peak_op = id;
    }
    phase_->requested_peak = std::max(phase_->requested_peak, sizes_);
    phase_->reserved_peak = std::max(phase_->reserved_peak, allocator_.now().reserved);
    if (measuring_ && now > replay_.allocated_peak) {
      replay_.allocated_peak = now;
      replay_.peak_op = id;
      replay_.peak_phase = phase_->name;
    }
    if (measuring_) replay_.reserved_peak = std::max(replay_.reserved_peak, allocator_.now().reserved);
  }

  // Pageable and pinned bytes are highest at different moments: what the process holds is their sum at one of them.
  void note_host_peak() {
    if (host_.unpinned() + host_.pinned() < phase_->host_unpinned_at_peak + phase_->host_pinned_at_peak) return;
    phase_->host_unpinned_at_peak = host_.unpinned();
    phase_->host_pinned_at_peak = host_.pinned();
  }

  void release(BufferId buffer) {
    if (!live_[buffer]) return;  // made anew in an earlier run of a repeated range and already handed over
    live_[buffer] = false;
    const BufferDecl& decl = program_.buffers[buffer];
    if (decl.pool == Lane::host) {
      host_.free(decl);
      return;
    }
    const BlockId block = std::exchange(blocks_[buffer], BlockId::empty);
    sizes_ -= rounded(decl);
    if (options_.gather_lag > 0 && decl.pool == Lane::gather) {
      allocator_.retire(block);
      retired_.push_back({block, 0});
    } else {
      allocator_.free(block);
    }
  }

  // A weight that the compute stream still reads comes back to its pool only some gathers later.
  void let_go(Lane pool) {
    if (pool != Lane::gather) return;
    for (auto& [block, age] : retired_) ++age;
    while (!retired_.empty() && retired_.front().second > options_.gather_lag) {
      allocator_.reclaim(retired_.front().first);
      retired_.pop_front();
    }
  }

  void enter_phase(OpId id) {
    close_phase();
    const auto span = std::upper_bound(program_.phases.begin(), program_.phases.end(), id,
                                       [](OpId value, const PhaseSpan& phase) { return value < phase.end; });
    const bool known = span != program_.phases.end() && span->first <= id;
    const char* name = known ? span->name : "between phases";
    phase_first_ = known ? span->first : id;
    phase_end_ = known ? span->end : id + 1;
    auto found = std::find_if(replay_.phases.begin(), replay_.phases.end(),
                              [&](const PhaseMemory& p) { return p.name == name; });
    if (found == replay_.phases.end()) found = replay_.phases.insert(replay_.phases.end(), PhaseMemory{});
    phase_ = &*found;
    const Bytes now = allocator_.now().allocated;
    *phase_ = PhaseMemory{};
    phase_->name = name;
    phase_->peak_op = id;
    phase_->allocated_peak = now;
    phase_->reserved_peak = allocator_.now().reserved;
    phase_->requested_peak = sizes_;
    note_host_peak();
  }

  void close_phase() {
    if (!phase_) return;
    phase_->allocated_end = allocator_.now().allocated;
    phase_->reserved_end = allocator_.now().reserved;
    phase_->host_unpinned_end = host_.unpinned();
    phase_->host_pinned_end = host_.pinned();
    if (phase_->reserved_peak > job_peak_) {
      job_peak_ = phase_->reserved_peak;
      replay_.job_peak_phase = phase_->name;
    }
    phase_ = nullptr;
  }

  // Who is alive when the peak's op has allocated: one walk over the events before it.
  void collect_peak() {
    std::vector<bool> alive(program_.buffers.size());
    for (OpId id = 0; id <= replay_.peak_op && id < program_.ops.size(); ++id) {
      if (const auto* alloc = std::get_if<Alloc>(&program_.ops[id].action)) {
        alive[alloc->buffer] = true;
      } else if (const auto* free = std::get_if<Free>(&program_.ops[id].action)) {
        alive[free->buffer] = false;
      }
    }
    Bytes sum;
    for (BufferId id = 0; id < alive.size(); ++id) {
      const BufferDecl& decl = program_.buffers[id];
      if (!alive[id] || decl.pool == Lane::host) continue;
      replay_.live_at_peak.push_back(id);
      replay_.categories_at_peak[static_cast<std::size_t>(decl.category)] += rounded(decl);
      sum += rounded(decl);
    }
    replay_.slack_at_peak = replay_.allocated_peak - sum;
  }

  const RankProgram& program_;
  const ReplayOptions options_;
  CachingAllocator allocator_;
  HostMemory host_;
  Replay replay_;
  std::vector<BlockId> blocks_;
  std::vector<bool> live_;
  std::deque<std::pair<BlockId, int>> retired_;
  Bytes sizes_, job_peak_;
  PhaseMemory* phase_ = nullptr;
  OpId phase_first_ = 0, phase_end_ = 0;
  bool measuring_ = false;
};

}  // namespace

Replay replay_allocator(const RankProgram& program, const ReplayOptions& options) {
  return Walker(program, options).run();
}

Bytes peak_of_sizes(const RankProgram& program) {
  Bytes live, peak;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const Action& action = program.ops[id].action;
    if (const auto* alloc = std::get_if<Alloc>(&action)) {
      const BufferDecl& buffer = program.buffers[alloc->buffer];
      if (buffer.pool == Lane::host) continue;
      live += rounded(buffer);
      if (id >= program.steady_first) peak = std::max(peak, live);
    } else if (const auto* free = std::get_if<Free>(&action)) {
      const BufferDecl& buffer = program.buffers[free->buffer];
      if (buffer.pool != Lane::host) live -= rounded(buffer);
    }
  }
  return peak;
}

}  // namespace plimsoll
