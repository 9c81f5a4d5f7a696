// Results of a simulation (simulator/summary.hpp).
#include "simulator/summary.hpp"

#include <algorithm>
#include <utility>

namespace plimsoll {

namespace {

constexpr std::uint32_t none = ~0u;

/// What an op waited for: an op that waited for a copy or a kernel of another lane waited for what that one waited for.
std::string cause_of(const Timeline& timeline, const RankProgram& program, const TimedOp& op) {
  const TimedOp* at = &op;
  for (int hops = 0; hops < 8; ++hops) {
    if (at->cause == Cause::host) return "host";
    if (at->waited_for == none) return {};
    const TimedOp& from = timeline.ops[at->waited_for];
    const Action& action = program.ops[from.op].action;
    if (const auto* collective = std::get_if<Collective>(&action)) return name_of(collective->kind);
    if (std::holds_alternative<HostCopy>(action)) return "offload";
    if (const auto* work = std::get_if<HostWork>(&action))
      return work->kind == HostWorkKind::cpu_adam ? "offload" : "host";
    if (from.lane == Lane::host) return "host";
    at = &from;
  }
  return {};
}

/// What the compute lane waits for, and the collectives and copies that run on it.
void account_exposed(Timeline& timeline, const RankProgram& program, std::uint16_t class_index, SimTime kernel_gap) {
  SimTime before = 0;
  for (const TimedOp& op : timeline.ops) {
    if (op.class_index != class_index || op.lane != Lane::compute) continue;
    if (op.start - before > kernel_gap) {
      const std::string cause = cause_of(timeline, program, op);
      if (!cause.empty()) timeline.exposed[cause] += op.start - before;
    }
    const Action& action = program.ops[op.op].action;
    if (const auto* collective = std::get_if<Collective>(&action)) {
      timeline.exposed[name_of(collective->kind)] += op.end - op.start;
    } else if (std::holds_alternative<HostCopy>(action)) {
      timeline.exposed["offload"] += op.end - op.start;
    }
    before = op.end;
  }
  if (timeline.step_time > before) timeline.exposed["host"] += timeline.step_time - before;
}

void measure_lanes(Timeline& timeline, std::uint16_t class_index) {
  for (int l = 0; l < lane_count; ++l) {
    LaneUse use{name_of(static_cast<Lane>(l)), 0, 0};
    for (const TimedOp& op : timeline.ops) {
      if (op.class_index == class_index && op.lane == static_cast<Lane>(l)) use.busy += op.end - op.start;
    }
    use.share = timeline.step_time > 0 ? static_cast<double>(use.busy) / static_cast<double>(timeline.step_time) : 0;
    timeline.lanes.push_back(std::move(use));
  }
}

/// A cause bounds the step once it takes half as long as the computing itself.
std::string what_bounds(Timeline& timeline) {
  SimTime communication = 0;
  for (const auto& [name, time] : timeline.exposed) {
    if (name != "host" && name != "offload" && name != "bubble") communication += time;
  }
  const SimTime host = timeline.exposed["host"], offload = timeline.exposed["offload"];
  SimTime most = (timeline.step_time - communication - host - offload) / 2;
  std::string bound = "compute";
  for (const auto& [name, time] :
       {std::pair<const char*, SimTime>{"communication", communication}, {"host", host}, {"offload", offload}}) {
    if (time <= most) continue;
    most = time;
    bound = name;
  }
  return bound;
}

}  // namespace

void summarise(Timeline& timeline, const std::vector<const RankProgram*>& programs, SimTime kernel_gap) {
  std::uint32_t last = none;
  for (std::uint32_t i = 0; i < timeline.ops.size(); ++i) {
    if (last == none || timeline.ops[i].end > timeline.ops[last].end) last = i;
  }
  if (last == none) return;
  timeline.step_time = std::max(timeline.step_time, timeline.ops[last].end);
  const std::uint16_t slowest = timeline.ops[last].class_index;
  account_exposed(timeline, *programs[slowest], slowest, kernel_gap);
  for (std::uint32_t at = last; at != none; at = timeline.ops[at].waited_for) timeline.critical_path.push_back(at);
  std::reverse(timeline.critical_path.begin(), timeline.critical_path.end());
  measure_lanes(timeline, slowest);
  timeline.bound_by = what_bounds(timeline);
}

double matrix_duty(const Timeline& timeline, const std::vector<const RankProgram*>& programs) {
  SimTime matrix = 0;
  for (const TimedOp& op : timeline.ops) {
    if (op.class_index != 0 || op.lane != Lane::compute) continue;
    const auto* compute = std::get_if<Compute>(&programs.front()->ops[op.op].action);
    if (compute && programs.front()->kernels[compute->kernel].flops().count > 0) matrix += op.end - op.start;
  }
  return timeline.step_time > 0 ? static_cast<double>(matrix) / static_cast<double>(timeline.step_time) : 0;
}

}  // namespace plimsoll
