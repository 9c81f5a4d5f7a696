// Progressive filling (simulator/fair_share.hpp).
#include "simulator/fair_share.hpp"

#include <algorithm>
#include <limits>

namespace plimsoll {

void fair_rates(std::span<const Demand* const> demands, std::span<double> rates) {
  // Bandwidth b of a flow is its rate times what it asks of the tier that it uses most.
  const std::size_t n = demands.size();
  std::array<double, tier_count> left{}, asked{};
  left.fill(1);
  for (const Demand* demand : demands) {
    for (std::size_t t = 0; t < tier_count; ++t) asked[t] += (*demand)[t];
  }
  std::fill(rates.begin(), rates.end(), 1.0);
  if (std::all_of(asked.begin(), asked.end(), [](double sum) { return sum <= 1; })) return;

  constexpr double rising = -1;
  std::fill(rates.begin(), rates.end(), rising);
  for (std::size_t settled = 0; settled < n;) {
    // The level at which the first link fills, or the first flow has what it asks.
    double level = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < tier_count; ++t) {
      double per_level = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double most = *std::max_element(demands[i]->begin(), demands[i]->end());
        if (rates[i] == rising && most > 0) per_level += (*demands[i])[t] / most;
      }
      if (per_level > 0) level = std::min(level, left[t] / per_level);
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (rates[i] == rising) level = std::min(level, *std::max_element(demands[i]->begin(), demands[i]->end()));
    }
    // Flows that are satisfied at this level, or pass a link that it fills, settle.
    std::array<bool, tier_count> full{};
    for (std::size_t t = 0; t < tier_count; ++t) {
      double load = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double most = *std::max_element(demands[i]->begin(), demands[i]->end());
        if (rates[i] == rising && most > 0) load += level * (*demands[i])[t] / most;
      }
      full[t] = load > 0 && load >= left[t] * (1 - 1e-12);
    }
    const std::size_t before = settled;
    std::array<double, tier_count> taken{};
    for (std::size_t i = 0; i < n; ++i) {
      if (rates[i] != rising) continue;
      const double most = *std::max_element(demands[i]->begin(), demands[i]->end());
      bool stops = most <= level;
      for (std::size_t t = 0; t < tier_count; ++t) stops = stops || (full[t] && (*demands[i])[t] > 0);
      if (!stops) continue;
      rates[i] = most > 0 ? std::min(1.0, level / most) : 1.0;
      for (std::size_t t = 0; t < tier_count; ++t) taken[t] += rates[i] * (*demands[i])[t];
      ++settled;
    }
    for (std::size_t t = 0; t < tier_count; ++t) left[t] = std::max(0.0, left[t] - taken[t]);
    if (settled == before) break;
  }
}

}  // namespace plimsoll
