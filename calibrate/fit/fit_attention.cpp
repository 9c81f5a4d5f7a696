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
  if (fit.coefficients.empty() || fit.coefficients[1] <= 0) return {};
  AttentionPrice::Rate rate;
  rate.head_dim = static_cast<int>(samples.front()->point.size("head_dim"));
  rate.fixed_s = fit.coefficients[0];
  rate.flops_per_s = 1 / fit.coefficients[1];
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
    entry.variable = "FLOP";
    fit_entry(entry, group, [](const Samples& some) -> std::optional<Predict> {
      const auto rate = fit_rate(some);
      if (!rate) return {};
      return [rate = *rate](const Point& p) {
        return rate.fixed_s + flops_of(p) / rate.flops_per_s * (1 + rate.half_length / d(p.size("length")));
      };
    });
    for (const Sample* sample : group) {
      const double flops = flops_of(sample->point);
      entry.range_low = entry.range_low == 0 ? flops : std::min(entry.range_low, flops);
      entry.range_high = std::max(entry.range_high, flops);
    }
    if (const auto rate = fit_rate(group); rate && entry.refused.empty()) {
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
