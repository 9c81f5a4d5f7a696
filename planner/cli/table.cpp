// Tables, bars and wrapped text (planner/cli/table.hpp).
#include "planner/cli/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/base/check.hpp"
#include "planner/base/unicode.hpp"

namespace plimsoll {
namespace {

std::string without_colour(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::string padded(const std::string& cell, int width, Align align) {
  const std::string blanks(static_cast<std::size_t>(std::max(0, width - visible_width(cell))), ' ');
  return align == Align::left ? cell + blanks : blanks + cell;
}

void strip_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

int visible_width(std::string_view text) { return display_width(without_colour(text)); }

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::row(std::vector<std::string> cells) {
  CHECK(cells.size() <= columns_.size(), "a row has at most one cell a column");
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(int indent) const {
  std::vector<int> widths;
  bool header = false;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    int width = visible_width(columns_[c].title);
    header |= !columns_[c].title.empty();
    for (const auto& row : rows_) width = std::max(width, visible_width(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto line = [&](auto cell_of) {
    std::string out(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) out += "  ";
      out += padded(cell_of(c), widths[c], columns_[c].align);
    }
    strip_end(out);
    text += out + "\n";
  };
  if (header) line([&](std::size_t c) { return columns_[c].title; });
  for (const auto& row : rows_) line([&](std::size_t c) { return row[c]; });
  return text;
}

std::string bar(double share, int width) {
  static constexpr std::array<const char*, 8> parts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cut = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0.0;
  auto eighths = static_cast<int>(std::lround(cut * width * 8));
  if (cut > 0 && eighths == 0) eighths = 1;
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + parts[static_cast<std::size_t>(eighths % 8)];
}

std::string wrap(std::string_view text, int width, int indent) {
  std::string out;
  int column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const int cells = display_width(word);
    if (column > 0 && column + 1 + cells > width) {
      out += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += cells;
    at = end + 1;
  }
  return out;
}

}  // namespace plimsoll
