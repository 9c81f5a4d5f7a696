// Rules that are lines: kernels by bytes, copies, host costs (calibrate/fit/fit.hpp).
//   kernel  t = fixed + bytes / bandwidth      copy  t = fixed + bytes / bandwidth      host  the median itself
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

struct Line {
  double fixed_s = 0, s_per_byte = 0;
};

/// Fits fixed + slope x, x from `size_of`.
std::optional<Line> fit_line(const Samples& samples, double (*size_of)(const Point&)) {
  if (samples.size() < 3) return {};
  Rows rows;
  std::vector<double> times;
  for (const Sample* sample : samples) {
    rows.push_back({1, size_of(sample->point)});
    times.push_back(sample->time_s);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  if (fit.coefficients.empty() || fit.coefficients[1] <= 0) return {};
  return Line{fit.coefficients[0], fit.coefficients[1]};
}

Entry fit_line_entry(Entry entry, const Samples& samples, double (*size_of)(const Point&), Line& into) {
  entry.variable = "bytes";
  fit_entry(entry, samples, [&](const Samples& some) -> std::optional<Predict> {
    const auto line = fit_line(some, size_of);
    if (!line) return {};
    return [line = *line, size_of](const Point& point) { return line.fixed_s + size_of(point) * line.s_per_byte; };
  });
  if (const auto line = fit_line(samples, size_of)) into = *line;
  for (const Sample* sample : samples) {
    const double bytes = size_of(sample->point);
    entry.range_low = entry.range_low == 0 ? bytes : std::min(entry.range_low, bytes);
    entry.range_high = std::max(entry.range_high, bytes);
  }
  if (entry.refused.empty())
    entry.rule = fmt::format("{:.2f} us + bytes / {:.0f} GB/s", 1e6 * into.fixed_s, 1e-9 / into.s_per_byte);
  return entry;
}

constexpr std::size_t most_copy_points = 100;  // beyond that, the line alone

double copied_bytes(const Point& point) { return static_cast<double>(point.size("bytes")); }

std::map<std::string, Samples> by_label(const Samples& samples, const std::vector<std::string>& labels) {
  std::map<std::string, Samples> groups;
  for (const Sample* sample : samples) {
    std::string name;
    for (const std::string& label : labels) name += (name.empty() ? "" : " ") + sample->point.label(label);
    groups[name].push_back(sample);
  }
  return groups;
}

}  // namespace

double bytes_of(const Point& point) {
  if (const std::int64_t stated = point.size("bytes"); stated > 0) return static_cast<double>(stated);
  static const std::map<std::string, double> per_element = {{"vectorized", 6},
                                                            {"flat_copy", 4},
                                                            {"fill", 2},
                                                            {"memset", 2},
                                                            {"silu", 4},
                                                            {"silu_backward", 6},
                                                            {"upcast", 6},
                                                            {"adamw", 28},
                                                            {"fused_norm", 4},
                                                            {"fused_norm_backward", 6},
                                                            {"fused_rotary", 4},
                                                            {"fused_swiglu", 6},
                                                            {"gather_rows", 4},
                                                            {"softmax_loss", 6},
                                                            {"fused_swiglu_backward", 10},
                                                            {"reduce_last", 4},
                                                            {"embedding_backward", 10},
                                                            {"reduce_rows", 2},
                                                            {"strided_copy", 4}};
  const auto found = per_element.find(point.label("op"));
  const double each = found == per_element.end() ? 4 : found->second;
  // Stated for 16-bit tensors; the host backend's are fp32 (AdamW's and plain sums' are fp32 everywhere).
  const bool wider =
      point.label("dtype") == "fp32" && point.label("op") != "adamw" && point.label("op") != "reduce_last";
  return each * (wider ? 2 : 1) * static_cast<double>(point.size("elements"));
}

std::vector<Entry> fit_kernels(const Samples& samples, Calibration& into, const std::string& source) {
  std::vector<Entry> entries;
  for (const auto& [op, group] : by_label(samples, {"op"})) {
    Line line;
    entries.push_back(fit_line_entry({"kernel", "kernel " + op}, group, bytes_of, line));
    if (!entries.back().refused.empty()) continue;
    // The framework's own kernel of that name, measured on this device, is another kernel than the one measured here.
    const auto base = into.kernels.find(op);
    const bool framework = base != into.kernels.end() && base->second.provenance.evidence != Evidence::assumed &&
                           !base->second.provenance.source.starts_with("plimsoll-calibrate");
    if (framework || op.starts_with("aten::")) {
      entries.back().rule += " (the base's stays)";
      continue;
    }
    KernelPrice price;
    price.fixed_s = line.fixed_s;
    price.bytes_per_s = 1 / line.s_per_byte;
    price.provenance = entries.back().provenance(source);
    into.kernels[op] = price;
  }
  return entries;
}

namespace {

/// The line, and the measured points, within which it is not needed.
std::optional<CopyPrice> copy_price(const Samples& samples) {
  const auto line = fit_line(samples, copied_bytes);
  if (!line) return {};
  const Point& point = samples.front()->point;
  CopyPrice price;
  price.to_device = point.label("direction") != "device_to_host";
  price.pinned = point.label("memory") != "pageable";
  price.all_ranks = point.label("ranks") == "all";
  price.fixed_s = line->fixed_s;
  price.bytes_per_s = 1 / line->s_per_byte;
  std::map<double, double> points;
  for (const Sample* sample : samples) points.try_emplace(copied_bytes(sample->point), sample->time_s);
  if (points.size() <= most_copy_points) price.points.assign(points.begin(), points.end());
  return price;
}

}  // namespace

std::vector<Entry> fit_copies(const Samples& samples, Calibration& into, const std::string& source) {
  std::vector<Entry> entries;
  into.copy_prices.clear();
  for (const auto& [name, group] : by_label(samples, {"direction", "memory", "ranks"})) {
    Line line;
    Entry entry = fit_line_entry({"copy", "copy " + name}, group, copied_bytes, line);
    if (auto price = copy_price(group)) {
      entry.residuals.clear();
      fit_entry(entry, group, [](const Samples& some) -> std::optional<Predict> {
        const auto fitted = copy_price(some);
        if (!fitted) return {};
        return [fitted = *fitted](const Point& point) { return copy_seconds(fitted, copied_bytes(point)); };
      });
      price->provenance = entry.provenance(source);
      if (price->to_device && price->pinned && !price->all_ranks) {
        into.copy_fixed_s = price->fixed_s;
        into.copy_bytes_per_s = price->bytes_per_s;
        into.copies = price->provenance;
      }
      into.copy_prices.push_back(std::move(*price));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<Entry> fit_host(const Samples& samples, Calibration& into, const std::string& source) {
  std::vector<Entry> entries;
  HostPrices& host = into.host;
  // Costs of the driver's calls; where the base knows what the framework above them costs, that stays.
  const bool framework = host.provenance.evidence != Evidence::assumed;
  const std::map<std::string, double*> costs = {{"launch", &host.launch_compiled_s},
                                                {"launch_latency", &host.launch_latency_s},
                                                {"sync", &host.sync_s},
                                                {"kernel_gap", &host.kernel_gap_s}};
  for (const Sample* sample : samples) {
    const std::string op = sample->point.label("op");
    Entry entry{"host", "host " + op};
    entry.rule = fmt::format("{:.3g} us", 1e6 * sample->time_s);
    if (op == "cpu_adam") {
      const auto elements = static_cast<double>(std::max<std::int64_t>(1, sample->point.size("elements")));
      entry.rule = fmt::format("{:.3g} ps an element", 1e12 * sample->time_s / elements);
      if (!framework) host.cpu_adam_s_per_element = sample->time_s / elements;
    } else if (const auto found = costs.find(op); found != costs.end() && !framework) {
      *found->second = sample->time_s;
    }
    entry.residuals.push_back({key_of(sample->point), sample->time_s, sample->time_s, std::nan("")});
    entries.push_back(std::move(entry));
  }
  if (!source.empty() && !entries.empty())
    host.provenance.source += (host.provenance.source.empty() ? "" : "; ") + source;
  return entries;
}

}  // namespace plimsoll::calibrate
