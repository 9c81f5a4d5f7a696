// The walk over the job's Alloc and Free events (planner/account/replay.hpp).
#include "planner/account/replay.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <utility>

#include "planner/account/allocator.hpp"
#include "planner/account/memory_events.hpp"
#include "planner/base/give_up.hpp"

namespace plimsoll {

namespace {

constexpr std::int64_t unit = 512;

Bytes rounded(Bytes size) { return Bytes(std::max(unit, round_up(size.count, unit))); }
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
  bool operator==(const HostMemory&) const = default;

 private:
  struct Power {
    int used = 0, held = 0;
    bool operator==(const Power&) const = default;
  };
  std::map<std::int64_t, Power> powers_;
  Bytes unpinned_, pinned_;
};

/// All that decides what the events to come make of the memory: which blocks lie where, whose they are, what waits for
/// another stream, and what the host holds.
struct MemoryState {
  std::vector<CachingAllocator::Placed> blocks;
  std::vector<BufferId> owners;  ///< of the blocks in use, in the order of `blocks`
  std::int64_t next_address = 0;
  std::vector<BufferId> without_block;  ///< live on the host, or empty
  HostMemory host;
  std::vector<std::pair<std::int64_t, int>> retired;  ///< address and age
  bool operator==(const MemoryState&) const = default;
};

/// Walks the events of the job.  A range that runs again and leaves everything as its last run did would do so forever: its
/// further runs are left out.
class Walker {
 public:
  Walker(const RankProgram& program, const MemoryEvents& events, const ReplayOptions& options)
      : program_(program),
        options_(options),
        events_(events),
        allocator_(options.rules),
        carried_(program.repeats.size()) {
    held_.reserve(program.buffers.size());
    for (const BufferDecl& buffer : program.buffers) held_.push_back({buffer.size, BlockId::empty, buffer.pool, false});
  }

  Replay run() {
    prepare_pool();
    walk_range(0, program_.steady_first);
    if (program_.steady_end > program_.steady_first) walk_steady_steps();
    if (replay_.allocated_peak.count > 0) replay_.peak_phase = phase_at(replay_.peak_op).name;
    replay_.job_reserved_peak = allocator_.peak().reserved;
    collect_peak();
    return std::move(replay_);
  }

 private:
  // What is read is the last of them, or the second of two that leave the same.
  void walk_steady_steps() {
    const OpId first = program_.steady_first, end = program_.steady_end;
    const std::vector<Carried> carried = carried_over(program_, events_.of(first, end));
    MemoryState earlier;
    for (int step = 0; step < options_.steady_steps && !replay_.out_of_memory; ++step) {
      if (step > 0) move_carried(carried);
      forget_measured();
      measuring_ = true;
      walk_range(first, end);
      measuring_ = false;
      replay_.resident = allocator_.now().allocated;
      if (step + 1 == options_.steady_steps) break;
      if (replay_.out_of_memory) forget_measured();
      if (options_.steady_steps > 2 && left_as(earlier) && step > 0) break;
    }
    walk_range(end, static_cast<OpId>(program_.ops.size()));
  }

  void forget_measured() {
    replay_.allocated_peak = replay_.reserved_peak = Bytes(0);
    replay_.peak_op = 0;
  }

  // True if the memory is as it was the last time; keeps how it is.
  bool left_as(MemoryState& earlier) {
    // Collecting garbage goes by age, which grows with every search.
    if (options_.rules.capacity && options_.rules.garbage_collection_threshold > 0) return false;
    MemoryState now;
    allocator_.place_blocks(now.blocks, now.next_address);
    for (CachingAllocator::Placed& placed : now.blocks) {
      if (placed.block == BlockId::empty) continue;
      const BufferId owner = owners_[static_cast<std::size_t>(placed.block)];
      now.owners.push_back(held_[owner].block == placed.block ? owner : none);
      placed.block = BlockId::empty;  // ids say nothing about what is to come
    }
    for (BufferId buffer = 0; buffer < held_.size(); ++buffer)
      if (held_[buffer].live && held_[buffer].block == BlockId::empty) now.without_block.push_back(buffer);
    now.host = host_;
    for (const Retired& retired : retired_) now.retired.emplace_back(retired.address, retired.age);
    const bool same = now == earlier;
    earlier = std::move(now);
    return same;
  }

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
      held_[pair.freed].block = std::exchange(held_[pair.allocated].block, BlockId::empty);
      own(held_[pair.freed].block, pair.freed);
      held_[pair.freed].live = true;
      held_[pair.allocated].live = false;
    }
  }

  void own(BlockId block, BufferId buffer) {
    if (block == BlockId::empty) return;
    const auto id = static_cast<std::size_t>(block);
    if (owners_.size() <= id) owners_.resize(2 * id + 1);
    owners_[id] = buffer;
  }

  // Runs a range, its repeated micro-batches as often as it takes for the pool to settle.
  void walk_range(OpId first, OpId end) {
    OpId next = first;
    for (std::size_t i = 0; i < program_.repeats.size(); ++i) {
      const Repeat& repeat = program_.repeats[i];
      if (repeat.first < first || repeat.end > end) continue;
      walk_ops(next, repeat.end);
      if (carried_[i].empty()) carried_[i] = carried_over(program_, events_.of(repeat.first, repeat.end));
      const std::int64_t runs = std::min<std::int64_t>(repeat.count, 3);
      MemoryState earlier;
      if (runs > 2) left_as(earlier);
      for (std::int64_t run = 1; run < runs; ++run) {
        move_carried(carried_[i]);
        walk_ops(repeat.first, repeat.end);
        if (run + 1 < runs && left_as(earlier)) break;
      }
      next = repeat.end;
    }
    walk_ops(next, end);
  }

  void walk_ops(OpId first, OpId end) {
    const std::span<const MemoryEvent> events = events_.of(first, end);
    auto event = events.begin();
    for (OpId id = first; id < end && !replay_.out_of_memory; id = phase_end_) {
      give_up_if_unwanted();
      enter_phase(id);
      for (; event != events.end() && event->op < phase_end_ && !replay_.out_of_memory; ++event) {
        switch (event->kind) {
          case MemoryEvent::Kind::alloc: allocate(event->op, event->buffer); break;
          case MemoryEvent::Kind::free: release(event->buffer); break;
          case MemoryEvent::Kind::empty_cache: allocator_.empty_cache(); break;
        }
      }
    }
    close_phase();
  }

  void allocate(OpId id, BufferId buffer) {
    Held& held = held_[buffer];
    held.live = true;
    if (held.pool == Lane::host) {
      host_.allocate(program_.buffers[buffer]);
      note_host_peak();
      return;
    }
    if (options_.gather_lag > 0) let_go(held.pool);
    const auto block = allocator_.malloc(held.size, static_cast<int>(held.pool));
    if (!block) {
      held.live = false;
      replay_.out_of_memory = true;
      replay_.failed_op = id;
      return;
    }
    held.block = *block;
    own(*block, buffer);
    sizes_ += rounded(held.size);
    const Bytes now = allocator_.now().allocated, reserved = allocator_.now().reserved;
    if (now > phase_->allocated_peak) {
      phase_->allocated_peak = now;
      phase_->peak_op = id;
    }
    phase_->requested_peak = std::max(phase_->requested_peak, sizes_);
    phase_->reserved_peak = std::max(phase_->reserved_peak, reserved);
    if (!measuring_) return;
    if (now > replay_.allocated_peak) {
      replay_.allocated_peak = now;
      replay_.peak_op = id;
    }
    replay_.reserved_peak = std::max(replay_.reserved_peak, reserved);
  }

  // Pageable and pinned bytes are highest at different moments: what the process holds is their sum at one of them.
  void note_host_peak() {
    if (host_.unpinned() + host_.pinned() < phase_->host_unpinned_at_peak + phase_->host_pinned_at_peak) return;
    phase_->host_unpinned_at_peak = host_.unpinned();
    phase_->host_pinned_at_peak = host_.pinned();
  }

  void release(BufferId buffer) {
    Held& held = held_[buffer];
    if (!held.live) return;  // made anew in an earlier run of a repeated range and already handed over
    held.live = false;
    if (held.pool == Lane::host) {
      host_.free(program_.buffers[buffer]);
      return;
    }
    const BlockId block = std::exchange(held.block, BlockId::empty);
    sizes_ -= rounded(held.size);
    if (options_.gather_lag > 0 && held.pool == Lane::gather) {
      allocator_.retire(block);
      retired_.push_back({block, allocator_.address_of(block), 0});
    } else {
      allocator_.free(block);
    }
  }

  // A weight that the compute stream still reads comes back to its pool only some gathers later.
  void let_go(Lane pool) {
    if (pool != Lane::gather) return;
    for (Retired& retired : retired_) ++retired.age;
    while (!retired_.empty() && retired_.front().age > options_.gather_lag) {
      allocator_.reclaim(retired_.front().block);
      retired_.pop_front();
    }
  }

  PhaseSpan phase_at(OpId id) const {
    const auto span = std::upper_bound(program_.phases.begin(), program_.phases.end(), id,
                                       [](OpId value, const PhaseSpan& phase) { return value < phase.end; });
    const bool known = span != program_.phases.end() && span->first <= id;
    return known ? *span : PhaseSpan{"between phases", id, id + 1};
  }

  void enter_phase(OpId id) {
    close_phase();
    const PhaseSpan span = phase_at(id);
    const char* name = span.name;
    phase_end_ = span.end;
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
    for (const MemoryEvent& event : events_.of(0, replay_.peak_op + 1)) {
      if (event.kind != MemoryEvent::Kind::empty_cache) alive[event.buffer] = event.kind == MemoryEvent::Kind::alloc;
    }
    Bytes sum;
    for (BufferId id = 0; id < alive.size(); ++id) {
      const BufferDecl& decl = program_.buffers[id];
      if (!alive[id] || decl.pool == Lane::host) continue;
      replay_.live_at_peak.push_back(id);
      replay_.categories_at_peak[static_cast<std::size_t>(decl.category)] += rounded(decl.size);
      sum += rounded(decl.size);
    }
    replay_.slack_at_peak = replay_.allocated_peak - sum;
  }

  static constexpr BufferId none = ~BufferId{0};
  /// A buffer and the block it holds.
  struct Held {
    Bytes size;
    BlockId block = BlockId::empty;
    Lane pool = Lane::compute;
    bool live = false;
  };
  /// A block that another stream still uses.
  struct Retired {
    BlockId block = BlockId::empty;
    std::int64_t address = 0;
    int age = 0;
  };

  const RankProgram& program_;
  const ReplayOptions options_;
  const MemoryEvents& events_;
  CachingAllocator allocator_;
  HostMemory host_;
  Replay replay_;
  std::vector<Held> held_;                     ///< by buffer
  std::vector<BufferId> owners_;               ///< by block
  std::vector<std::vector<Carried>> carried_;  ///< by repeat
  std::deque<Retired> retired_;
  Bytes sizes_, job_peak_;
  PhaseMemory* phase_ = nullptr;
  OpId phase_end_ = 0;
  bool measuring_ = false;
};

}  // namespace

Bytes pinned_block(const BufferDecl& buffer) {
  return Bytes(static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, buffer.size.count)))));
}

Replay replay_allocator(const RankProgram& program, const ReplayOptions& options) {
  return replay_allocator(program, MemoryEvents(program), options);
}

Replay replay_allocator(const RankProgram& program, const MemoryEvents& events, const ReplayOptions& options) {
  return Walker(program, events, options).run();
}

Bytes peak_of_sizes(const RankProgram& program) {
  Bytes live, peak;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const Action& action = program.ops[id].action;
    if (const auto* alloc = std::get_if<Alloc>(&action)) {
      const BufferDecl& buffer = program.buffers[alloc->buffer];
      if (buffer.pool == Lane::host) continue;
      live += rounded(buffer.size);
      if (id >= program.steady_first) peak = std::max(peak, live);
    } else if (const auto* free = std::get_if<Free>(&action)) {
      const BufferDecl& buffer = program.buffers[free->buffer];
      if (buffer.pool != Lane::host) live -= rounded(buffer.size);
    }
  }
  return peak;
}

}  // namespace plimsoll
