// plimsoll sweep: the figures of every combination of values, as a table, CSV, JSON or chart.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/chart.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t most_rows = 10'000;

struct SweepOptions {
  InputOptions inputs;
  std::vector<std::string> keys;
  bool csv = false;
  std::string chart;
};

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

/// "micro_batch=1,2,4"; a comma inside brackets or quotes belongs to the value.
std::optional<Axis> axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) return std::nullopt;
  Axis axis{text.substr(0, equals), {""}};
  int depth = 0;
  bool quoted = false;
  for (const char c : text.substr(equals + 1)) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '{' || c == '[')) ++depth;
    if (!quoted && (c == '}' || c == ']')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      axis.values.emplace_back();
    } else {
      axis.values.back() += c;
    }
  }
  if (axis.key == "gpus") axis.key = "world_size";
  return axis;
}

std::vector<SweepRow> rows_of(const Inputs& inputs, const std::vector<Axis>& axes, const Calibration& calibration) {
  Progress progress("sweep");
  std::vector<SweepRow> rows;
  std::vector<std::size_t> at(axes.size());
  for (bool more = true; more;) {
    SweepRow row;
    std::vector<std::string> sets;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      row.values.push_back(axes[i].values[at[i]]);
      sets.push_back(fmt::format("{}={}", axes[i].key, row.values.back()));
    }
    progress.step(fmt::format("{}", fmt::join(sets, " ")));
    const Result<Scenario> scenario = inputs.with(sets);
    if (scenario) {
      Evaluation evaluation = evaluate(*scenario, inputs.rank());
      row.ledger = evaluation.ledger;
      row.volume = account_volume(evaluation.program, evaluation.rank_program(), scenario->cluster).per_gpu;
      row.step_time = Seconds(to_seconds(simulate_step(evaluation.program, scenario->cluster, calibration).step_time));
      if (row.step_time.count > 0)
        row.tokens_per_s = static_cast<double>(evaluation.program.tokens_per_step_per_rank) / row.step_time.count;
    } else {
      row.refusal = refusal_in_words(scenario.diagnostics());
    }
    rows.push_back(std::move(row));
    more = false;
    for (std::size_t i = axes.size(); i-- > 0 && !more;) {
      more = ++at[i] < axes[i].values.size();
      if (!more) at[i] = 0;
    }
  }
  return rows;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_of(const std::vector<Axis>& axes, const std::vector<SweepRow>& rows) {
  std::string text;
  for (const Axis& axis : axes) text += csv_field(axis.key) + ",";
  text +=
      "verdict,allocated_peak_bytes,reserved_peak_bytes,device_peak_bytes,margin_bytes,host_per_node_bytes,"
      "wire_bytes_per_step,step_time_s,tokens_per_s_per_gpu,refusal\n";
  for (const SweepRow& row : rows) {
    for (const std::string& value : row.values) text += csv_field(value) + ",";
    if (row.ledger) {
      const Ledger& ledger = *row.ledger;
      text += fmt::format("{},{},{},{},{},{},{},{:.6g},{:.6g},\n", name_of(ledger.verdict),
                          ledger.allocated_peak.value.count, ledger.reserved_peak.value.count,
                          ledger.device_peak.value.count, ledger.margin.count, ledger.host_per_node.count,
                          row.volume.count, row.step_time.count, row.tokens_per_s);
    } else {
      text += fmt::format("refused,,,,,,,,,{}\n", csv_field(row.refusal));
    }
  }
  return text;
}

void print_table(const std::vector<Axis>& axes, const std::vector<SweepRow>& rows) {
  std::vector<Table::Column> columns;
  columns.reserve(axes.size() + 9);
  for (const Axis& axis : axes) columns.push_back({axis.key, Align::right});
  columns.push_back({"verdict"});
  for (const char* title : {"allocated", "reserved", "device", "margin", "sent a step", "step", "tokens/s"})
    columns.push_back({title, Align::right});
  columns.push_back({""});
  Table table(columns);
  for (const SweepRow& row : rows) {
    std::vector<std::string> cells = row.values;
    if (row.ledger) {
      const Ledger& ledger = *row.ledger;
      const Colour colour = colour_of(ledger.verdict);
      cells.insert(cells.end(), {paint(name_of(ledger.verdict), colour), gibibytes(ledger.allocated_peak.value),
                                 gibibytes(ledger.reserved_peak.value), gibibytes(ledger.device_peak.value),
                                 gibibytes(ledger.margin), gibibytes(row.volume), format(row.step_time),
                                 fmt::format("{:.0f}", row.tokens_per_s),
                                 paint(bar(ledger.device_peak.value / ledger.capacity, 20), colour)});
    } else {
      cells.insert(cells.end(), {paint("refused", Colour::dim), "", "", "", "", "", "", "", row.refusal});
    }
    table.row(std::move(cells));
  }
  print(fmt::format(
      "{}\nGiB; peaks of a steady step on one GPU; the bars are the device peak against the card. The step is "
      "simulated; tokens/s are those of one GPU.\n",
      table.text()));
}

constexpr std::array<std::string_view, 4> separators = {"...", "..", "-", ":"};

/// "1..8", "1-8", "1:8:2": what other programs take for a range.
bool is_range(const std::string& value) {
  constexpr const char* digits = "0123456789";
  const std::string rest = value.substr(std::min(value.find_first_not_of(digits), value.size()));
  if (rest.empty() || rest.size() == value.size()) return false;
  return std::any_of(separators.begin(), separators.end(), [&](std::string_view separator) {
    return rest.starts_with(separator) && rest.find_first_of(digits) == separator.size();
  });
}

/// The values of a range as they are to be written: each of a short one, else each twice the one before; up to its end.
std::string values_of_range(const std::string& value) {
  constexpr std::int64_t most_single = 8;
  constexpr const char* digits = "0123456789";
  const std::size_t second = value.find_first_of(digits, value.find_first_not_of(digits));
  std::int64_t at = 0, end = 0;
  std::from_chars(value.data(), value.data() + value.size(), at);
  std::from_chars(value.data() + second, value.data() + value.size(), end);
  std::vector<std::int64_t> values;
  const bool each = end - at < most_single;
  for (; at < end; at = each ? at + 1 : std::max<std::int64_t>(1, at <= end / 2 ? 2 * at : end)) values.push_back(at);
  values.push_back(end);
  return fmt::format("{}", fmt::join(values, ","));
}

/// @return why it is none, in words
std::string read_axes(const std::vector<std::string>& keys, std::vector<Axis>& axes) {
  std::size_t rows = 1;
  for (const std::string& text : keys) {
    const auto axis = axis_of(text);
    if (!axis) return fmt::format("{} is not KEY=A,B,C: a key of the plan and the values to try", text);
    if (std::find(axis->values.begin(), axis->values.end(), "") != axis->values.end())
      return fmt::format("{} has an empty value", text);
    for (const std::string& value : axis->values)
      if (is_range(value))
        return fmt::format("{}={} is no list of values; write each: {}={}", axis->key, value, axis->key,
                           values_of_range(value));
    const auto same = [&](const Axis& other) { return other.key == axis->key; };
    if (std::any_of(axes.begin(), axes.end(), same))
      return fmt::format("{} is given twice; write its values in one list", axis->key);
    rows *= axis->values.size();
    if (rows > most_rows) return fmt::format("more than {} combinations", format_count(most_rows));
    axes.push_back(*axis);
  }
  return {};
}

int sweep(const SweepOptions& options) {
  std::vector<Axis> axes;
  if (const std::string wrong = read_axes(options.keys, axes); !wrong.empty()) return refuse_usage("sweep", wrong);
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  const auto calibration = inputs->prices();
  if (!calibration) return refuse(calibration.diagnostics(), options.inputs.json);
  print_diagnostics(calibration.diagnostics());
  const std::vector<SweepRow> rows = rows_of(*inputs, axes, *calibration);
  std::vector<std::string> keys;
  keys.reserve(axes.size());
  for (const Axis& axis : axes) keys.push_back(axis.key);
  if (!options.chart.empty()) write_chart(options.chart, keys, rows);
  if (options.inputs.json) {
    print(sweep_json(keys, rows));
  } else if (options.csv) {
    print(csv_of(axes, rows));
  } else {
    print_table(axes, rows);
  }
  const bool answered =
      std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.ledger.has_value(); });
  return answered ? exit_code::ok : exit_code::input;
}

}  // namespace

std::function<int()> declare_sweep(CLI::App& app) {
  auto options = std::make_shared<SweepOptions>();
  app.add_option("KEYS", options->keys, "keys of the plan with the values to try; several make every combination")
      ->required()
      ->type_name("KEY=A,B,C");
  add_common_inputs(app, options->inputs, {.rank = true});
  app.add_flag("--csv", options->csv, "comma-separated values instead of a table")->excludes(app.get_option("--json"));
  app.add_option("--chart", options->chart, "writes an SVG of the memory of every combination")->type_name("FILE");
  return [options] { return sweep(*options); };
}

}  // namespace plimsoll
