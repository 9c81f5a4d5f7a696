// The equations of the calibration's rules (planner/spec/price_rules.hpp), in the symbols of planner/spec/calibration.hpp.
#include "planner/spec/price_rules.hpp"

#include <algorithm>
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
    return price.launch_s + price.memset_s + std::min(price.fp32_fixed_s, half_wave) + 2 * m * n * k / rate * sag;
  }
  if (std::min({m, n, k}) <= 64) return std::max(price.skinny_floor_s, bytes / price.skinny_bytes_per_s);
  const double sms = std::max(1, multiprocessors);
  double best = std::numeric_limits<double>::infinity();
  for (const GemmPrice::Tile& tile : price.tiles) {
    const double waves = std::ceil(std::ceil(m / tile.m) * std::ceil(n / tile.n) / sms);
    const double area = static_cast<double>(tile.m) * tile.n;
    const double step =
        2 * area * k / (price.flops_per_s / sms * tile.efficiency) + price.epilogue_s_per_element * area;
    best = std::min(best, waves * step);
  }
  const double busy =
      std::max(best + price.traffic_share * bytes / price.traffic_bytes_per_s, bytes / price.memory_bytes_per_s);
  return price.launch_s + price.memset_s + busy * sag;
}

double grouped_gemm_seconds(const GroupedGemmPrice& price, std::int64_t groups, double k, double flops, double sag) {
  const double many = groups > price.many_groups ? price.many_factor : 1;
  const double rate = price.flops_per_s * many * k / (k + price.half_length);
  return price.fixed_s + price.prepare_s + flops / rate * sag;
}

double attention_seconds(const AttentionPrice& price, bool backward, double batch, double length, double head_dim,
                         double flops, double sag) {
  const auto& rates = backward ? price.backward : price.forward;
  if (rates.empty()) return std::numeric_limits<double>::infinity();
  const auto nearest = std::min_element(rates.begin(), rates.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.head_dim - head_dim) < std::abs(b.head_dim - head_dim);
  });
  const double rate = nearest->flops_per_s * length / (length + nearest->half_length);
  const double extra = backward ? price.backward_s_per_element * batch * length * head_dim : 0;
  return price.fixed_s + (flops / rate) * sag + extra;
}

double pointwise_seconds(const KernelPrice& price, const CachePrice& cache, double elements, double bytes,
                         double output_bytes, double sag) {
  const double moved = price.bytes_per_s > 0 ? bytes / price.bytes_per_s : 0;
  const double cached = output_bytes <= cache.bytes ? cache.factor : 1;
  return price.fixed_s + price.s_per_element * elements * sag * cached + moved;
}

double collective_seconds(const std::vector<CollectivePrice::Piece>& pieces, double bytes) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& piece : pieces) best = std::min(best, piece.latency_s + bytes / piece.bytes_per_s);
  return best;
}

}  // namespace plimsoll
