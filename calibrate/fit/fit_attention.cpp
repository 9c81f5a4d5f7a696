// Attention by direction and head size: t = fixed + F / rate (1 + s0 / s), linear in (1, F, F / s) (calibrate/fit/fit.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

std::optional<AttentionPrice::Rate> fit_rate(const Samples& samples) {
  if (samples.size() < 4) return {};
  Rows rows;
  std::vector<double> times;
  for (const Sample* sample : samples) {
    const double flops = flops_of(sample->point);
    rows.push_back({1, flops, flops / d(std::max<std::int64_t>(1, sample->point.size("length")))});
    times.push_back(sample->time_s);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  const auto flops_per_s = fit.coefficients.empty() ? std::nullopt : rate_of(fit.coefficients[1]);
  if (!flops_per_s) return {};
  AttentionPrice::Rate rate;
  rate.head_dim = static_cast<int>(samples.front()->point.size("head_dim"));
  rate.fixed_s = fit.coefficients[0];
  rate.flops_per_s = *flops_per_s;
  rate.half_length = fit.coefficients[2] / fit.coefficients[1];
  return rate;
}

}  // namespace

std::vector<Entry> fit_attention(const Samples& samples, Calibration& into, const std::string& source) {
  std::map<std::pair<std::string, std::int64_t>, Samples> groups;
  for (const Sample* sample : samples)
    groups[{sample->point.label("direction"), sample->point.size("head_dim")}].push_back(sample);
  std::vector<Entry> entries;
  for (const auto& [which, group] : groups) {
    const bool backward = which.first == "backward";
    Entry entry{"attention", fmt::format("attention {} d {}", which.first, which.second)};
    note_range(entry, "FLOP", group, flops_of);
    const auto rate = fit_entry(entry, group, fit_rate, [](const AttentionPrice::Rate& r, const Point& p) {
      return r.fixed_s + flops_of(p) / r.flops_per_s * (1 + r.half_length / d(p.size("length")));
    });
    if (rate) {
      auto& rates = backward ? into.attention.backward : into.attention.forward;
      std::erase_if(rates, [&](const AttentionPrice::Rate& r) { return r.head_dim == rate->head_dim; });
      rates.push_back(*rate);
      // What the base adds per element is in the fitted rate already.
      if (backward) into.attention.backward_s_per_element = 0;
      into.attention.provenance = entry.provenance(source);
      entry.rule = fmt::format("{:.0f} TFLOP/s, half at s = {:.0f}, {:.1f} us", 1e-12 * rate->flops_per_s,
                               rate->half_length, 1e6 * rate->fixed_s);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace plimsoll::calibrate
