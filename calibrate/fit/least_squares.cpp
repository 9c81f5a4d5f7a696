// Normal equations by Eigen over each support (calibrate/fit/least_squares.hpp).
#include "calibrate/fit/least_squares.hpp"

#include <Eigen/Dense>
#include <limits>

#include "planner/base/check.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll::calibrate {

LinearFit fit_nonnegative(const Rows& rows, const std::vector<double>& times) {
  LinearFit best;
  if (rows.size() == 0) return best;
  const auto columns = static_cast<Eigen::Index>(rows.columns());
  CHECK(columns <= 6, "every support is tried: at most 6 columns");
  const auto count = static_cast<Eigen::Index>(rows.size());
  // Scaled columns: seconds per FLOP and seconds per call differ by 14 orders of magnitude.
  Eigen::VectorXd scale = Eigen::VectorXd::Zero(columns);
  Eigen::MatrixXd x(count, columns);
  for (Eigen::Index i = 0; i < count; ++i) {
    for (Eigen::Index j = 0; j < columns; ++j) {
      x(i, j) = rows.at(static_cast<std::size_t>(i), static_cast<std::size_t>(j)) / times[static_cast<std::size_t>(i)];
      scale(j) = std::max(scale(j), std::abs(x(i, j)));
    }
  }
  for (Eigen::Index j = 0; j < columns; ++j) {
    if (scale(j) > 0) x.col(j) /= scale(j);
  }
  const Eigen::MatrixXd normal = x.transpose() * x;
  const Eigen::VectorXd right = x.transpose() * Eigen::VectorXd::Ones(count);
  double least = std::numeric_limits<double>::infinity();
  for (unsigned support = 1; support < (1U << columns); ++support) {
    std::vector<Eigen::Index> chosen;
    for (Eigen::Index j = 0; j < columns; ++j) {
      if ((support >> j & 1U) != 0 && scale(j) > 0) chosen.push_back(j);
    }
    if (chosen.empty() || static_cast<Eigen::Index>(chosen.size()) > count) continue;
    const auto size = static_cast<Eigen::Index>(chosen.size());
    Eigen::MatrixXd a(size, size);
    Eigen::VectorXd b(size);
    for (Eigen::Index p = 0; p < size; ++p) {
      b(p) = right(chosen[static_cast<std::size_t>(p)]);
      for (Eigen::Index q = 0; q < size; ++q)
        a(p, q) = normal(chosen[static_cast<std::size_t>(p)], chosen[static_cast<std::size_t>(q)]);
    }
    const Eigen::VectorXd c = a.ldlt().solve(b);
    if (!c.allFinite() || c.minCoeff() < 0) continue;
    const double squares = static_cast<double>(count) - 2 * c.dot(b) + c.dot(a * c);
    // A larger support must earn its place beyond rounding.
    if (squares >= least * (1 - 1e-9)) continue;
    least = squares;
    best.squares = std::max(0.0, squares);
    best.coefficients.assign(static_cast<std::size_t>(columns), 0);
    for (Eigen::Index p = 0; p < size; ++p) {
      const auto j = chosen[static_cast<std::size_t>(p)];
      best.coefficients[static_cast<std::size_t>(j)] = c(p) / scale(j);
    }
  }
  return best;
}

std::optional<double> rate_of(double seconds_each) {
  const double rate = 1 / seconds_each;
  if (!(rate >= limits::lowest_rate && rate <= limits::highest_rate)) return {};
  return rate;
}

}  // namespace plimsoll::calibrate
