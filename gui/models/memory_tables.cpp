// Tables of memory (gui/models/tables.hpp).
#include <fmt/format.h>

#include "gui/models/tables.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/ledger_rows.hpp"
#include "planner/step/checkpoint_files.hpp"

namespace plimsoll::gui {
namespace {

std::string layers_in_words(int first, int last) {
  if (last < 0) return {};
  return first == last ? fmt::format("{}", first) : fmt::format("{} to {}", std::max(0, first), last);
}

/// As the hull draws it.
std::string ink_of(const LedgerRow& row) {
  switch (row.kind) {
    case LedgerRow::Kind::category: return row.name;
    case LedgerRow::Kind::unused: return "reserved but not in use then";
    case LedgerRow::Kind::outside: return "outside the framework";
    case LedgerRow::Kind::allocated:
    case LedgerRow::Kind::device: break;
  }
  return {};
}

TableRow row_of(const LedgerRow& row, const Ledger& ledger) {
  const bool sum = row.kind == LedgerRow::Kind::allocated || row.kind == LedgerRow::Kind::device;
  return {{cell_of_text(row.name),
           cell_of_bytes(row.bytes.count),
           {share_in_words(row.bytes, ledger.capacity), static_cast<double>(row.bytes.count), {}}},
          row.number,
          sum,
          ink_of(row)};
}

TableData tensors_table() {
  return {{{"tensor", false, "Equal tensors of several layers are one row."},
           {"count", true, {}},
           {"GiB in all", true, {}},
           {"of each", false, "The shape in symbols and in numbers, times the bytes of an element."},
           {"layers", false, {}},
           {"category", false, {}}},
          {}};
}

}  // namespace

std::string verdict_in_words(const Answer& answer) {
  if (!answer.ledger) return "The input has errors: see Problems";
  if (!answer.settled)
    return fmt::format("{} GiB allocated at the peak; the allocator is being replayed",
                       gibibytes(answer.ledger->allocated_peak.value));
  return room_in_words(*answer.ledger);
}

std::string reason_in_words(const Answer& answer) {
  if (!answer.settled || !answer.ledger) return {};
  if (answer.ledger->verdict == Verdict::fits) return answer.step ? step_in_words(*answer.step) : std::string();
  std::string text = break_in_words(*answer.ledger);
  if (!answer.remedy_known) return text + ". Looking for the smallest change that fits …";
  if (!answer.remedy) return text + ". " + no_remedy_in_words(*answer.ledger, answer.all_changes_tried);
  return text + fmt::format(". With {} it {} (margin {} GiB).", fmt::join(answer.remedy->sets, " "),
                            answer.remedy->verdict == Verdict::fits ? "fits" : "is tight",
                            gibibytes(answer.remedy->margin));
}

TableData ledger_table(const Answer& answer) {
  TableData table{{{"at the peak of a steady step", false, {}},
                   {"GiB", true, "2^30 bytes; hover for the exact number"},
                   {"of card", true, "share of the device's memory as the driver reports it"}},
                  {}};
  for (const LedgerRow& row : rows_at_peak(*answer.ledger))
    if (row.kind != LedgerRow::Kind::category || row.bytes.count > 0) table.rows.push_back(row_of(row, *answer.ledger));
  return table;
}

TableData figures_table(const Answer& answer) {
  const Ledger& ledger = *answer.ledger;
  TableData table{{{"figure", false, {}},
                   {"GiB", true, {}},
                   {"from", true, "the lowest that it may be"},
                   {"to", true, "the highest that it may be"},
                   {"evidence", false, "how it is known: measured, fitted, interpolated, extrapolated or assumed"}},
                  {}};
  const auto add = [&](const std::string& name, const char* number, const Figure& figure) {
    table.rows.push_back(
        {{cell_of_text(name), cell_of_bytes(figure.value.count), cell_of_bytes(figure.interval.low.count),
          cell_of_bytes(figure.interval.high.count), cell_of_text(name_of(figure.evidence))},
         number});
  };
  add("allocated peak", "gpu.allocated_peak_bytes", ledger.allocated_peak);
  add("reserved peak", "gpu.reserved_peak_bytes", ledger.reserved_peak);
  add("device peak", "gpu.device_peak_bytes", ledger.device_peak);
  add(fmt::format("device peak of the job ({})", ledger.job_peak_phase), "gpu.job_device_peak_bytes",
      ledger.job_device_peak);
  const TableCell none = cell_of_text({});
  table.rows.push_back(
      {{cell_of_text("resident between steps"), cell_of_bytes(ledger.replay.resident.count), none, none, none},
       "gpu.resident_bytes"});
  table.rows.push_back(
      {{cell_of_text("margin"), cell_of_bytes(ledger.margin.count), none, none, none}, "margin_bytes"});
  return table;
}

TableData phases_table(const Answer& answer) {
  const Ledger& ledger = *answer.ledger;
  TableData table{{{"phase of the job, GiB a rank", false, {}},
                   {"allocated end", true, "live blocks when the phase ends"},
                   {"peak", true, "most live blocks within it"},
                   {"reserved end", true, "the allocator's segments when it ends"},
                   {"host end", true, "resident host memory of the process when it ends"},
                   {"host peak", true, {}},
                   {"pinned", true, "page-locked host memory"}},
                  {}};
  for (std::size_t i = 0; i < ledger.host.size(); ++i) {
    const PhaseMemory& phase = ledger.replay.phases[i];
    const HostPhase& host = ledger.host[i];
    table.rows.push_back(
        {{cell_of_text(phase.name), cell_of_bytes(phase.allocated_end.count), cell_of_bytes(phase.allocated_peak.count),
          cell_of_bytes(phase.reserved_end.count), cell_of_bytes(host.resident_end.count),
          cell_of_bytes(host.resident_peak.count), cell_of_bytes(host.pinned.count)},
         "phases." + phase.name + ".allocated_peak_bytes"});
  }
  return table;
}

TableData host_table(const Answer& answer) {
  const Ledger& ledger = *answer.ledger;
  TableData table{{{"host memory", false, {}}, {"GiB", true, {}}}, {}};
  for (const auto& [name, bytes] : ledger.host_categories)
    table.rows.push_back({{cell_of_text(name + ", one rank"), cell_of_bytes(bytes.count)}, "host.per_node_bytes"});
  table.rows.push_back(
      {{cell_of_text("a node"), cell_of_bytes(ledger.host_per_node.count)}, "host.per_node_bytes", true});
  table.rows.push_back({{cell_of_text("of"), cell_of_bytes(ledger.host_capacity.count)}, {}});
  return table;
}

TableData live_table(const Answer& answer, const std::string& category) {
  TableData table = tensors_table();
  for (const LiveTensors& tensors : answer.live) {
    if (!category.empty() && category != name_of(tensors.category)) continue;
    const Bytes all = tensors.bytes * static_cast<std::int64_t>(tensors.count);
    table.rows.push_back(
        {{cell_of_text(tensors.name), cell_of_count(tensors.count), cell_of_bytes(all.count),
          cell_of_text(tensors.formula), cell_of_text(layers_in_words(tensors.first_layer, tensors.last_layer)),
          cell_of_text(name_of(tensors.category))},
         {}});
  }
  return table;
}

TableData explained_table(const ExplainedNumber& number) {
  TableData table = tensors_table();
  const bool bytes = number.unit == "B";
  table.columns[0].title = "term";
  table.columns[2].title = bytes ? "GiB in all" : number.unit;
  for (const Term& term : number.terms)
    table.rows.push_back(
        {{cell_of_text(term.name), cell_of_count(term.count),
          bytes ? cell_of_bytes(term.value) : cell_of_count(term.value), cell_of_text(term.formula),
          cell_of_text(layers_in_words(term.first_layer, term.last_layer)), cell_of_text(term.category)},
         {}});
  return table;
}

TableData assumptions_table(const Answer& answer) {
  TableData table{
      {{"evidence", false, "measured, fitted, interpolated, extrapolated or assumed"}, {"rests on", false, {}}}, {}};
  for (const Assumption& assumption : assumptions_of(answer.evaluation->scenario, answer.evaluation->context))
    table.rows.push_back({{cell_of_text(name_of(assumption.evidence)), cell_of_text(assumption.what)}, {}});
  return table;
}

TableData parameters_table(const Answer& answer) {
  TableData table{{{"parameters", false, {}}, {"count", true, {}}}, {}};
  const ParameterCounts counts = parameters_of(*answer.scenario);
  const auto add = [&](const char* name, std::int64_t count, const char* number) {
    table.rows.push_back({{cell_of_text(name), cell_of_count(count)}, number});
  };
  add("total", counts.total, "parameters.total");
  add("active a token", counts.active, "");
  add("dense", counts.dense, "parameters.dense");
  add("experts", counts.expert, "parameters.expert");
  return table;
}

TableData checkpoint_table(const Answer& answer) {
  TableData table{{{"file that saving writes", false, {}}, {"GiB", true, {}}}, {}};
  for (const CheckpointFile& file : checkpoint_files(*answer.scenario))
    table.rows.push_back({{cell_of_text(file.name), cell_of_bytes(file.bytes.count)}, {}});
  return table;
}

}  // namespace plimsoll::gui
