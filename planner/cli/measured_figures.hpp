// Which figure does a column of a measured table hold, and in which unit?  The one list of columns that the readers of JSON
// and CSV share, and the checks by which mixed-up units show.
#pragma once

#include <string>
#include <string_view>

#include "planner/cli/measured_table.hpp"

namespace plimsoll {

/// A value of a table as it was written.
struct RawValue {
  enum class Kind : std::uint8_t { integer, number, text, other };
  Kind kind = Kind::other;
  double value = 0;
  std::string text;
  std::size_t begin = 0, end = 0;  ///< bytes of the table
  std::string pointer;
};

class FigureReader {
 public:
  explicit FigureReader(MeasuredTable& table) : table_(table) {}

  /// Takes one value under its path below `measured`: "phases.steady_step.allocated_peak_bytes".
  void take(MeasuredRow& row, std::string_view path, const RawValue& value);
  /// When all values of a row are taken: allocated <= reserved <= device, and no end above its phase's peak.
  void check_order(MeasuredRow& row);

 private:
  void take_bytes(MeasuredRow& row, std::string figure, const RawValue& value);
  void take_seconds(MeasuredRow& row, const RawValue& value);
  void unknown(const MeasuredRow& row, std::string_view path, const RawValue& value);
  void error(const MeasuredRow& row, const RawValue& value, const char* code, std::string message, std::string help);
  void check_pair(MeasuredRow& row, const std::string& lower, const std::string& upper);

  MeasuredTable& table_;
};

}  // namespace plimsoll
