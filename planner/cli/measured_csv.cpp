// Reading a table of measured runs from CSV (planner/cli/measured_table.hpp): cells separated by commas, quoted where they
// hold a comma, a quote or a line break, quotes doubled within (RFC 4180).  The first line names the columns.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "planner/cli/measured_figures.hpp"
#include "planner/cli/measured_table.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct Cell {
  std::string text;
  std::size_t begin = 0, end = 0;  ///< in the file, quotes included
};
using Record = std::vector<Cell>;

/// Cuts the text into records; `broken` is where a quote was opened that nothing closes, else the text's size.
std::vector<Record> records_of(const std::string& text, std::size_t& broken) {
  std::vector<Record> records;
  broken = text.size();
  std::size_t at = text.rfind("\xEF\xBB\xBF", 0) == 0 ? 3 : 0;
  while (at < text.size()) {
    Record record;
    for (bool more = true; more;) {
      Cell cell;
      cell.begin = at;
      if (at < text.size() && text[at] == '"') {
        const std::size_t opened = at++;
        while (at < text.size() && (text[at] != '"' || (at + 1 < text.size() && text[at + 1] == '"'))) {
          if (text[at] == '"') ++at;
          cell.text += text[at++];
        }
        if (at >= text.size()) broken = std::min(broken, opened);
        at = std::min(at + 1, text.size());
      }
      const std::size_t end = std::min(text.find_first_of(",\r\n", at), text.size());
      cell.text.append(text, at, end - at);
      cell.end = at = end;
      record.push_back(std::move(cell));
      more = at < text.size() && text[at] == ',';
      if (more) ++at;
    }
    while (at < text.size() && (text[at] == '\r' || text[at] == '\n')) ++at;
    if (record.size() > 1 || !record.front().text.empty()) records.push_back(std::move(record));
  }
  return records;
}

RawValue raw_value(const Cell& cell, const std::string& column) {
  RawValue raw;
  raw.begin = cell.begin;
  raw.end = cell.end;
  raw.pointer = column;
  const char* first = cell.text.data();
  const char* last = first + cell.text.size();
  const auto [end, failed] = std::from_chars(first, last, raw.value);
  if (failed == std::errc() && end == last && std::isfinite(raw.value)) {
    raw.kind = raw.value == std::floor(raw.value) ? RawValue::Kind::integer : RawValue::Kind::number;
  } else {
    raw.kind = RawValue::Kind::text;
    raw.text = cell.text;
  }
  return raw;
}

bool takes_prefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

class CsvReader {
 public:
  CsvReader(MeasuredTable& table, const Record& header) : table_(table), header_(header), figures_(table) {}

  void read(const Record& record, std::size_t index) {
    MeasuredRow row;
    row.id = fmt::format("rows[{}]", index);
    row.place = place(record.front());
    for (std::size_t i = 0; i < std::min(record.size(), header_.size()); ++i) {
      if (header_[i].text == "id" && !record[i].text.empty()) row.id = record[i].text;
    }
    if (record.size() != header_.size()) {
      error(row, fmt::format("{} cells, where the header names {} columns", record.size(), header_.size()),
            "table.csv");
      return;
    }
    for (std::size_t i = 0; i < record.size(); ++i) {
      if (!record[i].text.empty()) take(row, header_[i].text, record[i]);
    }
    figures_.check_order(row);
    const bool model = need(row, row.model.stated(), "model");
    const bool cluster = need(row, row.cluster.stated(), "cluster");
    const bool plan = need(row, row.plan.stated() || !row.sets.empty(), "plan");
    if (row.measurements.empty()) {
      error(row, "nothing is measured that could be compared", "table.missing");
    } else if (model && cluster && plan) {
      table_.rows.push_back(std::move(row));
    }
  }

 private:
  Place place(const Cell& cell) const { return place_in(table_.file, cell.begin, cell.end); }

  void error(const MeasuredRow& row, std::string message, const char* code) {
    Diagnostic diagnostic;
    diagnostic.code = code;
    diagnostic.place = row.place;
    diagnostic.message = fmt::format("row {}: {}", row.id, message);
    table_.unanswered.push_back({row.id, std::move(message)});
    table_.diagnostics.push_back(std::move(diagnostic));
  }

  bool need(const MeasuredRow& row, bool there, const char* column) {
    if (!there) error(row, fmt::format("the column {} is missing", column), "table.missing");
    return there;
  }

  void take_text(RowText& text, const std::string& column, const Cell& cell) const {
    text.place = place(cell);
    text.place.pointer = "/" + column;
    if (cell.text.find('{') == std::string::npos || cell.text.rfind("sketch:", 0) == 0) {
      text.name = cell.text;
      return;
    }
    auto file = std::make_shared<SourceFile>();
    file->name = table_.file->name;
    file->text = cell.text;
    text.text = std::move(file);
  }

  void take(MeasuredRow& row, const std::string& column, const Cell& cell) {
    std::string_view rest = column;
    if (column == "id") return;
    if (column == "model") {
      take_text(row.model, column, cell);
    } else if (column == "cluster") {
      take_text(row.cluster, column, cell);
    } else if (column == "plan" || (column == "ds_config" && !row.plan.stated())) {
      row.is_ds_config = column == "ds_config";
      row.plan = {};
      take_text(row.plan, column, cell);
    } else if (takes_prefix(rest, "plan.")) {
      row.sets.push_back(fmt::format("{}={}", rest, cell.text));
    } else if (column == "process") {
      row.fresh = cell.text == "fresh";
      if (!row.fresh && cell.text != "shared") error(row, "process is neither fresh nor shared", "table.choice");
    } else if (column == "parameters") {
      const RawValue value = raw_value(cell, column);
      if (value.kind == RawValue::Kind::integer && std::abs(value.value) < 0x1p53)
        row.parameters = static_cast<std::int64_t>(value.value);
    } else {
      takes_prefix(rest, "measured.");
      figures_.take(row, rest, raw_value(cell, column));
    }
  }

  MeasuredTable& table_;
  const Record& header_;
  FigureReader figures_;
};

}  // namespace

MeasuredTable read_measured_csv(const std::shared_ptr<const SourceFile>& file) {
  MeasuredTable table;
  table.file = file;
  std::size_t broken = 0;
  const std::vector<Record> records = records_of(file->text, broken);
  const auto fail = [&](std::size_t at, const char* code, std::string message) {
    Diagnostic diagnostic;
    diagnostic.code = code;
    diagnostic.place = place_in(file, at, at + 1);
    diagnostic.message = std::move(message);
    table.diagnostics.push_back(std::move(diagnostic));
  };
  if (broken < file->text.size()) fail(broken, "table.csv", "this quote is never closed");
  if (file->text.size() > document_size_limit) {
    fail(0, "table.csv", "the file is too large");
    return table;
  }
  if (records.size() < 2) {
    fail(0, "table.form", "this is no table of measured runs: a line with the names of its columns, then the rows");
    return table;
  }
  CsvReader reader(table, records.front());
  for (std::size_t i = 1; i < records.size(); ++i) reader.read(records[i], i - 1);
  return table;
}

}  // namespace plimsoll
