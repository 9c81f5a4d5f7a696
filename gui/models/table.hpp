// What stands in a table?  Columns and rows of text with what to sort by and what to say on hovering: plain values that a test
// reads as text, and that Qt shows through TableModel.
#pragma once

#include <string>
#include <vector>

namespace plimsoll::gui {

struct TableColumn {
  std::string title;
  bool right = false;  ///< figures
  std::string tip;     ///< what the word means
  bool operator==(const TableColumn&) const = default;
};

struct TableCell {
  std::string text;
  double order = 0;  ///< for columns of figures
  std::string tip;
  bool operator==(const TableCell&) const = default;
};

struct TableRow {
  std::vector<TableCell> cells;
  std::string id;        ///< of what it is about: the name of a number, a category, a key
  bool strong = false;   ///< a sum
  std::string ink = {};  ///< the name whose colour and pattern stand before it
  bool operator==(const TableRow&) const = default;
};

struct TableData {
  std::vector<TableColumn> columns;
  std::vector<TableRow> rows;
  bool operator==(const TableData&) const = default;
};

/// Aligned columns, as `plimsoll` prints them; for tests and the clipboard.
std::string to_text(const TableData& table);
/// RFC 4180, with the titles as first line.
std::string to_csv(const TableData& table);

/// A cell of a figure in GiB, with its exact bytes on hovering.
TableCell cell_of_bytes(std::int64_t bytes);
TableCell cell_of_text(std::string text);
/// A cell of a duration.
TableCell cell_of_seconds(double seconds);
TableCell cell_of_count(std::int64_t count);

}  // namespace plimsoll::gui
