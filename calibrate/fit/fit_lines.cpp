// Rules that are lines: kernels by bytes, copies, host costs (calibrate/fit/fit.hpp).
//   kernel  t = fixed + min(bytes, C) / near + max(0, bytes - C) / far, C bytes of the device's last cache
//   copy    the same, C the size from which it goes another way, times what the measured sizes leave over where neighbours agree
//   host    the median itself
// Why two rates: the memset that empties the cache before each launch leaves it full of lines that must be written back.  A
// kernel that reads pays for that until C bytes of its own are there (a reduction's first 63 MB on H200 go at 3.1 TB/s, the rest
// at 4.4), one that writes leaves as much behind.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "calibrate/samples/rounds.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

/// Fits fixed + bytes / bandwidth, bytes from `size_of`; with two rates where points lie on both sides of the cache's size.
std::optional<KernelPrice> fit_line(const Samples& samples, double (*size_of)(const Point&), double cache_bytes) {
  constexpr std::size_t fewest = 3;  // for two coefficients; each rate beside them needs as many of its own
  if (samples.size() < fewest) return {};
  std::size_t below = 0;
  for (const Sample* sample : samples) below += size_of(sample->point) <= cache_bytes ? 1 : 0;
  const bool two = cache_bytes > 0 && below >= fewest && samples.size() - below >= fewest;
  Rows rows;
  std::vector<double> times;
  for (const Sample* sample : samples) {
    const double bytes = size_of(sample->point);
    if (two) {
      rows.push_back({1, std::min(bytes, cache_bytes), std::max(0.0, bytes - cache_bytes)});
    } else {
      rows.push_back({1, bytes});
    }
    times.push_back(sample->time_s);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  if (fit.coefficients.empty()) return {};
  const auto near = rate_of(fit.coefficients[1]), far = rate_of(fit.coefficients.back());
  if (!near || !far) return {};
  KernelPrice price;
  price.fixed_s = fit.coefficients[0];
  price.bytes_per_s = *far;
  if (two) {
    price.cached_bytes = cache_bytes;
    price.cached_bytes_per_s = *near;
  }
  return price;
}

double line_seconds(const KernelPrice& line, double bytes) { return pointwise_seconds(line, {}, 0, bytes, 0); }

std::string in_words(const KernelPrice& price) {
  std::string text = fmt::format("{:.2f} us + bytes / {:.0f} GB/s", 1e6 * price.fixed_s, 1e-9 * price.bytes_per_s);
  if (price.cached_bytes > 0)
    text += fmt::format(", the first {:.0f} MB / {:.0f}", 1e-6 * price.cached_bytes, 1e-9 * price.cached_bytes_per_s);
  return text;
}

constexpr std::size_t most_bends = 100;  // that are tried

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

std::vector<Entry> fit_kernels(const Samples& samples, double cache_bytes, Calibration& into,
                               const std::string& source) {
  std::vector<Entry> entries;
  for (const auto& [op, group] : by_label(samples, {"op"})) {
    Entry& entry = entries.emplace_back(Entry{"kernel", "kernel " + op});
    note_range(entry, "bytes", group, bytes_of);
    auto price = fit_entry(
        entry, group, [&](const Samples& some) { return fit_line(some, bytes_of, cache_bytes); },
        [](const KernelPrice& line, const Point& point) { return line_seconds(line, bytes_of(point)); });
    if (!price) continue;
    entry.rule = in_words(*price);
    // The framework's own kernel of that name, measured on this device, is another kernel than the one measured here.
    const auto base = into.kernels.find(op);
    const bool framework = base != into.kernels.end() && is_from_framework(base->second.provenance);
    if (framework || op.starts_with("aten::")) {
      entry.rule += " (the base's stays)";
      continue;
    }
    price->provenance = entry.provenance(source);
    into.kernels[op] = *price;
  }
  return entries;
}

namespace {

double squares_of(const KernelPrice& line, const Samples& samples) {
  double squares = 0;
  for (const Sample* sample : samples)
    squares += std::pow(line_seconds(line, copied_bytes(sample->point)) / sample->time_s - 1, 2);
  return squares;
}

constexpr double straight = 1e-8;  // mean square of relative errors of 0.01 %

/// Beyond some size copies go another way (through a staging buffer, by another engine): the first bytes at one rate, the rest
/// at another.  The size is a measured one, or midway between two, with the least squares, if these are a tenth below those of
/// one rate.
std::optional<KernelPrice> bent_line(const Samples& samples, const std::set<double>& measured) {
  auto best = fit_line(samples, copied_bytes, 0);
  if (!best) return {};
  const double squares_straight = squares_of(*best, samples);
  if (squares_straight < straight * static_cast<double>(samples.size())) return best;
  std::set<double> bends;
  double last = 0;
  for (const double size : measured) {
    if (last > 0) bends.insert(std::sqrt(last * size));
    bends.insert(size);
    last = size;
  }
  const std::size_t stride = 1 + bends.size() / most_bends;
  double least = 0.9 * squares_straight;
  std::size_t index = 0;
  for (const double bend : bends) {
    if (index++ % stride != 0) continue;
    const auto line = fit_line(samples, copied_bytes, bend);
    if (!line || line->cached_bytes <= 0) continue;
    if (const double squares = squares_of(*line, samples); squares < least) {
      least = squares;
      best = line;
    }
  }
  return best;
}

/// One sample a size, in rising order, its time the median of that size's.
std::vector<Sample> medians_by_size(const Samples& samples) {
  std::map<double, std::vector<double>> times;
  for (const Sample* sample : samples) {
    if (const double bytes = copied_bytes(sample->point); bytes > 0) times[bytes].push_back(sample->time_s);
  }
  std::vector<Sample> medians;
  for (const auto& [bytes, of_it] : times) {
    Sample& median = medians.emplace_back();
    median.point.sizes["bytes"] = static_cast<std::int64_t>(bytes);
    median.time_s = median_interval(of_it).median;
  }
  return medians;
}

/// (log bytes, log of the time over the line's), in rising order.
using Rest = std::vector<std::pair<double, double>>;

Rest rest_of(const Samples& medians, const KernelPrice& line) {
  Rest rest;
  for (const Sample* sample : medians) {
    const double bytes = copied_bytes(sample->point);
    rest.emplace_back(std::log(bytes), std::log(sample->time_s / line_seconds(line, bytes)));
  }
  return rest;
}

/// On a straight line between two of the rest; beyond them the nearest.
double rest_at(const Rest& rest, double bytes) {
  const double at = std::log(bytes);
  if (at <= rest.front().first) return rest.front().second;
  if (at >= rest.back().first) return rest.back().second;
  const auto above =
      std::upper_bound(rest.begin(), rest.end(), at, [](double value, const auto& one) { return value < one.first; });
  const auto& [low, low_rest] = *(above - 1);
  const auto& [high, high_rest] = *above;
  return low_rest + (high_rest - low_rest) * (at - low) / (high - low);
}

/// True if what a line leaves over is more of the sizes than of the moments they were measured in: a size that the line did not
/// see is told better, by a tenth of the squares, with what its neighbours leave over than without.
bool neighbours_tell_more(const std::vector<Sample>& medians, const std::set<double>& measured) {
  constexpr std::size_t fewest = 5, most = 40;  // sizes; each between the ends is left out once
  if (medians.size() < fewest || medians.size() > most) return false;
  double by_line = 0, by_neighbours = 0;
  for (std::size_t out = 1; out + 1 < medians.size(); ++out) {
    Samples others;
    for (std::size_t i = 0; i < medians.size(); ++i) {
      if (i != out) others.push_back(&medians[i]);
    }
    const auto line = bent_line(others, measured);
    if (!line) return false;
    const double bytes = copied_bytes(medians[out].point);
    const double left_over = std::log(medians[out].time_s / line_seconds(*line, bytes));
    by_line += std::pow(left_over, 2);
    by_neighbours += std::pow(left_over - rest_at(rest_of(others, *line), bytes), 2);
  }
  return by_line >= straight * static_cast<double>(medians.size()) && by_neighbours < 0.9 * by_line;
}

/// The line and, where neighbours tell more, what is left over; unless it is a straight line, as values at measured sizes, at the
/// bend and at powers of two, between which they are interpolated.
std::optional<CopyPrice> copy_price(const Samples& samples) {
  std::set<double> measured;
  for (const Sample* sample : samples) measured.insert(copied_bytes(sample->point));
  const auto line = bent_line(samples, measured);
  if (!line) return {};
  const Point& point = samples.front()->point;
  CopyPrice price;
  price.to_device = point.label("direction") != "device_to_host";
  price.pinned = point.label("memory") != "pageable";
  price.all_ranks = point.label("ranks") == "all";
  price.fixed_s = line->fixed_s;
  price.bytes_per_s = line->bytes_per_s;
  const std::vector<Sample> medians = medians_by_size(samples);
  Rest rest{{0, 0}};
  const bool kept = neighbours_tell_more(medians, measured);
  if (kept) {
    Samples all;
    for (const Sample& sample : medians) all.push_back(&sample);
    rest = rest_of(all, *line);
  }
  std::set<double> sizes;
  if (line->cached_bytes > 0) {
    const double beyond_s = 1 / line->bytes_per_s, within_s = 1 / line->cached_bytes_per_s;
    price.fixed_s = std::max(0.0, line->fixed_s + line->cached_bytes * (within_s - beyond_s));
    sizes.insert(std::round(line->cached_bytes));
  }
  if (kept) sizes.insert(measured.upper_bound(0), measured.end());
  if (sizes.empty()) return price;
  for (double size = 512; size < 2 * *measured.rbegin(); size *= 2) sizes.insert(size);
  for (const double size : sizes)
    price.points.emplace_back(size, line_seconds(*line, size) * std::exp(rest_at(rest, size)));
  return price;
}

/// By how much samples of one point differ from their median, in the mean over those measured several times; 0: none was.
double between_runs(const Samples& samples) {
  std::map<std::string, std::vector<double>> by_point;
  for (const Sample* sample : samples) by_point[key_of(sample->point)].push_back(sample->time_s);
  double sum = 0;
  int count = 0;
  for (auto& [key, times] : by_point) {
    if (times.size() < 2) continue;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    for (const double time : times) sum += std::abs(time / *middle - 1);
    count += static_cast<int>(times.size());
  }
  return count > 0 ? sum / count : 0;
}

/// By how much a round of a point differs from its median, in the mean over those measured in rounds; 0: none was.
double between_rounds(const Samples& samples) {
  double sum = 0;
  int count = 0;
  for (const Sample* sample : samples) {
    const auto found = sample->figures.find("between_rounds");
    if (found == sample->figures.end()) continue;
    sum += found->second;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

}  // namespace

std::vector<Entry> fit_copies(const Samples& samples, Calibration& into, const std::string& source) {
  std::vector<Entry> entries;
  into.copy_prices.clear();
  for (const auto& [name, group] : by_label(samples, {"direction", "memory", "ranks"})) {
    const bool pageable = group.front()->point.label("memory") == "pageable";
    Entry entry{pageable ? "pageable copy" : "copy", "copy " + name};
    note_range(entry, "bytes", group, copied_bytes);
    if (auto price = fit_entry(entry, group, copy_price, [](const CopyPrice& copy, const Point& point) {
          return copy_seconds(copy, copied_bytes(point));
        })) {
      entry.rule = fmt::format("{:.2f} us + bytes / {:.3g} GB/s", 1e6 * price->fixed_s, 1e-9 * price->bytes_per_s);
      if (!price->points.empty()) entry.rule += ", at smaller sizes bent";
      std::string spread;
      if (const double differs = between_rounds(group); differs > 0)
        spread += fmt::format("; a point differs by {:.1f} % from round to round", 100 * differs);
      if (const double differs = between_runs(group); differs > 0)
        spread += fmt::format("; a point differs by {:.1f} % from run to run", 100 * differs);
      entry.rule += spread;
      price->provenance = entry.provenance(source + spread);
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
  const std::map<std::string, double*> costs = {
      {"launch_latency", &host.launch_latency_s}, {"sync", &host.sync_s}, {"kernel_gap", &host.kernel_gap_s}};
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
