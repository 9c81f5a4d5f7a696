// Products and grouped products: a rule by tiles and rates, then what it leaves over as a surface (calibrate/fit/fit.hpp).
//
// GEMM: for a given choice of tiles the rule is linear in (launch, 1 / rate, epilogue, traffic); the choice depends on the
// coefficients, so that both are found in turn.  Grouped: t = fixed + F / rate (1 + half / k), linear in (1, F, F / k).
// Surface: log(measured / rule), smoothed over the sizes; its width and shrinkage are those that predict held-out points best.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

using Sizes = std::array<double, 3>;

double d(std::int64_t value) { return static_cast<double>(value); }
Sizes sizes_of(const Point& p) { return {d(p.size("m")), d(p.size("n")), d(p.size("k"))}; }
Sizes group_sizes_of(const Point& p) {
  return {d(p.size("m")) / d(std::max<std::int64_t>(1, p.size("groups"))), d(p.size("n")), d(p.size("k"))};
}

constexpr double cells_per_octave = 8;  // shapes nearer than that share a place
constexpr std::size_t most_places = 700;

/// Mean log residual by cell of sizes.
Surface surface_of(const std::vector<std::pair<Sizes, double>>& residuals, double width, double shrink) {
  Surface surface;
  surface.width = width;
  surface.shrink = shrink;
  for (double fine = cells_per_octave;; fine /= 2) {
    std::map<std::array<long, 3>, std::pair<Surface::Place, int>> cells;
    for (const auto& [sizes, log_factor] : residuals) {
      std::array<long, 3> cell{};
      Surface::Place place;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        place.log2_sizes[i] = std::log2(std::max(1.0, sizes[i]));
        cell[i] = std::lround(fine * place.log2_sizes[i]);
      }
      auto& [sum, count] = cells[cell];
      for (std::size_t i = 0; i < sizes.size(); ++i) sum.log2_sizes[i] += place.log2_sizes[i];
      sum.log_factor += log_factor;
      ++count;
    }
    if (cells.size() > most_places && fine > 0.5) continue;
    for (auto& [cell, entry] : cells) {
      auto& [place, count] = entry;
      for (double& size : place.log2_sizes) size /= count;
      place.log_factor /= count;
      surface.places.push_back(place);
    }
    return surface;
  }
}

/// The width and shrinkage that predict best when each place is left out of its own prediction.
Surface best_surface(const std::vector<std::pair<Sizes, double>>& residuals) {
  Surface best = surface_of(residuals, 0.5, 0.3);
  if (best.places.size() > 400) return best;  // dense enough that neither matters
  const Surface all = best;
  double least = std::numeric_limits<double>::infinity();
  for (const double width : {0.15, 0.3, 0.5, 0.8}) {
    for (const double shrink : {0.05, 0.2, 0.5, 1.0}) {
      double sum = 0;
      for (std::size_t i = 0; i < all.places.size(); ++i) {
        Surface others = all;
        others.width = width;
        others.shrink = shrink;
        const Surface::Place left_out = others.places[i];
        others.places.erase(others.places.begin() + static_cast<std::ptrdiff_t>(i));
        const auto& at = left_out.log2_sizes;
        const double guess = std::log(surface_factor(others, std::exp2(at[0]), std::exp2(at[1]), std::exp2(at[2])));
        sum += (guess - left_out.log_factor) * (guess - left_out.log_factor);
      }
      if (sum >= least) continue;
      least = sum;
      best = all;
      best.width = width;
      best.shrink = shrink;
    }
  }
  return best;
}

/// Tile that the rule chooses, and its features: waves * (2 tm tn k / e) * SMs, waves * tm tn.
std::array<double, 2> tile_features(const GemmPrice& price, double sms, const Sizes& s) {
  double best = std::numeric_limits<double>::infinity();
  std::array<double, 2> features{};
  for (const GemmPrice::Tile& tile : price.tiles) {
    const double waves = std::ceil(std::ceil(s[0] / tile.m) * std::ceil(s[1] / tile.n) / sms);
    const double area = d(tile.m) * tile.n;
    const double flops = waves * 2 * area * s[2] / tile.efficiency * sms;
    const double time = flops / price.flops_per_s + waves * area * price.epilogue_s_per_element;
    if (time >= best) continue;
    best = time;
    features = {flops, waves * area};
  }
  return features;
}

bool skinny(const Point& p) {
  const Sizes s = sizes_of(p);
  return std::min({s[0], s[1], s[2]}) <= 64;
}

/// A product and its time, looked up once: the rule goes over all of them again and again.
struct Product {
  Sizes sizes;
  double time_s;
};

std::vector<Product> products_of(const Samples& samples) {
  std::vector<Product> products;
  products.reserve(samples.size());
  for (const Sample* sample : samples) products.push_back({sizes_of(sample->point), sample->time_s});
  return products;
}

/// The rule alone.
std::optional<GemmPrice> fit_rule(const std::vector<Product>& products, const GemmPrice& start, int multiprocessors) {
  GemmPrice price = start;
  price.surface = {};
  price.memset_s = 0;
  std::vector<double> times;
  times.reserve(products.size());
  for (const Product& product : products) times.push_back(product.time_s);
  for (int round = 0; round < 6; ++round) {
    Rows rows;
    for (const auto& [s, time_s] : products) {
      const auto [flops, area] = tile_features(price, multiprocessors, s);
      rows.push_back({1, flops, area, 2 * (s[0] * s[2] + s[2] * s[1] + s[0] * s[1])});
    }
    if (rows.size() < 8) return {};
    const LinearFit fit = fit_nonnegative(rows, times);
    const auto flops_per_s = fit.coefficients.empty() ? std::nullopt : rate_of(fit.coefficients[1]);
    if (!flops_per_s) return {};
    price.launch_s = fit.coefficients[0];
    price.flops_per_s = *flops_per_s;
    price.epilogue_s_per_element = fit.coefficients[2];
    price.traffic_share = fit.coefficients[3] * price.traffic_bytes_per_s;
  }
  return price;
}

/// @param samples products that tensor cores and not memory bound
std::optional<GemmPrice> fit_gemm_price(const Samples& samples, const GemmPrice& start, int multiprocessors) {
  const std::vector<Product> products = products_of(samples);
  auto price = fit_rule(products, start, multiprocessors);
  if (!price) return {};
  std::vector<std::pair<Sizes, double>> residuals;
  for (const auto& [s, time_s] : products) {
    const double rule = gemm_seconds(*price, multiprocessors, s[0], s[1], s[2], DType::bf16) - price->launch_s;
    if (time_s > price->launch_s) residuals.emplace_back(s, std::log((time_s - price->launch_s) / rule));
  }
  price->surface = best_surface(residuals);
  return price;
}

}  // namespace

double flops_of(const Point& p) {
  if (p.kind == "attention") {
    const double product = d(p.size("batch")) * d(p.size("length")) * d(p.size("length")) * d(p.size("head_dim"));
    return (p.label("direction") == "backward" ? 5 : 2) * product;
  }
  return 2 * d(p.size("m")) * d(p.size("n")) * d(p.size("k"));
}

namespace {

struct PlainRule {
  double launch_s = 0, flops_per_s = 0;
};

/// Products without tensor cores: t = launch + F / rate.
std::optional<PlainRule> plain_rule(const Samples& samples) {
  if (samples.size() < 2) return {};
  Rows rows;
  std::vector<double> times;
  for (const Sample* sample : samples) {
    rows.push_back({1, flops_of(sample->point)});
    times.push_back(sample->time_s);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  const auto flops_per_s = fit.coefficients.empty() ? std::nullopt : rate_of(fit.coefficients[1]);
  if (!flops_per_s) return {};
  return PlainRule{fit.coefficients[0], *flops_per_s};
}

/// @param alone they are the machine's only products (no 16-bit units): launch and tiles are theirs too
Entry fit_plain(const Samples& samples, bool alone, Calibration& into, const std::string& source) {
  Entry entry{"gemm", "gemm fp32"};
  note_range(entry, "FLOP", samples, flops_of);
  const auto rule = fit_entry(entry, samples, plain_rule, [](const PlainRule& r, const Point& p) {
    return r.launch_s + flops_of(p) / r.flops_per_s;
  });
  if (!rule) return entry;
  into.gemm.fp32_flops_per_s = rule->flops_per_s;
  entry.rule = fmt::format("{:.1f} us + F / {:.3g} TFLOP/s", 1e6 * rule->launch_s, 1e-12 * rule->flops_per_s);
  if (alone) {
    GemmPrice& g = into.gemm;
    g.launch_s = rule->launch_s;
    g.memset_s = g.epilogue_s_per_element = g.traffic_share = g.fp32_fixed_s = 0;
    g.memory_bytes_per_s = 1e15;  // no second bound: the products here are small
    g.flops_per_s = rule->flops_per_s;
    g.tiles = {{1, 1, 1}};
    g.surface = {};
    g.provenance = entry.provenance(source);
  }
  return entry;
}

}  // namespace

std::vector<Entry> fit_gemm(const Samples& samples, int multiprocessors, Calibration& into, const std::string& source) {
  Samples half, full, thin;
  for (const Sample* sample : samples) {
    (sample->point.label("dtype") == "fp32" ? full : skinny(sample->point) ? thin : half).push_back(sample);
  }
  std::vector<Entry> entries;
  const GemmPrice start = into.gemm;
  const auto seconds = [multiprocessors](const GemmPrice& price, const Point& p) {
    const Sizes s = sizes_of(p);
    return gemm_seconds(price, multiprocessors, s[0], s[1], s[2], DType::bf16);
  };
  if (!half.empty()) {
    Entry entry{"gemm", "gemm"};
    note_range(entry, "FLOP", half, flops_of);
    const auto price = fit_entry(
        entry, half, [&](const Samples& some) { return fit_gemm_price(some, start, multiprocessors); }, seconds);
    if (price) {
      into.gemm = *price;
      into.gemm.provenance = entry.provenance(source);
      entry.rule = fmt::format("{:.0f} TFLOP/s in tiles, {:.1f} us, a surface of {} places over {:.2f} octaves",
                               1e-12 * price->flops_per_s, 1e6 * price->launch_s, price->surface.places.size(),
                               price->surface.width);
    }
    entries.push_back(std::move(entry));
  }
  if (!full.empty()) entries.push_back(fit_plain(full, half.empty(), into, source));
  for (const Sample* sample : thin) {
    Entry entry{"gemm", "gemm with a side <= 64"};
    entry.residuals.push_back({key_of(sample->point), sample->time_s, seconds(into.gemm, sample->point), std::nan("")});
    entry.rule = "the base's";
    entries.push_back(std::move(entry));
  }
  return entries;
}

namespace {

std::optional<GroupedGemmPrice> fit_grouped_price(const Samples& samples, const GroupedGemmPrice& start) {
  if (samples.size() < 6) return {};
  Rows rows;
  std::vector<double> times;
  for (const Sample* sample : samples) {
    const double flops = flops_of(sample->point);
    rows.push_back({1, flops, flops / std::max(1.0, d(sample->point.size("k")))});
    times.push_back(sample->time_s);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  const auto flops_per_s = fit.coefficients.empty() ? std::nullopt : rate_of(fit.coefficients[1]);
  if (!flops_per_s) return {};
  GroupedGemmPrice price = start;
  price.fixed_s = fit.coefficients[0];
  price.prepare_s = 0;
  price.flops_per_s = *flops_per_s;
  price.half_length = fit.coefficients[2] / fit.coefficients[1];
  price.many_factor = 1;
  price.surface = {};
  std::vector<std::pair<Sizes, double>> residuals;
  for (const Sample* sample : samples) {
    const Sizes s = sizes_of(sample->point);
    const double rule = grouped_gemm_seconds(price, sample->point.size("groups"), s[0], s[1], s[2]) - price.fixed_s;
    if (sample->time_s > price.fixed_s)
      residuals.emplace_back(group_sizes_of(sample->point), std::log((sample->time_s - price.fixed_s) / rule));
  }
  price.surface = best_surface(residuals);
  return price;
}

}  // namespace

std::vector<Entry> fit_grouped(const Samples& samples, Calibration& into, const std::string& source) {
  if (samples.empty()) return {};
  Entry entry{"gemm_grouped", "grouped gemm"};
  note_range(entry, "FLOP", samples, flops_of);
  const GroupedGemmPrice start = into.grouped_gemm;
  const auto price = fit_entry(
      entry, samples, [&](const Samples& some) { return fit_grouped_price(some, start); },
      [](const GroupedGemmPrice& grouped, const Point& p) {
        return grouped_gemm_seconds(grouped, p.size("groups"), d(p.size("m")), d(p.size("n")), d(p.size("k")));
      });
  if (price) {
    // The framework's grouped product is another kernel than the library's measured here.
    const bool framework = is_from_framework(start.provenance);
    if (!framework) {
      into.grouped_gemm = *price;
      into.grouped_gemm.provenance = entry.provenance(source);
    }
    entry.rule =
        (framework ? "the base's stays; here " : "") +
        fmt::format("{:.0f} TFLOP/s, half at k = {:.0f}, {:.1f} us, a surface of {} places", 1e-12 * price->flops_per_s,
                    price->half_length, 1e6 * price->fixed_s, price->surface.places.size());
  }
  return {std::move(entry)};
}

}  // namespace plimsoll::calibrate
