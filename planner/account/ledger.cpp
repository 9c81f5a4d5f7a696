// From replays to figures, intervals and a verdict (planner/account/ledger.hpp).
#include "planner/account/ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "planner/account/arena.hpp"
#include "planner/account/device_constants.hpp"
#include "planner/account/memory_events.hpp"
#include "planner/account/tight.hpp"
#include "planner/base/in_parallel.hpp"

namespace plimsoll {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return "fits";
    case Verdict::tight: return "tight";
    case Verdict::oom: return "oom";
  }
  return "";
}

namespace {

/// From where on the higher of two pasts is told instead of the lower: a plan must stand it.  Below, the interval says enough:
/// processes of their own, whose pools are empty, reserved what an empty pool gives, up to 9 % less than another past.  One
/// measured run that shared its process parts by 22 %, and had reserved the higher.
constexpr double bistable_share = 0.1;
/// After how many more gathers a weight that was let go has been seen to come back, by the allocator's events of four ZeRO-3
/// steps.  Where the host bounds: 0 nine times in ten, at most 5.  Where the device does and the host runs ahead: every
/// second one later, 19 of 20 by the 12th, 12th and 27th.
constexpr int gather_lags[] = {1, 3, 12, 24};

Bytes scaled(Bytes value, double factor) {
  return Bytes(static_cast<std::int64_t>(static_cast<double>(value.count) * factor));
}

struct Reach {
  Interval allocated, reserved, job;
  void include(const Replay& replay) {
    const auto widen = [](Interval& interval, Bytes value) {
      interval.low = std::min(interval.low, value);
      interval.high = std::max(interval.high, value);
    };
    widen(allocated, replay.allocated_peak);
    widen(reserved, replay.reserved_peak);
    widen(job, replay.job_reserved_peak);
  }
};

/// The alternatives of what the plan does not fix.  `central` is a process of its own, whose pool is empty when it starts; but
/// where another past makes it reserve more than a tenth more, that becomes `central`: a plan must stand it.
Reach alternatives(const RankProgram& program, const MemoryEvents& events, const LedgerContext& context,
                   Replay& central) {
  Reach reach{{central.allocated_peak, central.allocated_peak},
              {central.reserved_peak, central.reserved_peak},
              {central.job_reserved_peak, central.job_reserved_peak}};
  if (!context.bistable || context.unknown == LedgerContext::Unknown::nothing) return reach;
  std::vector<ReplayOptions> options;
  if (context.unknown == LedgerContext::Unknown::lateness) {
    for (const int lag : gather_lags) options.push_back({.rules = context.rules, .gather_lag = lag});
  } else {
    for (const bool workspaces : {false, true}) {
      for (const std::int64_t mebibytes : {0, 20, 60}) {
        if (!workspaces && mebibytes == 0) continue;
        options.push_back({.rules = context.rules, .hole = Bytes(mebibytes << 20), .workspaces_first = workspaces});
      }
    }
  }
  std::vector<Replay> replays(options.size());
  in_parallel(context.threads, options.size(),
              [&](std::size_t i) { replays[i] = replay_allocator(program, events, options[i]); });
  for (const Replay& replay : replays) reach.include(replay);
  if (context.unknown == LedgerContext::Unknown::past) {
    const auto highest = std::max_element(replays.begin(), replays.end(), [](const Replay& a, const Replay& b) {
      return a.reserved_peak < b.reserved_peak;
    });
    if (highest->reserved_peak > scaled(central.reserved_peak, 1 + bistable_share)) central = std::move(*highest);
  }
  return reach;
}

Replay replay_job(const RankProgram& program, const MemoryEvents& events, const LedgerContext& context) {
  Replay replay = replay_allocator(program, events, {.rules = context.rules});
  if (!context.in_arena) return replay;
  // One block holds every buffer from construction to the end.
  const ArenaPlan arena = plan_arena(program);
  replay.reserved_peak = replay.job_reserved_peak = arena.size;
  replay.alive_in_arena = arena.least;
  for (PhaseMemory& phase : replay.phases) phase.reserved_end = phase.reserved_peak = arena.size;
  return replay;
}

Bytes highest_pinned(const Replay& replay) {
  Bytes highest;
  for (const PhaseMemory& phase : replay.phases) highest = std::max(highest, phase.host_pinned_at_peak);
  return highest;
}

void account_host(Ledger& ledger, const LedgerContext& context) {
  Bytes highest;
  Bytes base;
  const HostPhase* worst = nullptr;
  ledger.host.reserve(ledger.replay.phases.size());
  for (const PhaseMemory& phase : ledger.replay.phases) {
    const auto found = context.host_base.find(phase.name);
    if (found != context.host_base.end()) base = found->second;
    ledger.host.push_back({phase.name, base + phase.host_unpinned_end + phase.host_pinned_end,
                           base + phase.host_unpinned_at_peak + phase.host_pinned_at_peak, phase.host_pinned_end});
    if (ledger.host.back().resident_peak > highest) {
      highest = ledger.host.back().resident_peak;
      worst = &ledger.host.back();
      ledger.host_categories["process"] = base;
      ledger.host_categories["pinned"] = phase.host_pinned_at_peak;
      ledger.host_categories["pageable"] = phase.host_unpinned_at_peak;
    }
  }
  const Bytes shared = std::min(context.host_base_shared, highest);
  ledger.host_per_node = (highest - shared) * context.ranks_per_node + shared;
  ledger.host_capacity = context.host_capacity;
  if (context.host_capacity.count == 0 || !worst) return;
  if (ledger.host_per_node > context.host_capacity) {
    ledger.host_verdict = Verdict::oom;
  } else if (ledger.host_per_node > scaled(context.host_capacity, 1 - tight_share)) {
    ledger.host_verdict = Verdict::tight;
  }
  if (ledger.host_verdict != Verdict::fits && ledger.host_verdict > ledger.gpu_verdict) {
    ledger.breaks_on_host = true;
    ledger.breaks_phase = worst->name;
    ledger.breaks_tensor = "host memory of the node's ranks";
  }
}

/// The largest tensor alive at the peak: what one would have to shrink.
std::string largest_at_peak(const RankProgram& program, const Replay& replay) {
  const BufferDecl* largest = nullptr;
  for (const BufferId id : replay.live_at_peak) {
    if (!largest || program.buffers[id].size > largest->size) largest = &program.buffers[id];
  }
  return largest ? largest->name : "";
}

std::string phase_of(const RankProgram& program, OpId op) {
  for (const PhaseSpan& phase : program.phases) {
    if (op >= phase.first && op < phase.end) return phase.name;
  }
  return {};
}

/// Routing changes what the steps reserve, not what construction and saving do.
bool is_step(const std::string& phase) { return phase.starts_with("first_step_") || phase.starts_with("steady_"); }

/// The verdict on the device: does the job fit when the allocator is bounded by what is left to it?
void judge_device(Ledger& ledger, const RankProgram& program, const MemoryEvents& events,
                  const LedgerContext& context) {
  ledger.margin = context.capacity - ledger.job_device_peak.value;
  if (ledger.job_device_peak.interval.high >= context.capacity ||
      ledger.margin < scaled(context.capacity, tight_share)) {
    ledger.gpu_verdict = Verdict::tight;
    const bool by_routing = !is_step(ledger.job_peak_phase) && ledger.device_peak.interval.high >= context.capacity;
    ledger.breaks_phase = by_routing ? ledger.peak_phase : ledger.job_peak_phase;
    ledger.breaks_tensor = largest_at_peak(program, ledger.replay);
  }
  if (ledger.margin.count >= 0) return;
  if (context.in_arena) {
    ledger.gpu_verdict = Verdict::oom;
    return;
  }
  ReplayOptions bounded{.rules = context.rules};
  bounded.rules.capacity = std::max(Bytes(0), context.capacity - ledger.outside.total());
  const Replay replay = replay_allocator(program, events, bounded);
  if (!replay.out_of_memory) return;
  ledger.gpu_verdict = Verdict::oom;
  ledger.breaks_phase = phase_of(program, replay.failed_op);
  if (const auto* alloc = std::get_if<Alloc>(&program.ops[replay.failed_op].action)) {
    ledger.breaks_tensor = program.buffers[alloc->buffer].name;
  }
}

}  // namespace

Replay replay_job(const RankProgram& program, const LedgerContext& context) {
  return replay_job(program, MemoryEvents(program), context);
}

Ledger make_ledger(const RankProgram& program, const LedgerContext& context) {
  Ledger ledger;
  ledger.capacity = context.capacity;
  ledger.outside = context.outside;
  const MemoryEvents events(program);
  ledger.replay = replay_job(program, events, context);
  ledger.outside.libraries += pinned_page_tables(highest_pinned(ledger.replay));
  const Reach reach = alternatives(program, events, context, ledger.replay);
  const Replay& replay = ledger.replay;
  const Bytes outside = ledger.outside.total();
  const auto above = [&](Bytes value) { return scaled(value, 1 + context.reserved_margin); };
  const auto below = [&](Bytes value) { return scaled(value, 1 - context.reserved_margin_below); };
  ledger.allocated_peak = {replay.allocated_peak,
                           {scaled(reach.allocated.low, 1 - context.allocated_margin_below),
                            scaled(reach.allocated.high, 1 + context.allocated_margin)},
                           context.allocated_evidence,
                           reach.allocated};
  // What is allocated is reserved.
  ledger.reserved_peak = {
      replay.reserved_peak,
      {std::max(below(reach.reserved.low), ledger.allocated_peak.interval.low), above(reach.reserved.high)},
      context.reserved_evidence,
      reach.reserved};
  const Evidence device = std::max(context.reserved_evidence, context.outside.evidence);
  const auto with_outside = [&](Interval reserved, Bytes beyond) {
    return Interval{reserved.low + outside, reserved.high + outside + beyond};
  };
  const auto on_device = [&](Bytes value, Interval interval, Interval replayed) {
    return Figure{value + outside, with_outside(interval, context.outside.beyond), device,
                  with_outside(replayed, Bytes(0))};
  };
  ledger.device_peak = on_device(replay.reserved_peak, ledger.reserved_peak.interval, reach.reserved);
  const bool in_step = is_step(replay.job_peak_phase);
  const Interval job{in_step ? std::max(below(reach.job.low), ledger.allocated_peak.interval.low) : reach.job.low,
                     std::max(in_step ? above(reach.job.high) : reach.job.high, ledger.reserved_peak.interval.high)};
  ledger.job_device_peak = on_device(replay.job_reserved_peak, job, reach.job);
  ledger.peak_phase = replay.peak_phase;
  ledger.job_peak_phase = replay.job_peak_phase;
  judge_device(ledger, program, events, context);
  account_host(ledger, context);
  ledger.verdict = std::max(ledger.gpu_verdict, ledger.host_verdict);
  return ledger;
}

std::string formula_of(const BufferDecl& buffer) {
  std::string letters, numbers;
  for (int i = 0; i < buffer.shape.rank; ++i) {
    const Dim dim = buffer.shape.dim(i);
    const char* letter = letter_of(dim.symbol);
    letters += fmt::format("{}{}", i ? " " : "", *letter ? letter : fmt::format("{}", dim.size));
    numbers += fmt::format("{}{}", i ? " x " : "", dim.size);
  }
  const std::int64_t width = size_of(buffer.dtype);
  if (buffer.shape.rank == 0) return fmt::format("{} B", width);
  if (letters == numbers) return fmt::format("{} x {} B", numbers, width);
  return fmt::format("{} x {} B = {} x {} B", letters, width, numbers, width);
}

std::vector<LiveTensors> live_at_peak(const RankProgram& program, const Replay& replay, Bytes least) {
  std::map<std::tuple<std::string, std::int64_t, Category>, LiveTensors> rows;
  for (const BufferId id : replay.live_at_peak) {
    const BufferDecl& buffer = program.buffers[id];
    if (buffer.size < least) continue;
    LiveTensors& row = rows[{buffer.name, buffer.size.count, buffer.category}];
    if (row.bytes.count == 0) {
      row = {buffer.name, formula_of(buffer), buffer.category, buffer.size, 0, buffer.layer, buffer.layer};
    }
    ++row.count;
    row.first_layer = std::min<int>(row.first_layer, buffer.layer);
    row.last_layer = std::max<int>(row.last_layer, buffer.layer);
  }
  std::vector<LiveTensors> result;
  result.reserve(rows.size());
  for (auto& [key, row] : rows) result.push_back(std::move(row));
  std::stable_sort(result.begin(), result.end(), [](const LiveTensors& a, const LiveTensors& b) {
    return a.bytes * static_cast<std::int64_t>(a.count) > b.bytes * static_cast<std::int64_t>(b.count);
  });
  return result;
}

}  // namespace plimsoll
