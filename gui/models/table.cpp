// Tables as text (gui/models/table.hpp).
#include "gui/models/table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/base/unicode.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string to_text(const TableData& table) {
  std::vector<std::size_t> widths(table.columns.size());
  const auto widen = [&](std::size_t column, const std::string& text) {
    widths[column] = std::max(widths[column], static_cast<std::size_t>(display_width(text)));
  };
  for (std::size_t c = 0; c < widths.size(); ++c) {
    widen(c, table.columns[c].title);
    for (const TableRow& row : table.rows) widen(c, row.cells[c].text);
  }
  std::string text;
  const auto add_line = [&](auto cell) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string& word = cell(c);
      const std::string blanks(widths[c] - static_cast<std::size_t>(display_width(word)), ' ');
      line += (c > 0 ? "  " : "") + (table.columns[c].right ? blanks + word : word + blanks);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add_line([&](std::size_t c) -> const std::string& { return table.columns[c].title; });
  for (const TableRow& row : table.rows)
    add_line([&](std::size_t c) -> const std::string& { return row.cells[c].text; });
  return text;
}

std::string to_csv(const TableData& table) {
  std::string text;
  for (std::size_t c = 0; c < table.columns.size(); ++c) text += (c > 0 ? "," : "") + csv_cell(table.columns[c].title);
  text += "\r\n";
  for (const TableRow& row : table.rows) {
    for (std::size_t c = 0; c < row.cells.size(); ++c) text += (c > 0 ? "," : "") + csv_cell(row.cells[c].text);
    text += "\r\n";
  }
  return text;
}

TableCell cell_of_bytes(std::int64_t bytes) {
  return {gibibytes(Bytes(bytes)), static_cast<double>(bytes), format_count(bytes) + " B"};
}

TableCell cell_of_text(std::string text) { return {std::move(text), 0, {}}; }

TableCell cell_of_seconds(double seconds) {
  return {format(Seconds(seconds)), seconds, fmt::format("{:.9f} s", seconds)};
}

TableCell cell_of_count(std::int64_t count) { return {format_count(count), static_cast<double>(count), {}}; }

}  // namespace plimsoll::gui
