// Columns, figures and units of measured tables (planner/cli/measured_figures.hpp).
#include "planner/cli/measured_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "planner/base/format.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct Column {
  const char* name;
  const char* figure;  ///< null: known, and not compared
};

constexpr std::array<Column, 5> row_columns = {{{"allocated_peak_bytes", "allocated_peak"},
                                                {"reserved_peak_bytes", "reserved_peak"},
                                                {"device_peak_bytes", "device_peak"},
                                                {"device_bytes_before", nullptr},
                                                {"allocated_peak_bytes_over_steps", nullptr}}};

constexpr std::array<Column, 10> phase_columns = {{{"allocated_bytes_at_end", "allocated_end"},
                                                   {"gpu_allocated_bytes_at_end", "allocated_end"},
                                                   {"allocated_peak_bytes", "allocated_peak"},
                                                   {"gpu_allocated_peak_bytes", "allocated_peak"},
                                                   {"reserved_bytes_at_end", "reserved_end"},
                                                   {"host_resident_bytes_at_end", "host_resident_end"},
                                                   {"host_resident_peak_bytes", "host_resident_peak"},
                                                   {"host_pinned_bytes", "host_pinned"},
                                                   {"host_pinned_peak_bytes", nullptr},
                                                   {"host_anonymous_bytes", nullptr}}};

/// The moment between the last step and saving: no phase in which anything happens.
constexpr std::string_view moment_before_saving = "before_save";

/// No training step's peak is smaller; a smaller number was written in another unit.
constexpr double least_peak = 1 << 20;

template <std::size_t count>
const Column* find_column(const std::array<Column, count>& columns, std::string_view name) {
  const auto found = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return name == c.name; });
  return found == columns.end() ? nullptr : &*found;
}

/// "allocated_peak_gib" without its unit: "allocated_peak".
std::string_view without_unit(std::string_view name) {
  static constexpr std::array<std::string_view, 14> units = {"_bytes", "_kib", "_mib", "_gib", "_kb", "_mb", "_gb",
                                                             "_KiB",   "_MiB", "_GiB", "_MB",  "_GB", "_ms", "_us"};
  for (const std::string_view unit : units) {
    if (name.size() > unit.size() && name.substr(name.size() - unit.size()) == unit)
      return name.substr(0, name.size() - unit.size());
  }
  return name;
}

/// The column that is meant by one that differs in its unit alone.
std::optional<std::string> same_in_other_unit(std::string_view name) {
  const std::string_view stem = without_unit(name);
  if (stem == "step_time") return "step_time_s";
  for (const Column& column : row_columns) {
    if (stem == without_unit(column.name)) return column.name;
  }
  for (const Column& column : phase_columns) {
    if (stem == without_unit(column.name)) return column.name;
  }
  return std::nullopt;
}

bool is_peak(std::string_view figure) {
  return figure == "allocated_peak" || figure == "reserved_peak" || figure == "device_peak";
}

}  // namespace

void FigureReader::error(const MeasuredRow& row, const RawValue& value, const char* code, std::string message,
                         std::string help) {
  Diagnostic diagnostic;
  diagnostic.code = code;
  diagnostic.place = place_in(table_.file, value.begin, value.end, value.pointer);
  diagnostic.message = fmt::format("row {}: {}", row.id, message);
  diagnostic.help = std::move(help);
  table_.unanswered.push_back({row.id, std::move(message)});
  table_.diagnostics.push_back(std::move(diagnostic));
}

void FigureReader::take(MeasuredRow& row, std::string_view path, const RawValue& value) {
  constexpr std::string_view phases = "phases.";
  constexpr std::string_view files = "files_bytes.";
  if (path.substr(0, files.size()) == files) {
    take_bytes(row, fmt::format("file.{}", path.substr(files.size())), value);
    return;
  }
  if (path == "step_time_s" || path == "step_time_s.median") {
    take_seconds(row, value);
    return;
  }
  if (path == "step_time_s.min" || path == "step_time_s.max") return;
  if (path.substr(0, phases.size()) == phases) {
    const std::string_view rest = path.substr(phases.size());
    const std::size_t dot = rest.find('.');
    const std::string_view phase = rest.substr(0, dot);
    if (phase == moment_before_saving) return;
    const Column* column = dot == std::string_view::npos ? nullptr : find_column(phase_columns, rest.substr(dot + 1));
    if (column == nullptr) {
      unknown(row, path, value);
    } else if (column->figure != nullptr) {
      take_bytes(row, fmt::format("{}.{}", phase, column->figure), value);
    }
    return;
  }
  const Column* column = find_column(row_columns, path);
  if (column == nullptr) {
    unknown(row, path, value);
  } else if (column->figure != nullptr) {
    take_bytes(row, column->figure, value);
  }
}

void FigureReader::unknown(const MeasuredRow& row, std::string_view path, const RawValue& value) {
  const std::size_t dot = path.rfind('.');
  const std::string name(path.substr(dot == std::string_view::npos ? 0 : dot + 1));
  if (const auto meant = same_in_other_unit(name)) {
    error(row, value, "table.unit", fmt::format("{} is in another unit than the tables' own", name),
          fmt::format("write {}: bytes are due, and seconds for times; or a text with its unit, \"23.1 GiB\"", *meant));
    return;
  }
  std::vector<std::string> names = {"step_time_s", "phases", "files_bytes"};
  for (const Column& column : row_columns) names.emplace_back(column.name);
  for (const Column& column : phase_columns) names.emplace_back(column.name);
  const auto near = nearest(name, names);
  if (!near) return;  // a column of the user's own
  error(row, value, "table.unknown", fmt::format("there is no column {}", name),
        fmt::format("did you mean {}?", *near));
}

void FigureReader::take_bytes(MeasuredRow& row, std::string figure, const RawValue& value) {
  double bytes = value.value;
  switch (value.kind) {
    case RawValue::Kind::integer: break;
    case RawValue::Kind::number:
      error(row, value, "table.unit", fmt::format("{} is {}, and bytes are whole numbers", figure, value.value),
            "is this in MiB or GiB? A text states its unit: \"23.1 GiB\"");
      return;
    case RawValue::Kind::text: {
      const auto parsed = parse_bytes(value.text);
      if (!parsed) {
        error(row, value, "table.unit", fmt::format("{} is \"{}\", which is no size", figure, value.text),
              "whole bytes, or a text like \"23.1 GiB\"");
        return;
      }
      bytes = static_cast<double>(parsed->count);
      break;
    }
    case RawValue::Kind::other:
      error(row, value, "table.type", fmt::format("{} is no number", figure),
            "whole bytes, or a text like \"23.1 GiB\"");
      return;
  }
  if (bytes < 0 || (is_peak(figure) && bytes < least_peak)) {
    error(row, value, "table.unit", fmt::format("{} of {} bytes is no training step's", figure, bytes),
          "is this in MiB or GiB? Whole bytes are due, or a text like \"23.1 GiB\"");
    return;
  }
  row.measurements.push_back({std::move(figure), bytes, value.begin, value.end, value.pointer});
}

void FigureReader::take_seconds(MeasuredRow& row, const RawValue& value) {
  double seconds = value.value;
  if (value.kind == RawValue::Kind::text) {
    const auto parsed = parse_seconds(value.text);
    seconds = parsed ? parsed->count : -1;
  }
  if (value.kind == RawValue::Kind::other || !(seconds > 0)) {
    error(row, value, "table.unit", "step_time_s is no time", "seconds, or a text like \"120 ms\"");
    return;
  }
  row.measurements.push_back({"step_time", seconds, value.begin, value.end, value.pointer});
}

void FigureReader::check_pair(MeasuredRow& row, const std::string& lower, const std::string& upper) {
  const auto find = [&](const std::string& figure) {
    return std::find_if(row.measurements.begin(), row.measurements.end(),
                        [&](const Measurement& m) { return m.figure == figure; });
  };
  const auto low = find(lower);
  const auto high = find(upper);
  if (low == row.measurements.end() || high == row.measurements.end() || low->value <= high->value) return;
  RawValue place;
  place.begin = high->begin;
  place.end = high->end;
  place.pointer = high->pointer;
  error(row, place, "table.order",
        fmt::format("{} is {:.0f} bytes, less than {} with {:.0f}: neither is compared", upper, high->value, lower,
                    low->value),
        "are the units mixed up, or the columns?");
  std::erase_if(row.measurements, [&](const Measurement& m) { return m.figure == lower || m.figure == upper; });
}

void FigureReader::check_order(MeasuredRow& row) {
  check_pair(row, "allocated_peak", "reserved_peak");
  check_pair(row, "reserved_peak", "device_peak");
  std::set<std::string> phases;
  for (const Measurement& measurement : row.measurements) {
    const std::size_t dot = measurement.figure.find('.');
    if (dot != std::string::npos && measurement.figure.substr(0, dot) != "file")
      phases.insert(measurement.figure.substr(0, dot));
  }
  for (const std::string& phase : phases) {
    check_pair(row, phase + ".allocated_end", phase + ".allocated_peak");
    check_pair(row, phase + ".host_resident_end", phase + ".host_resident_peak");
  }
}

}  // namespace plimsoll
