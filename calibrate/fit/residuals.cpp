// Cross-validation and residuals (calibrate/fit/residuals.hpp).
#include "calibrate/fit/residuals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace plimsoll::calibrate {
namespace {

constexpr std::size_t folds = 5;

std::uint64_t hash_of(const std::string& key) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash ^ hash >> 29;
}

struct Folds {
  std::vector<std::size_t> of_each;
  std::size_t count = 0;
};

/// Folds of nearly equal size: the points in the order of their hashes, dealt out in turn; few points, one by one.
Folds folds_of(const std::vector<std::string>& keys) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(keys.size());
  for (const std::string& key : keys) hashes.push_back(hash_of(key));
  std::vector<std::uint64_t> points = hashes;
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  Folds result;
  result.count = points.size() < 3 * folds ? points.size() : folds;
  for (const std::uint64_t hash : hashes) {
    const auto rank = std::lower_bound(points.begin(), points.end(), hash) - points.begin();
    result.of_each.push_back(static_cast<std::size_t>(rank) % result.count);
  }
  return result;
}

/// A point stands out whose error is beyond 15 % and beyond five times the usual one (median absolute deviation).
std::vector<std::string> outliers_of(const std::vector<Residual>& residuals) {
  std::vector<double> errors;
  errors.reserve(residuals.size());
  for (const Residual& r : residuals) errors.push_back(std::abs(r.fitted()));
  if (errors.empty()) return {};
  auto sorted = errors;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  const double usual = sorted[sorted.size() / 2];
  std::vector<std::string> result;
  for (std::size_t i = 0; i < residuals.size(); ++i) {
    if (errors[i] > 0.15 && errors[i] > 5 * usual)
      result.push_back(fmt::format("{}: {:+.0f} %", residuals[i].key, 100 * residuals[i].fitted()));
  }
  return result;
}

}  // namespace

Provenance Entry::provenance(const std::string& source) const {
  const Errors errors = errors_of(residuals, true);
  Provenance p;
  p.evidence = Evidence::fitted;
  p.samples = errors.count;
  p.residual = errors.mean;
  p.interval = errors.interval;
  p.range_low = range_low;
  p.range_high = range_high;
  p.source = source;
  return p;
}

Errors errors_of(const std::vector<Residual>& residuals, bool held_out, double longer_than_s) {
  std::vector<double> values;
  for (const Residual& r : residuals) {
    const double error = std::abs(held_out ? r.held_out() : r.fitted());
    if (r.measured_s >= longer_than_s && std::isfinite(error)) values.push_back(error);
  }
  Errors result;
  result.count = static_cast<int>(values.size());
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  result.worst = values.back();
  result.interval =
      values[std::min(values.size() - 1, static_cast<std::size_t>(0.95 * static_cast<double>(values.size())))];
  return result;
}

void note_range(Entry& entry, const char* variable, const Samples& samples, double (*size_of)(const Point&)) {
  entry.variable = variable;
  for (const Sample* sample : samples) {
    const double size = size_of(sample->point);
    entry.range_low = entry.range_low == 0 ? size : std::min(entry.range_low, size);
    entry.range_high = std::max(entry.range_high, size);
  }
}

void cross_validate(Entry& entry, const Samples& samples, const std::optional<Predict>& all,
                    const std::function<std::optional<Predict>(const Samples&)>& fitter) {
  if (!all) {
    entry.refused = fmt::format("{} points do not determine a rule that a calibration may hold", samples.size());
    return;
  }
  std::vector<std::string> keys;
  for (const Sample* sample : samples) {
    keys.push_back(key_of(sample->point));
    entry.residuals.push_back({keys.back(), sample->time_s, (*all)(sample->point), std::nan("")});
  }
  const auto [fold, count] = folds_of(keys);
  for (std::size_t held = 0; held < count; ++held) {
    Samples rest;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (fold[i] != held) rest.push_back(samples[i]);
    }
    const auto rule = fitter(rest);
    if (!rule) continue;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (fold[i] == held) entry.residuals[i].held_out_s = (*rule)(samples[i]->point);
    }
  }
  entry.outliers = outliers_of(entry.residuals);
  if (const Errors errors = errors_of(entry.residuals, true); errors.mean > most_mean_error) {
    entry.refused =
        fmt::format("points are {:.0f} % off, in the mean, of what the others say of them", 100 * errors.mean);
  }
}

}  // namespace plimsoll::calibrate
