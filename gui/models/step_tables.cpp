// Tables of communication, time and problems (gui/models/tables.hpp).
#include <fmt/format.h>

#include "gui/models/tables.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

TableCell cell_of_share(double share) { return {fmt::format("{:.1f} %", 100 * share), share, {}}; }

}  // namespace

TableData volume_table(const Answer& answer) {
  TableData table{
      {{"collective", false, {}},
       {"group", false,
        "dp: data parallel, ep: ranks that hold a layer's experts together, edp: ranks that hold the same experts"},
       {"phase", false, {}},
       {"tier", false, "the farthest kind of link that the bytes cross"},
       {"dtype", false, {}},
       {"calls", true, {}},
       {"size of one", true, "full size S: the larger side of the collective, as nccl-tests defines it"},
       {"GiB sent", true, "by one GPU in an optimizer step"}},
      {}};
  for (const VolumeSum& sum : sums_of(answer.volume)) {
    const VolumeRow& row = sum.row;
    const std::string size =
        sum.least == sum.most ? format(sum.most) : fmt::format("{} to {}", format(sum.least), format(sum.most));
    table.rows.push_back({{cell_of_text(row.kind),
                           cell_of_text(row.group),
                           cell_of_text(row.phase),
                           cell_of_text(name_of(row.tier)),
                           cell_of_text(name_of(row.dtype)),
                           cell_of_count(row.calls),
                           {size, static_cast<double>(sum.most.count), {}},
                           cell_of_bytes(row.wire.count)},
                          "per_gpu_bytes_per_step"});
  }
  return table;
}

TableData loads_table(const Answer& answer) {
  TableData table{{{"tier", false, {}},
                   {"GiB a step", true, "sent by one GPU"},
                   {"alone", true, "at the tier's bandwidth, nothing else going on"}},
                  {}};
  for (const TierLoad& load : answer.loads)
    table.rows.push_back(
        {{cell_of_text(name_of(load.tier)), cell_of_bytes(load.wire.count), cell_of_seconds(load.alone.count)}, {}});
  table.rows.push_back({{cell_of_text("all"), cell_of_bytes(answer.volume.per_gpu.count), cell_of_text({})},
                        "per_gpu_bytes_per_step",
                        true});
  return table;
}

TableData exposed_table(const SimulatedStep& step) {
  TableData table{{{"compute waits for", false, "communication or host time during which the GPU computes nothing"},
                   {"time", true, {}},
                   {"of the step", true, {}}},
                  {}};
  for (const auto& [cause, time] : step.timeline.exposed) {
    if (time == 0) continue;
    const double seconds = to_seconds(time);
    table.rows.push_back(
        {{cell_of_text(cause), cell_of_seconds(seconds), cell_of_share(seconds / step.step_time_s)}, cause});
  }
  table.rows.push_back(
      {{cell_of_text("device idle"), cell_of_seconds(to_seconds(step.timeline.idle)), cell_of_share(step.idle_share)},
       "idle",
       true});
  return table;
}

TableData lanes_table(const SimulatedStep& step) {
  TableData table{{{"lane", false, "a CUDA stream, or the host"}, {"busy", true, {}}, {"of the step", true, {}}}, {}};
  for (const LaneUse& lane : step.timeline.lanes)
    if (lane.busy > 0)
      table.rows.push_back(
          {{cell_of_text(lane.name), cell_of_seconds(to_seconds(lane.busy)), cell_of_share(lane.share)}, lane.name});
  return table;
}

TableData kernels_table(const SimulatedStep& step) {
  TableData table{{{"kernel or collective", false, {}}, {"count", true, {}}, {"time", true, {}}}, {}};
  for (const auto& [name, use] : step.kernels)
    table.rows.push_back({{cell_of_text(name), cell_of_count(use.count), cell_of_seconds(to_seconds(use.busy))}, name});
  return table;
}

TableData path_table(const Evaluation& evaluation, const SimulatedStep& step) {
  TableData table{{{"critical path", false, "each op could not start before the one above had ended"},
                   {"lane", false, {}},
                   {"layer", true, {}},
                   {"start", true, {}},
                   {"end", true, {}}},
                  {}};
  const auto& ranks = step.timeline.classes;
  if (ranks.size() > 1) table.columns.push_back({"of", false, "the rank that it goes through"});
  for (const std::uint32_t index : step.timeline.critical_path) {
    const TimedOp& timed = step.timeline.ops[index];
    const Op& op = program_of(evaluation.program, step.timeline, timed).ops[timed.op];
    table.rows.push_back({{cell_of_text(op.role), cell_of_text(name_of(timed.lane)),
                           op.layer < 0 ? cell_of_text({}) : cell_of_count(op.layer),
                           cell_of_seconds(to_seconds(timed.start)), cell_of_seconds(to_seconds(timed.end))},
                          std::to_string(index)});
    if (ranks.size() > 1) table.rows.back().cells.push_back(cell_of_text(ranks[timed.class_index].name));
  }
  return table;
}

std::string step_in_words(const SimulatedStep& step) {
  return fmt::format(
      "{} a step, bound by {} ({} to {}, {});  {} tokens/s per GPU,  MFU {:.1f} %,  device idle {:.1f} %",
      format(Seconds(step.step_time_s)), step.timeline.bound_by, format(Seconds(step.low_s)),
      format(Seconds(step.high_s)), name_of(step.timeline.evidence),
      format_count(static_cast<std::int64_t>(step.tokens_per_s_per_gpu)), 100 * step.mfu, 100 * step.idle_share);
}

TableData problems_table(const Diagnostics& diagnostics) {
  TableData table{
      {{"", false, {}}, {"where", false, {}}, {"what", false, {}}, {"help", false, {}}, {"code", false, {}}}, {}};
  for (const Severity severity : {Severity::error, Severity::warning, Severity::note}) {
    for (const Diagnostic& diagnostic : diagnostics) {
      if (diagnostic.severity != severity) continue;
      const Place& place = diagnostic.place;
      std::string where;
      if (place.file)
        where = place.line > 0 ? fmt::format("{}:{}:{}", place.file->name, place.line, place.column) : place.file->name;
      const std::string whole = format(diagnostic);
      table.rows.push_back({{{name_of(severity), 0, whole},
                             {where, 0, whole},
                             {diagnostic.message, 0, whole},
                             {diagnostic.help, 0, whole},
                             {diagnostic.code, 0, whole}},
                            key_of_pointer(place.pointer)});
    }
  }
  return table;
}

std::string problems_in_words(const Diagnostics& diagnostics) {
  const std::string counted = count_in_words(diagnostics);
  return counted.empty() ? "no errors or warnings" : counted;
}

}  // namespace plimsoll::gui
