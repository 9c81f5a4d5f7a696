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

constexpr std::array<const char*, share_count> share_names{
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "host", "offload", "bubble", "compute"};

class Summary {
 public:
  Summary(Timeline& timeline, SimTime kernel_gap) : timeline_(timeline), kernel_gap_(kernel_gap) {}

  void run(int tell_of) {
    if (timeline_.ops.empty()) return;
    const auto ends_later = [](const TimedOp& a, const TimedOp& b) { return a.end < b.end; };
    const auto latest = std::max_element(timeline_.ops.begin(), timeline_.ops.end(), ends_later);
    const auto last = static_cast<std::uint32_t>(latest - timeline_.ops.begin());
    timeline_.told = tell_of < 0 ? timeline_.ops[last].class_index : static_cast<std::uint16_t>(tell_of);
    account(timeline_.ops[last].end);
    follow_path(last);
  }

 private:
  /// @param latest end of any class's ops
  void account(SimTime latest) {
    std::array<SimTime, share_count> exposed{};
    std::array<SimTime, lane_count> busy{};
    SimTime before = 0, own = 0;
    for (const TimedOp& op : timeline_.ops) {
      if (op.class_index != timeline_.told) continue;
      busy[static_cast<std::size_t>(op.lane)] += op.end - op.start;
      own = std::max(own, op.end);
      if (op.lane != Lane::compute) continue;
      if (op.start - before > kernel_gap_) divide(op, before, exposed);
      exposed[static_cast<std::size_t>(op.share)] += op.end - op.start;
      before = op.end;
    }
    // After the last kernel the host is still busy, or others are.
    const Share rest = own < latest ? Share::bubble : Share::host;
    if (timeline_.step_time > before) exposed[static_cast<std::size_t>(rest)] += timeline_.step_time - before;
    for (std::size_t i = 0; i < share_count; ++i) {
      if (exposed[i] > 0 && i != static_cast<std::size_t>(Share::compute))
        timeline_.exposed[share_names[i]] = exposed[i];
    }
    for (int l = 0; l < lane_count; ++l) {
      const SimTime time = busy[static_cast<std::size_t>(l)];
      const double share =
          timeline_.step_time > 0 ? static_cast<double>(time) / static_cast<double>(timeline_.step_time) : 0;
      timeline_.lanes.push_back({name_of(static_cast<Lane>(l)), time, share});
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
      if (at->share == Share::compute) continue;
      const SimTime from = std::clamp(at->start, before, end);
      exposed[static_cast<std::size_t>(at->share)] += end - from;
      end = from;
    }
    if (at_peer && end > before) exposed[static_cast<std::size_t>(Share::bubble)] += end - before;
  }

  /// From the op that ends last back along what each waited for; and what most of that is.
  void follow_path(std::uint32_t last) {
    SimTime compute = 0, communication = 0, host = timeline_.step_time - timeline_.ops[last].end, offload = 0;
    for (std::uint32_t at = last; at != none;) {
      timeline_.critical_path.push_back(at);
      const TimedOp& op = timeline_.ops[at];
      at = op.waited_for;
      const SimTime before = at == none ? 0 : timeline_.ops[at].end;
      const bool late = op.cause == Cause::host || op.cause == Cause::peer_host || op.cause == Cause::start;
      (late ? host : compute) += std::max<SimTime>(op.start - before, 0);
      const SimTime took = op.end - std::max(before, op.start);
      switch (op.share) {
        case Share::compute: compute += took; break;
        case Share::host: host += took; break;
        case Share::offload: offload += took; break;
        default: communication += took;
      }
    }
    std::reverse(timeline_.critical_path.begin(), timeline_.critical_path.end());
    const std::array<std::pair<SimTime, const char*>, 4> kinds{
        {{compute, "compute"}, {communication, "communication"}, {host, "host"}, {offload, "offload"}}};
    timeline_.bound_by = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
                           return a.first < b.first;
                         })->second;
  }

  Timeline& timeline_;
  SimTime kernel_gap_;
};

}  // namespace

void summarise(Timeline& timeline, int tell_of, SimTime kernel_gap) { Summary(timeline, kernel_gap).run(tell_of); }

}  // namespace plimsoll
