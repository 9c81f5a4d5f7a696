// Results of a simulation (simulator/summary.hpp).
//
// Exposed time: where the compute lane stands still before an op, the gap is divided along the chain of what that op waited
// for.  While the gather that it waited for ran, the gap is the gather's; before the gather ran, it belongs to what the gather
// waited for, and so on back to the gap's begin.  What is left where the chain leads to a rank that still computes, whose
// peers wait for it at a collective, is the bubble.
//
// What bounds the step: every moment of the critical path is an op that runs, or a host that has not yet issued the next one.
// The kind that makes up most of it bounds the step.
#include "simulator/summary.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace plimsoll {

namespace {

constexpr std::uint32_t none = ~0u;

enum class Share : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  host,
  offload,
  bubble,
  compute
};
constexpr std::size_t share_count = 9;
constexpr std::array<const char*, share_count> share_names{
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "host", "offload", "bubble", "compute"};

Share share_of(const RankProgram& program, const TimedOp& op) {
  const Action& action = program.ops[op.op].action;
  if (const auto* collective = std::get_if<Collective>(&action)) {
    switch (collective->kind) {
      case CollectiveKind::all_gather: return Share::all_gather;
      case CollectiveKind::reduce_scatter: return Share::reduce_scatter;
      case CollectiveKind::all_reduce: return Share::all_reduce;
      case CollectiveKind::all_to_all: return Share::all_to_all;
      case CollectiveKind::broadcast: return Share::broadcast;
    }
  }
  if (std::holds_alternative<HostCopy>(action)) return Share::offload;
  if (const auto* work = std::get_if<HostWork>(&action))
    return work->kind == HostWorkKind::cpu_adam ? Share::offload : Share::host;
  return op.lane == Lane::host ? Share::host : Share::compute;
}

class Summary {
 public:
  Summary(Timeline& timeline, const std::vector<const RankProgram*>& programs, SimTime kernel_gap)
      : timeline_(timeline), programs_(programs), kernel_gap_(kernel_gap) {}

  void run() {
    std::uint32_t last = none;
    for (std::uint32_t i = 0; i < timeline_.ops.size(); ++i) {
      if (last == none || timeline_.ops[i].end > timeline_.ops[last].end) last = i;
    }
    if (last == none) return;
    timeline_.slowest = timeline_.ops[last].class_index;
    account_exposed();
    for (std::uint32_t at = last; at != none; at = timeline_.ops[at].waited_for) timeline_.critical_path.push_back(at);
    std::reverse(timeline_.critical_path.begin(), timeline_.critical_path.end());
    measure_lanes();
    timeline_.bound_by = most_of_the_path();
  }

 private:
  const RankProgram& program_of(const TimedOp& op) const { return *programs_[op.class_index]; }

  void account_exposed() {
    std::array<SimTime, share_count> exposed{};
    SimTime before = 0;
    for (const TimedOp& op : timeline_.ops) {
      if (op.class_index != timeline_.slowest || op.lane != Lane::compute) continue;
      if (op.start - before > kernel_gap_) divide(op, before, exposed);
      const Share share = share_of(program_of(op), op);
      if (share != Share::compute) exposed[static_cast<std::size_t>(share)] += op.end - op.start;
      before = op.end;
    }
    if (timeline_.step_time > before) exposed[static_cast<std::size_t>(Share::host)] += timeline_.step_time - before;
    for (std::size_t i = 0; i < share_count; ++i) {
      if (exposed[i] > 0 && i != static_cast<std::size_t>(Share::compute))
        timeline_.exposed[share_names[i]] = exposed[i];
    }
  }

  /// The gap from `before` to the op's start.  Kernels of other lanes (copies into and out of buckets) belong to what they
  /// waited for.
  void divide(const TimedOp& op, SimTime before, std::array<SimTime, share_count>& exposed) const {
    constexpr int most_hops = 16;  // a gap is the work of a few ops; chains of small copies end here
    SimTime end = op.start;        // [before, end) is still to be told
    const TimedOp* at = &op;
    bool at_peer = false;  // the chain has come to another rank
    for (int hop = 0; hop < most_hops && end > before; ++hop) {
      if (at->cause == Cause::host || at->cause == Cause::peer_host) {
        exposed[static_cast<std::size_t>(Share::host)] += end - before;
        return;
      }
      if (at->waited_for == none) break;
      at = &timeline_.ops[at->waited_for];
      at_peer = at_peer || at->class_index != op.class_index;
      const Share share = share_of(program_of(*at), *at);
      if (share == Share::compute) continue;
      const SimTime from = std::clamp(at->start, before, end);
      exposed[static_cast<std::size_t>(share)] += end - from;
      end = from;
    }
    if (at_peer && end > before) exposed[static_cast<std::size_t>(Share::bubble)] += end - before;
  }

  void measure_lanes() {
    std::array<SimTime, lane_count> busy{};
    for (const TimedOp& op : timeline_.ops) {
      if (op.class_index == timeline_.slowest) busy[static_cast<std::size_t>(op.lane)] += op.end - op.start;
    }
    for (int l = 0; l < lane_count; ++l) {
      const SimTime time = busy[static_cast<std::size_t>(l)];
      const double share =
          timeline_.step_time > 0 ? static_cast<double>(time) / static_cast<double>(timeline_.step_time) : 0;
      timeline_.lanes.push_back({name_of(static_cast<Lane>(l)), time, share});
    }
  }

  std::string most_of_the_path() const {
    SimTime compute = 0, communication = 0, host = 0, offload = 0, before = 0;
    for (const std::uint32_t index : timeline_.critical_path) {
      const TimedOp& op = timeline_.ops[index];
      const bool late = op.cause == Cause::host || op.cause == Cause::peer_host || op.cause == Cause::start;
      (late ? host : compute) += std::max<SimTime>(op.start - before, 0);
      const SimTime took = op.end - std::max(before, op.start);
      switch (share_of(program_of(op), op)) {
        case Share::compute: compute += took; break;
        case Share::host: host += took; break;
        case Share::offload: offload += took; break;
        default: communication += took;
      }
      before = op.end;
    }
    host += timeline_.step_time - before;
    const std::array<std::pair<SimTime, const char*>, 4> kinds{
        {{compute, "compute"}, {communication, "communication"}, {host, "host"}, {offload, "offload"}}};
    return std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.first < b.first; })
        ->second;
  }

  Timeline& timeline_;
  const std::vector<const RankProgram*>& programs_;
  SimTime kernel_gap_;
};

}  // namespace

void summarise(Timeline& timeline, const std::vector<const RankProgram*>& programs, SimTime kernel_gap) {
  Summary(timeline, programs, kernel_gap).run();
}

}  // namespace plimsoll
