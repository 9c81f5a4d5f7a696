// What do the framework's own counters read, phase by phase?  The program's Alloc and Free events, replayed through the
// caching allocator: construction, first step, and steady steps until the pool has settled; the last steady step is read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/account/allocator_rules.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

class MemoryEvents;

/// What a pinned buffer takes on the host: the next power of two.
Bytes pinned_block(const BufferDecl& buffer);

/// What a phase of the job leaves and reaches.  Host figures are tensors only, without the process itself.
struct PhaseMemory {
  std::string name;
  Bytes allocated_end, allocated_peak;
  Bytes reserved_end, reserved_peak;
  Bytes requested_peak;                      ///< sum of 512-byte-rounded sizes at its highest, no block remainders
  Bytes host_unpinned_end, host_pinned_end;  ///< pinned: blocks rounded to powers of two, freed ones still cached
  Bytes host_unpinned_at_peak, host_pinned_at_peak;  ///< at the moment at which their sum is highest
  OpId peak_op = 0;                                  ///< the allocation at which allocated_peak was reached
};

/// How the replay is started and how late frees are; alternatives of what the plan does not fix.
struct ReplayOptions {
  AllocatorRules rules{};
  int steady_steps = 3;
  Bytes hole{};                   ///< a free block of this size in the pool before anything else
  bool workspaces_first = false;  ///< GEMM workspaces are in the pool from an earlier run of the process
  int gather_lag = 0;  ///< a freed block of a side stream returns to its pool this many allocations of it later
};

struct Replay {
  std::vector<PhaseMemory> phases;  ///< in order of first appearance; steady ones of the last steady step
  bool out_of_memory = false;       ///< with a capacity only: the op that failed
  OpId failed_op = 0;
  Bytes allocated_peak;  ///< over a steady step
  Bytes reserved_peak;   ///< over a steady step
  Bytes job_reserved_peak;
  std::optional<Bytes> alive_in_arena;  ///< of an arena, which then is what is reserved: the highest sum of live blocks
  Bytes resident;                       ///< allocated when a steady step ends
  OpId peak_op = 0;                     ///< in the steady step
  std::string peak_phase, job_peak_phase;
  std::array<Bytes, category_count> categories_at_peak{};  ///< of 512-rounded sizes
  Bytes slack_at_peak;  ///< allocated_peak minus the categories: remainders of blocks that were not split
  std::vector<BufferId> live_at_peak;  ///< GPU buffers alive at peak_op
};

/// Replays the whole job.
Replay replay_allocator(const RankProgram& program, const ReplayOptions& options = {});
/// The same for a program whose events have been gathered (planner/account/memory_events.hpp), to replay it several times.
Replay replay_allocator(const RankProgram& program, const MemoryEvents& events, const ReplayOptions& options);

/// Without an allocator: the highest sum of 512-rounded sizes over the steady step, from what is live when it begins.
/// Never above what the replay gives; used by searches to discard.
Bytes peak_of_sizes(const RankProgram& program);

}  // namespace plimsoll
