// The equations of the calibration's rules (planner/spec/price_rules.hpp), in the symbols of planner/spec/calibration.hpp.
#include "planner/spec/price_rules.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace plimsoll {

double gemm_seconds(const GemmPrice& price, int multiprocessors, double m, double n, double k, DType dtype,
                    double sag) {
  const double bytes = (m * k + k * n + m * n) * static_cast<double>(size_of(dtype));
  if (dtype == DType::fp32) {
    constexpr double tile = 64.0 * 64.0;
    const double rate = price.fp32_flops_per_s;
    const double half_wave = tile * k / (rate / std::max(1, multiprocessors));
    const double busy = std::min(price.fp32_fixed_s, half_wave) + 2 * m * n * k / rate * sag;
    const double moved = price.fp32_bytes_per_s > 0 ? bytes / price.fp32_bytes_per_s : 0;
    return price.launch_s + std::max(busy, moved);
  }
  if (std::min({m, n, k}) <= 64) return std::max(price.skinny_floor_s, bytes / price.skinny_bytes_per_s);
  const double sms = std::max(1, multiprocessors);
  double best = std::numeric_limits<double>::infinity(), best_tiles = 0;
  for (const GemmPrice::Tile& tile : price.tiles) {
    const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n);
    const double waves = std::ceil(tiles / sms);
    const double area = static_cast<double>(tile.m) * tile.n;
    const double step =
        2 * area * k / (price.flops_per_s / sms * tile.efficiency) + price.epilogue_s_per_element * area;
    if (waves * step >= best) continue;
    best = waves * step;
    best_tiles = tiles;
  }
  const double busy =
      std::max(best + price.traffic_share * bytes / price.traffic_bytes_per_s, bytes / price.memory_bytes_per_s);
  const double factor =
      price.surface.places.empty() || dtype == DType::fp32 ? 1 : surface_factor(price.surface, m, n, k);
  return price.launch_s + (best_tiles > 2 * sms ? price.memset_s : 0) + busy * sag * factor;
}

double sag_share(const GemmPrice& price, double u, int gpus) {
  const double together = gpus > 1 ? price.sag_together : 0;
  return std::clamp((u + together - price.sag_from) / std::max(price.sag_full - price.sag_from, 1e-9), 0.0, 1.0);
}

double surface_factor(const Surface& surface, double a, double b, double c) {
  const std::array<double, 3> at{std::log2(std::max(1.0, a)), std::log2(std::max(1.0, b)), std::log2(std::max(1.0, c))};
  const double reach = 3 * surface.width;
  const double scale = -0.5 / (surface.width * surface.width);
  double weights = surface.shrink, sum = 0;
  for (const Surface::Place& place : surface.places) {
    double squares = 0;
    bool near = true;
    for (std::size_t i = 0; i < at.size() && near; ++i) {
      const double distance = at[i] - place.log2_sizes[i];
      near = std::abs(distance) <= reach;
      squares += distance * distance;
    }
    if (!near) continue;
    const double weight = std::exp(scale * squares);
    weights += weight;
    sum += weight * place.log_factor;
  }
  return weights > 0 ? std::exp(sum / weights) : 1;
}

double grouped_gemm_seconds(const GroupedGemmPrice& price, std::int64_t groups, double m, double n, double k,
                            double sag) {
  const double many = groups > price.many_groups ? price.many_factor : 1;
  const double rate = price.flops_per_s * many * k / (k + price.half_length);
  const double rows = m / static_cast<double>(std::max<std::int64_t>(1, groups));
  const double factor = price.surface.places.empty() ? 1 : surface_factor(price.surface, rows, n, k);
  return price.fixed_s + price.prepare_s + 2 * m * n * k / rate * sag * factor;
}

double tiled_grouped_seconds(const GroupedGemmPrice& price, int multiprocessors, std::int64_t groups,
                             const GroupedTiles& tiles, double bytes, double sag) {
  const GroupedGemmPrice::Tiled& kernel = tiles.small ? price.small : price.large;
  const double clusters = std::max(1, multiprocessors / 2);
  const auto side = static_cast<double>(grouped_tile_side(tiles.small));
  const double step = 2 * side * side * static_cast<double>(grouped_step) / (kernel.flops_per_s / clusters);
  const double waves = tiles.count / clusters;
  const double mean = tiles.steps / tiles.count * step + kernel.epilogue_s;
  const double last = tiles.longest * step + kernel.epilogue_s;
  const double busy = std::max(std::ceil(waves) * mean, (waves - 1) * mean + last) * sag;
  return kernel.fixed_s + price.prepare_s + static_cast<double>(groups) * kernel.group_s +
         std::max(busy, bytes / kernel.memory_bytes_per_s);
}

double attention_seconds(const AttentionPrice& price, bool backward, double batch, double length, double head_dim,
                         double flops, double sag) {
  const auto& rates = backward ? price.backward : price.forward;
  if (rates.empty()) return std::numeric_limits<double>::infinity();
  // Between two head sizes that are known, the rate is interpolated; beyond them it is the nearest one's.
  const AttentionPrice::Rate *below = nullptr, *above = nullptr;
  for (const AttentionPrice::Rate& rate : rates) {
    if (rate.head_dim <= head_dim && (!below || rate.head_dim > below->head_dim)) below = &rate;
    if (rate.head_dim >= head_dim && (!above || rate.head_dim < above->head_dim)) above = &rate;
  }
  if (!below) below = above;
  if (!above) above = below;
  const double between = above == below ? 0 : (head_dim - below->head_dim) / (above->head_dim - below->head_dim);
  const auto rate_of = [&](const AttentionPrice::Rate& r) { return r.flops_per_s * length / (length + r.half_length); };
  const auto fixed_of = [&](const AttentionPrice::Rate& r) { return r.fixed_s < 0 ? price.fixed_s : r.fixed_s; };
  const double rate = rate_of(*below) * (1 - between) + rate_of(*above) * between;
  const double fixed = fixed_of(*below) * (1 - between) + fixed_of(*above) * between;
  const double extra = backward ? price.backward_s_per_element * batch * length * head_dim : 0;
  return fixed + (flops / rate) * sag + extra;
}

double pointwise_seconds(const KernelPrice& price, const CachePrice& cache, double elements, double bytes,
                         double output_bytes, double sag) {
  const double near = price.cached_bytes_per_s > 0 ? std::min(bytes, price.cached_bytes) : 0;
  const double moved = (near > 0 ? near / price.cached_bytes_per_s : 0) +
                       (price.bytes_per_s > 0 ? (bytes - near) / price.bytes_per_s : 0);
  const double cached = output_bytes <= cache.bytes ? cache.factor : 1;
  return price.fixed_s + price.s_per_element * elements * sag * cached + moved;
}

double collective_seconds(const std::vector<CollectivePrice::Piece>& pieces, double bytes) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& piece : pieces) best = std::min(best, piece.latency_s + bytes / piece.bytes_per_s);
  return best;
}

namespace {

/// Between two measured points on a straight line of logarithms; beyond them `rule` through the nearest.
template <class Rule>
double by_points(const std::vector<std::pair<double, double>>& points, double bytes, Rule rule) {
  if (points.empty()) return rule(bytes);
  const auto scaled = [&](const std::pair<double, double>& point) {
    const double there = rule(point.first);
    return std::isfinite(there) && there > 0 ? point.second * rule(bytes) / there : point.second;
  };
  if (bytes <= points.front().first) return scaled(points.front());
  if (bytes >= points.back().first) return scaled(points.back());
  const auto above = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](double value, const auto& point) { return value < point.first; });
  const auto& [low, low_s] = *(above - 1);
  const auto& [high, high_s] = *above;
  return low_s * std::pow(high_s / low_s, std::log(bytes / low) / std::log(high / low));
}

}  // namespace

double collective_seconds(const CollectivePrice& price, double bytes) {
  return by_points(price.points, bytes, [&](double size) { return collective_seconds(price.pieces, size); });
}

double copy_seconds(const CopyPrice& price, double bytes) {
  return by_points(price.points, bytes, [&](double size) { return price.fixed_s + size / price.bytes_per_s; });
}

}  // namespace plimsoll
