// Which non-negative coefficients describe times best?  min over c >= 0 of sum_i ((sum_j c_j x_ij) / t_i - 1)^2: relative
// errors, so that short times count as much as long ones, and no negative latency or bandwidth can come out.
#pragma once

#include <vector>

namespace plimsoll::calibrate {

struct LinearFit {
  std::vector<double> coefficients;  ///< empty: not determined (fewer rows than coefficients, or all columns zero)
  double squares = 0;                ///< the sum above
};

/// Tries every set of columns that may be positive and keeps the best: exact for the few columns used here (at most 6).
/// @param rows features of each time; @param times > 0
LinearFit fit_nonnegative(const std::vector<std::vector<double>>& rows, const std::vector<double>& times);

}  // namespace plimsoll::calibrate
