// How do figures become a table that a person reads?  Columns as wide as their widest cell, counted in terminal cells, so
// that they line up whatever characters a name has; and bars in eighths of a cell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

enum class Align { left, right };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  /// @param columns an empty title in all of them: no header line
  explicit Table(std::vector<Column> columns);
  /// As many cells as columns; fewer leave the rest empty.
  void row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  /// The lines, each ended by a newline, without blanks at their ends.
  /// @param indent blanks before each line
  std::string text(int indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Terminal cells of a text, colour sequences not counted.
int visible_width(std::string_view text);

/// A bar of `share` (0 to 1, else cut off) of `width` cells, to an eighth of a cell.
std::string bar(double share, int width);

/// Text broken at blanks into lines of at most `width` cells, each but the first indented.
std::string wrap(std::string_view text, int width, int indent);

}  // namespace plimsoll
