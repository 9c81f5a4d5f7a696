// Comparing a profiler trace with a timeline (planner/cli/kineto_comparison.hpp).
#include "planner/cli/kineto_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/base/format.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/cli/table.hpp"

namespace plimsoll {

namespace {

using Json = nlohmann::ordered_json;

struct Interval {
  double start = 0, end = 0;
};

/// Length of the union.
double covered(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  double sum = 0, until = -1;
  for (const Interval& interval : intervals) {
    if (interval.end <= until) continue;
    sum += interval.end - std::max(interval.start, until);
    until = interval.end;
  }
  return sum;
}

/// Gathers the kernels of a step, in seconds.
class Use {
 public:
  /// @param gap_s between two of its launches
  void add(OpClass op_class, double start_s, double end_s, std::int64_t launches, double gap_s = 0) {
    ClassUse& use = result_.classes[static_cast<std::size_t>(op_class)];
    use.launches += launches;
    use.seconds += end_s - start_s - static_cast<double>(launches - 1) * gap_s;
    all_.push_back({start_s, end_s});
    if (!is_collective(op_class)) compute_.push_back({start_s, end_s});
  }

  DeviceUse result() {
    if (all_.empty()) return result_;
    const double busy = covered(all_);
    double last = 0;
    for (const Interval& interval : all_) last = std::max(last, interval.end);
    result_.span_s = last - all_.front().start;
    result_.idle_s = std::max(0.0, result_.span_s - busy);
    result_.exposed_s = busy - covered(compute_);
    return result_;
  }

 private:
  DeviceUse result_;
  std::vector<Interval> all_, compute_;
};

double error_of(double simulated, double measured) { return measured > 0 ? simulated / measured - 1 : 0; }

std::string percent(double simulated, double measured) {
  return measured > 0 ? fmt::format("{:+.1f} %", 100 * error_of(simulated, measured)) : "";
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

void row_of(Table& table, const std::string& name, const ClassUse& simulated, const ClassUse& measured) {
  if (simulated.launches == 0 && measured.launches == 0) return;
  table.row({name, format_count(simulated.launches), format_count(measured.launches), milliseconds(simulated.seconds),
             milliseconds(measured.seconds), milliseconds(simulated.seconds - measured.seconds),
             percent(simulated.seconds, measured.seconds)});
}

}  // namespace

ClassUse DeviceUse::compute() const {
  ClassUse sum;
  for (int i = 0; i < op_class_count; ++i) {
    if (is_collective(static_cast<OpClass>(i))) continue;
    sum.launches += of(static_cast<OpClass>(i)).launches;
    sum.seconds += of(static_cast<OpClass>(i)).seconds;
  }
  return sum;
}

double KinetoComparison::compute_error() const {
  return error_of(simulated.compute().seconds, measured.compute().seconds);
}

double KinetoComparison::likeness() const {
  double common = 0, all = 0;
  for (int i = 0; i < op_class_count; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    if (is_collective(op_class)) continue;
    common += std::min(simulated.of(op_class).seconds, measured.of(op_class).seconds);
    all += std::max(simulated.of(op_class).seconds, measured.of(op_class).seconds);
  }
  return all > 0 ? common / all : 0;
}

DeviceUse use_of(const ProfilerTrace& trace) {
  Use use;
  for (const ProfiledKernel& kernel : trace.kernels)
    use.add(kernel.op_class, kernel.start_us * 1e-6, kernel.end_us * 1e-6, 1);
  return use.result();
}

DeviceUse use_of(const Timeline& timeline, const RankProgram& program) {
  Use use;
  for (const TimedOp& op : timeline.ops) {
    if (op.class_index != 0 || op.lane == Lane::host) continue;
    const double start = to_seconds(op.start), end = to_seconds(op.end);
    const Action& action = program.ops[op.op].action;
    if (const auto* compute = std::get_if<Compute>(&action)) {
      const Kernel& kernel = program.kernels[compute->kernel];
      use.add(class_of(kernel), start, end, kernel.launches, to_seconds(timeline.kernel_gap));
    } else if (const auto* collective = std::get_if<Collective>(&action)) {
      use.add(class_of(collective->kind), start, end, 1);
    } else if (std::holds_alternative<HostCopy>(action)) {
      use.add(OpClass::small, start, end, 1);
    }
  }
  return use.result();
}

std::string kineto_text(const KinetoComparison& comparison) {
  const DeviceUse &simulated = comparison.simulated, &measured = comparison.measured;
  std::string text = fmt::format(
      "Kernels take {} simulated and {} measured: {}\n\n", format(Seconds(simulated.compute().seconds)),
      format(Seconds(measured.compute().seconds)), percent(simulated.compute().seconds, measured.compute().seconds));
  Table table({{"class"},
               {"launches", Align::right},
               {"measured", Align::right},
               {"simulated", Align::right},
               {"measured", Align::right},
               {"difference", Align::right},
               {"", Align::right}});
  for (int i = 0; i < op_class_count; ++i) {
    const auto op_class = static_cast<OpClass>(i);
    if (op_class == OpClass::all_gather) row_of(table, "all compute", simulated.compute(), measured.compute());
    row_of(table, name_of(op_class), simulated.of(op_class), measured.of(op_class));
  }
  text += table.text(2);
  text += "  (a measured collective's time holds its wait for the peers)\n\n";
  Table device({{"device"}, {"simulated", Align::right}, {"measured", Align::right}, {"difference", Align::right}});
  const auto row = [&device](const char* name, double mine, double theirs) {
    device.row({name, milliseconds(mine), milliseconds(theirs), milliseconds(mine - theirs)});
  };
  row("first to last kernel", simulated.span_s, measured.span_s);
  row("idle", simulated.idle_s, measured.idle_s);
  row("only collectives run", simulated.exposed_s, measured.exposed_s);
  text += device.text(2);
  text += "  (a profiler slows hosts: a measured step that its host bounds is longer than without it)\n";
  return text;
}

std::string kineto_json(const KinetoComparison& comparison, const std::string& digest) {
  Json json = {{"digest", digest}, {"classes", Json::array()}};
  const auto pair = [](double simulated, double measured) {
    return Json{{"simulated", simulated}, {"measured", measured}};
  };
  for (int i = 0; i < op_class_count; ++i) {
    const ClassUse& mine = comparison.simulated.of(static_cast<OpClass>(i));
    const ClassUse& theirs = comparison.measured.of(static_cast<OpClass>(i));
    if (mine.launches == 0 && theirs.launches == 0) continue;
    json["classes"].push_back({{"class", name_of(static_cast<OpClass>(i))},
                               {"collective", is_collective(static_cast<OpClass>(i))},
                               {"launches", {{"simulated", mine.launches}, {"measured", theirs.launches}}},
                               {"seconds", pair(mine.seconds, theirs.seconds)},
                               {"error", error_of(mine.seconds, theirs.seconds)}});
  }
  json["compute_s"] = pair(comparison.simulated.compute().seconds, comparison.measured.compute().seconds);
  json["compute_error"] = comparison.compute_error();
  json["span_s"] = pair(comparison.simulated.span_s, comparison.measured.span_s);
  json["idle_s"] = pair(comparison.simulated.idle_s, comparison.measured.idle_s);
  json["exposed_s"] = pair(comparison.simulated.exposed_s, comparison.measured.exposed_s);
  return json_text(json);
}

}  // namespace plimsoll
