// Which non-negative coefficients describe times best?  min over c >= 0 of sum_i ((sum_j c_j x_ij) / t_i - 1)^2: relative
// errors, so that short times count as much as long ones, and no negative latency or bandwidth can come out.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

namespace plimsoll::calibrate {

/// Features x_ij, row by row, without a block of memory for each row.
class Rows {
 public:
  Rows() = default;
  Rows(std::initializer_list<std::initializer_list<double>> rows) {
    for (const auto& row : rows) push_back(row);
  }
  void push_back(std::initializer_list<double> row) {
    columns_ = row.size();
    values_.insert(values_.end(), row);
  }
  std::size_t size() const { return columns_ == 0 ? 0 : values_.size() / columns_; }
  std::size_t columns() const { return columns_; }
  double at(std::size_t row, std::size_t column) const { return values_[row * columns_ + column]; }

 private:
  std::size_t columns_ = 0;
  std::vector<double> values_;
};

struct LinearFit {
  std::vector<double> coefficients;  ///< empty: not determined (fewer rows than coefficients, or all columns zero)
  double squares = 0;                ///< the sum above
};

/// Tries every set of columns that may be positive and keeps the best: exact for the few columns used here (at most 6).
/// @param rows features of each time; @param times > 0
LinearFit fit_nonnegative(const Rows& rows, const std::vector<double>& times);

/// Bytes or operations per second of such a coefficient; nothing where it is zero, or the rate one that no calibration holds.
std::optional<double> rate_of(double seconds_each);

}  // namespace plimsoll::calibrate
