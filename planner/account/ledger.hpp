// Does it fit, where does it break, and what is every byte?  The ledger of one rank and its node.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/account/replay.hpp"
#include "planner/spec/cluster.hpp"

namespace plimsoll {

enum class Verdict : std::uint8_t { fits, tight, oom };
const char* name_of(Verdict verdict);

struct Interval {
  Bytes low, high;
};

/// A byte figure, how it is known, and between what it may lie.
struct Figure {
  Bytes value;
  Interval interval;
  Evidence evidence = Evidence::assumed;
  /// What the replays of all that the plan does not fix give, before the margins that the interval adds.
  Interval replayed;
};

/// What the device holds beside the framework's pool.
struct OutsideFramework {
  Bytes context;    ///< CUDA context, loaded modules
  Bytes nccl;       ///< communicators and their channels
  Bytes libraries;  ///< engine's further code and streams; workspaces that its libraries take outside the pool
  Bytes beyond;     ///< how much more was measured than all this, at most; of intervals only
  Evidence evidence = Evidence::assumed;
  Bytes total() const { return context + nccl + libraries; }
};

/// What the ledger needs to know that the program does not say.
struct LedgerContext {
  Bytes capacity;  ///< of the device, as the driver reports it
  AllocatorRules rules;
  OutsideFramework outside;
  Evidence allocated_evidence = Evidence::assumed;
  Evidence reserved_evidence = Evidence::assumed;
  /// Relative, for what the replay cannot know (routing that changes from step to step): how far reserved may lie above and
  /// below it.
  double reserved_margin = 0, reserved_margin_below = 0;
  double allocated_margin = 0, allocated_margin_below = 0;  ///< likewise, of allocated
  /// What the plan does not fix, and is replayed in its alternatives: what earlier use left in the pool (plain PyTorch and
  /// FSDP2: two workspaces or not, a hole of 0, 20 or 60 MiB; the largest is nearest to what was measured), or how late
  /// gathered weights come back (ZeRO-3: 0 to 24 gathers later).
  enum class Unknown : std::uint8_t { nothing, past, lateness } unknown = Unknown::nothing;
  bool in_arena = false;  ///< the engine lays out all buffers in one block beforehand (planner/account/arena.hpp)
  bool bistable = true;   ///< false: the first alternative alone, for searches that compare many plans
  int threads = 1;        ///< on which the alternatives are replayed
  Bytes host_capacity;    ///< of a node
  int ranks_per_node = 1;
  /// Resident bytes of the process itself at the end of a phase, without tensors; and the part shared by a node's ranks.
  std::map<std::string, Bytes> host_base;
  Bytes host_base_shared;
};

struct HostPhase {
  std::string name;
  Bytes resident_end, resident_peak, pinned;
};

struct Ledger {
  Verdict verdict = Verdict::fits;
  Verdict gpu_verdict = Verdict::fits;
  Verdict host_verdict = Verdict::fits;
  Bytes capacity, margin;
  Figure allocated_peak, reserved_peak, device_peak, job_device_peak;
  std::string peak_phase, job_peak_phase;
  std::string breaks_phase, breaks_tensor;  ///< where it does not fit
  bool breaks_on_host = false;
  OutsideFramework outside;
  Replay replay;                ///< the central replay
  std::vector<HostPhase> host;  ///< per rank, with the process
  Bytes host_per_node, host_capacity;
  std::map<std::string, Bytes> host_categories;  ///< at the node's peak
};

/// What the job of one rank reserves and holds, as its engine takes memory: by the caching allocator, or (context.in_arena) in one
/// arena laid out beforehand.  The one answer to "what is reserved"; a first alternative of what the plan does not fix.
Replay replay_job(const RankProgram& program, const LedgerContext& context);

Ledger make_ledger(const RankProgram& program, const LedgerContext& context);

/// One live tensor at the peak, or several equal ones.
struct LiveTensors {
  std::string name, formula;
  Category category = Category::activations;
  Bytes bytes;  ///< of one
  int count = 1;
  int first_layer = -1, last_layer = -1;
};
/// What is alive at the ledger's peak, largest sum first; equal tensors of several layers are one row.
/// @param least rows of smaller tensors are left out
std::vector<LiveTensors> live_at_peak(const RankProgram& program, const Replay& replay, Bytes least);

/// "N V x 4 B = 4096 x 128256 x 4 B"
std::string formula_of(const BufferDecl& buffer);

}  // namespace plimsoll
