// Medians of repetitions and of rounds (calibrate/samples/rounds.hpp).
#include "calibrate/samples/rounds.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace plimsoll::calibrate {

MedianInterval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  MedianInterval result;
  result.median = n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
  const auto reach =
      n < fewest_values ? n : static_cast<std::size_t>(std::ceil(0.98 * std::sqrt(static_cast<double>(n))));
  const std::size_t middle = n / 2;
  result.low = values[middle > reach ? middle - reach : 0];
  result.high = values[std::min(n - 1, middle + reach)];
  return result;
}

std::vector<Sample> rounds_together(std::vector<Sample> samples) {
  std::vector<Sample> result;
  std::vector<std::vector<double>> times;           // of the rounds of each sample of the result; empty: not in rounds
  std::unordered_map<std::string, std::size_t> at;  // in the result, by the key without the round
  for (Sample& sample : samples) {
    const bool round = sample.point.sizes.erase("round") > 0;
    if (!round) {
      result.push_back(std::move(sample));
      times.emplace_back();
      continue;
    }
    const double time_s = sample.time_s;
    const auto [place, first] = at.try_emplace(key_of(sample.point), result.size());
    if (first) {
      result.push_back(std::move(sample));
      times.push_back({time_s});
      continue;
    }
    Sample& together = result[place->second];
    together.repetitions += sample.repetitions;
    if (together.note.empty()) together.note = std::move(sample.note);
    times[place->second].push_back(time_s);
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (times[i].empty()) continue;
    Sample& sample = result[i];
    const MedianInterval interval = median_interval(times[i]);
    double differs = 0;
    for (const double time_s : times[i]) differs += std::abs(time_s / interval.median - 1);
    sample.time_s = interval.median;
    sample.low_s = interval.low;
    sample.high_s = interval.high;
    sample.figures["between_rounds"] = differs / static_cast<double>(times[i].size());
  }
  return result;
}

}  // namespace plimsoll::calibrate
