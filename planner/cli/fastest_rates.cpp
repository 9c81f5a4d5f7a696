// The rates at which the price rules level off (planner/cli/fastest_rates.hpp).
#include "planner/cli/fastest_rates.hpp"

#include <algorithm>
#include <cmath>

#include "planner/spec/price_rules.hpp"

namespace plimsoll {
namespace {

/// The least factor of a surface is that of one of its places.
double fastest_by(const Surface& surface) {
  double least = 0;
  for (const Surface::Place& place : surface.places) least = std::min(least, place.log_factor);
  return std::exp(-least);
}

/// FLOP/s of products.
double fastest_products(const Calibration& calibration) {
  double efficiency = 1;
  for (const GemmPrice::Tile& tile : calibration.gemm.tiles) efficiency = std::max(efficiency, tile.efficiency);
  const GroupedGemmPrice& grouped = calibration.grouped_gemm;
  return std::max({calibration.gemm.flops_per_s * efficiency * fastest_by(calibration.gemm.surface),
                   grouped.flops_per_s * std::max(1.0, grouped.many_factor) * fastest_by(grouped.surface),
                   grouped.large.flops_per_s, grouped.small.flops_per_s});
}

/// By how much a curve's bandwidth exceeds that of its rule, where measured points count.
template <class Rule>
double above_rule(const std::vector<std::pair<double, double>>& points, Rule rule) {
  double most = 1;
  for (const auto& [bytes, seconds] : points) {
    const double by_rule = rule(bytes);
    if (seconds > 0 && std::isfinite(by_rule)) most = std::max(most, by_rule / seconds);
  }
  return most;
}

/// Copies of any kind and size, and the host's optimizer.
HostPeaks fastest_host(const Calibration& calibration) {
  HostPeaks host{calibration.copy_bytes_per_s, calibration.host.cpu_adam_s_per_element};
  for (const CopyPrice& price : calibration.copy_prices) {
    const double above =
        above_rule(price.points, [&](double bytes) { return price.fixed_s + bytes / price.bytes_per_s; });
    host.copy_bytes_per_s = std::max(host.copy_bytes_per_s, price.bytes_per_s * above);
  }
  return host;
}

}  // namespace

PeakRates fastest_rates(const Calibration& calibration) {
  PeakRates rates;
  rates.matrix_flops_per_s = fastest_products(calibration);
  for (const auto* attention : {&calibration.attention.forward, &calibration.attention.backward})
    for (const AttentionPrice::Rate& rate : *attention)
      rates.matrix_flops_per_s = std::max(rates.matrix_flops_per_s, rate.flops_per_s);
  rates.fp32_flops_per_s = calibration.gemm.fp32_flops_per_s;
  rates.links.calibrated = calibration.collectives;
  rates.host = fastest_host(calibration);
  return rates;
}

}  // namespace plimsoll
