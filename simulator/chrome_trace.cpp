// Writes the trace line by line (simulator/chrome_trace.hpp).
#include "simulator/chrome_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace plimsoll {

namespace {

double microseconds(SimTime time) { return static_cast<double>(time) * 1e-6; }

std::string kind_of(const RankProgram& rank, const Op& op) {
  if (const auto* compute = std::get_if<Compute>(&op.action)) return name_of(rank.kernels[compute->kernel].kind);
  if (const auto* collective = std::get_if<Collective>(&op.action)) return name_of(collective->kind);
  if (const auto* copy = std::get_if<HostCopy>(&op.action))
    return copy->to_device ? "host_to_device" : "device_to_host";
  if (const auto* work = std::get_if<HostWork>(&op.action)) return name_of(work->kind);
  return "host_sync";
}

/// Roles and names are the project's own literals or parameter names: quotes and backslashes are all there is to escape.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

std::vector<LiveBytes> live_bytes(const RankProgram& program, const Timeline& timeline, std::uint16_t class_index) {
  // Start of the first timed op at or after each position of the issue order, on the compute lane.
  std::vector<SimTime> starts(program.ops.size() + 1, -1);
  for (const TimedOp& op : timeline.ops) {
    if (op.class_index == class_index && op.lane == Lane::compute && starts[op.op] < 0) starts[op.op] = op.start;
  }
  SimTime next = timeline.step_time;
  for (std::size_t i = program.ops.size(); i-- > 0;) {
    if (starts[i] < 0) starts[i] = next;
    next = starts[i];
  }
  Bytes live;
  std::vector<LiveBytes> curve;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const auto size = [&](BufferId buffer) {
      return program.buffers[buffer].pool == Lane::host ? Bytes(0) : program.buffers[buffer].size;
    };
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) {
      live += size(alloc->buffer);
    } else if (const auto* free = std::get_if<Free>(&program.ops[id].action)) {
      live -= size(free->buffer);
    } else {
      continue;
    }
    if (id < program.steady_first) continue;
    if (!curve.empty() && curve.back().at == starts[id]) {
      curve.back().bytes = std::max(curve.back().bytes, live);
    } else {
      curve.push_back({starts[id], live});
    }
  }
  return curve;
}

std::string chrome_trace(const StepProgram& program, const Timeline& timeline) {
  std::string out = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"digest\":\"{}\"}},\"traceEvents\":[\n",
                                program.digest);
  auto to = std::back_inserter(out);
  for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
    fmt::format_to(to, "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{\"name\":\"{}\"}}}},\n", c,
                   timeline.classes[c].name);
    for (int lane = 0; lane < lane_count; ++lane) {
      fmt::format_to(to,
                     "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}},\n",
                     c, lane, name_of(static_cast<Lane>(lane)));
    }
  }
  for (std::size_t i = 0; i < timeline.ops.size(); ++i) {
    const TimedOp& timed = timeline.ops[i];
    const RankProgram& rank = program_of(program, timeline, timed);
    const Op& op = rank.ops[timed.op];
    fmt::format_to(to,
                   "{{\"ph\":\"X\",\"name\":\"{}\",\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
                   "\"args\":{{\"op\":{},\"layer\":{},\"micro_batch\":{}}}}},\n",
                   escaped(op.role), kind_of(rank, op), timed.class_index, static_cast<int>(timed.lane),
                   microseconds(timed.start), microseconds(timed.end - timed.start), timed.op, op.layer,
                   op.micro_batch);
    if (timed.cause != Cause::edge || timed.waited_for >= timeline.ops.size()) continue;
    const TimedOp& from = timeline.ops[timed.waited_for];
    fmt::format_to(
        to, "{{\"ph\":\"s\",\"id\":{},\"name\":\"waits\",\"cat\":\"edge\",\"pid\":{},\"tid\":{},\"ts\":{:.3f}}},\n", i,
        from.class_index, static_cast<int>(from.lane), microseconds(from.end));
    fmt::format_to(to,
                   "{{\"ph\":\"f\",\"bp\":\"e\",\"id\":{},\"name\":\"waits\",\"cat\":\"edge\",\"pid\":{},\"tid\":{},"
                   "\"ts\":{:.3f}}},\n",
                   i, timed.class_index, static_cast<int>(timed.lane), microseconds(timed.start));
  }
  for (const LiveBytes& point : live_bytes(program.classes.front().program, timeline, 0)) {
    fmt::format_to(to, "{{\"ph\":\"C\",\"name\":\"bytes alive\",\"pid\":0,\"ts\":{:.3f},\"args\":{{\"bytes\":{}}}}},\n",
                   microseconds(point.at), point.bytes.count);
  }
  fmt::format_to(to, "{{\"ph\":\"I\",\"name\":\"end of step\",\"pid\":0,\"tid\":0,\"s\":\"g\",\"ts\":{:.3f}}}\n]}}\n",
                 microseconds(timeline.step_time));
  return out;
}

}  // namespace plimsoll
