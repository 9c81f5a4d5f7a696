// How well does a rule describe what was measured?  Each class of samples is fitted on all of its points, and five times on
// four fifths of them (by a hash of the point, so that runs agree) to predict the fifth that was held out.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/samples/sample.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll::calibrate {

using Samples = std::vector<const Sample*>;
/// Seconds that a fitted rule says for a point; NaN where it cannot.
using Predict = std::function<double(const Point&)>;

struct Residual {
  std::string key;
  double measured_s = 0, fitted_s = 0, held_out_s = 0;  ///< held out: predicted by a fit that did not see it
  double fitted() const { return fitted_s / measured_s - 1; }
  double held_out() const { return held_out_s / measured_s - 1; }
};

/// One class: "gemm", "collective all_gather x2 nvlink", "kernel adamw".
struct Entry {
  std::string kind = {};  ///< gemm, gemm_grouped, attention, kernel, copy, pageable copy, collective, host, pair
  std::string name = {};
  std::string refused = {};  ///< why there is no fit; empty: there is one
  std::string rule = {};     ///< the coefficients in words
  std::vector<Residual> residuals = {};
  double range_low = 0, range_high = 0;    ///< of `variable`
  std::string variable = {};               ///< "bytes", "FLOP", "elements"
  std::vector<std::string> outliers = {};  ///< "key: +34 %"
  /// Samples that say nothing for the rule, and why.
  std::vector<std::pair<const Sample*, std::string>> left_out = {};

  Provenance provenance(const std::string& source) const;
};

struct Errors {
  int count = 0;
  double mean = 0, worst = 0, interval = 0;  ///< of absolute relative errors; interval: 95 % of them are below
};
/// @param longer_than_s only points that took at least this long
Errors errors_of(const std::vector<Residual>& residuals, bool held_out, double longer_than_s = 0);

/// Points that are predicted this far off in the mean when they are held out have no rule: it would not tell a time from half of
/// it, which the figures that a maker publishes do.
inline constexpr double most_mean_error = 0.5;

/// Sets what the entry's range is of, and the least and greatest of it.
void note_range(Entry& entry, const char* variable, const Samples& samples, double (*size_of)(const Point&));

/// Fills residuals and outliers of `entry`, or why it is refused.  Several samples of one point are held out together.
/// @param all the rule fitted to all samples; nothing: they do not suffice
/// @param fitter fits the rule to some of them
void cross_validate(Entry& entry, const Samples& samples, const std::optional<Predict>& all,
                    const std::function<std::optional<Predict>(const Samples&)>& fitter);

/// Fits and cross-validates.
/// @param fit samples to a price, std::optional: nothing where they do not suffice
/// @param seconds what a price says of a point
/// @return the price fitted to all samples; nothing if the entry is refused
template <class Fit, class Seconds>
auto fit_entry(Entry& entry, const Samples& samples, const Fit& fit, const Seconds& seconds) {
  auto price = fit(samples);
  const auto predict = [&seconds](const decltype(price)& fitted) -> std::optional<Predict> {
    if (!fitted) return {};
    return [&seconds, p = *fitted](const Point& point) { return seconds(p, point); };
  };
  cross_validate(entry, samples, predict(price), [&](const Samples& some) { return predict(fit(some)); });
  if (!entry.refused.empty()) price.reset();
  return price;
}

}  // namespace plimsoll::calibrate
