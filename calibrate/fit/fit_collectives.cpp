// Collectives by kind, ranks and tier (calibrate/fit/fit.hpp): t = min over pieces of latency + S / bandwidth, a piece per protocol;
// the measured points themselves are kept, so that inside their range nothing but interpolation is left to err.
//
// Sizes in rising order are cut into runs; each run's line is fitted with non-negative coefficients.  The cuts are those with the
// least sum of squares (dynamic programming over all of them), the number of runs the least beyond which it falls by under 10 %.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

using Points = std::vector<std::pair<double, double>>;
using Pieces = std::vector<CollectivePrice::Piece>;

constexpr std::size_t most_points = 60;  // that the cuts are sought among; more are thinned out
constexpr std::size_t most_pieces = 4;

/// Median time by size, in rising order.
Points points_of(const Samples& samples) {
  std::map<double, std::vector<double>> by_size;
  for (const Sample* sample : samples)
    by_size[static_cast<double>(sample->point.size("bytes"))].push_back(sample->time_s);
  Points points;
  for (auto& [bytes, times] : by_size) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    if (bytes > 0) points.emplace_back(bytes, *middle);
  }
  return points;
}

struct Run {
  double squares = std::numeric_limits<double>::infinity();
  CollectivePrice::Piece piece;
};

Run fit_run(const Points& points, std::size_t first, std::size_t last) {
  Rows rows;
  std::vector<double> times;
  for (std::size_t i = first; i < last; ++i) {
    rows.push_back({1, points[i].first});
    times.push_back(points[i].second);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  Run run;
  if (fit.coefficients.empty()) return run;
  run.squares = fit.squares;
  run.piece.latency_s = fit.coefficients[0];
  // A run without slope (all latency): a bandwidth that its largest size would not notice.
  const double rate = fit.coefficients[1] > 0 ? 1 / fit.coefficients[1]
                                              : 1e3 * points[last - 1].first / std::max(1e-9, fit.coefficients[0]);
  run.piece.bytes_per_s = std::clamp(rate, limits::lowest_rate, limits::highest_rate);
  return run;
}

Pieces best_pieces(Points points) {
  if (points.size() > most_points) {
    Points thinned;
    for (std::size_t i = 0; i < most_points; ++i)
      thinned.push_back(points[i * (points.size() - 1) / (most_points - 1)]);
    points = std::move(thinned);
  }
  const std::size_t n = points.size();
  std::vector<std::vector<Run>> runs(n, std::vector<Run>(n + 1));
  for (std::size_t first = 0; first < n; ++first) {
    for (std::size_t last = first + 2; last <= n; ++last) runs[first][last] = fit_run(points, first, last);
  }
  Pieces best;
  double least = std::numeric_limits<double>::infinity();
  // cost[k][i]: the first i points in k runs.
  std::vector<std::vector<double>> cost(most_pieces + 1,
                                        std::vector<double>(n + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<std::size_t>> from(most_pieces + 1, std::vector<std::size_t>(n + 1, 0));
  cost[0][0] = 0;
  for (std::size_t k = 1; k <= most_pieces && 2 * k <= n; ++k) {
    for (std::size_t i = 2; i <= n; ++i) {
      for (std::size_t j = 0; j + 2 <= i; ++j) {
        const double total = cost[k - 1][j] + runs[j][i].squares;
        if (total < cost[k][i]) {
          cost[k][i] = total;
          from[k][i] = j;
        }
      }
    }
    if (!(cost[k][n] < 0.9 * least)) continue;
    least = cost[k][n];
    best.clear();
    for (std::size_t left = k, i = n; left > 0; --left) {
      best.insert(best.begin(), runs[from[left][i]][i].piece);
      i = from[left][i];
    }
  }
  return best;
}

std::optional<CollectivePrice> fit_price(const Samples& samples) {
  CollectivePrice price;
  price.points = points_of(samples);
  if (price.points.size() < 3) return {};
  price.pieces = best_pieces(price.points);
  // A run may fit its own points with a line that another beats everywhere; the minimum never is that one.
  const Pieces all = price.pieces;
  std::erase_if(price.pieces, [&all](const CollectivePrice::Piece& piece) {
    return std::any_of(all.begin(), all.end(), [&piece](const CollectivePrice::Piece& other) {
      const bool better = other.latency_s < piece.latency_s || other.bytes_per_s > piece.bytes_per_s;
      return better && other.latency_s <= piece.latency_s && other.bytes_per_s >= piece.bytes_per_s;
    });
  });
  if (price.pieces.empty()) return {};
  return price;
}

std::optional<Tier> tier_of(const std::string& name) {
  for (const Tier tier : {Tier::nvlink, Tier::pcie, Tier::nic, Tier::spine}) {
    if (name == name_of(tier)) return tier;
  }
  return {};
}

}  // namespace

std::vector<Entry> fit_collectives(const Samples& samples, Calibration& into, const std::string& source) {
  std::map<std::tuple<std::string, std::int64_t, std::string>, Samples> groups;
  for (const Sample* sample : samples) {
    const Point& p = sample->point;
    groups[{p.label("op"), p.size("ranks"), p.label("tier").empty() ? "nvlink" : p.label("tier")}].push_back(sample);
  }
  std::vector<Entry> entries;
  for (const auto& [which, group] : groups) {
    const auto& [op, ranks, tier] = which;
    Entry entry{"collective", fmt::format("{} x{} {}", op, ranks, tier)};
    if (!collective_of(op) && op != "send_receive" && op != "all_to_all_skewed") {
      entry.refused = fmt::format("no collective is called {}", op);
    } else if (ranks < 2 || ranks > limits::world) {
      entry.refused = fmt::format("a collective has from 2 to {} ranks", limits::world);
    } else if (!tier_of(tier)) {
      entry.refused = fmt::format("no link between ranks is called {}", tier);
    } else if (auto price = fit_entry(entry, group, fit_price, [](const CollectivePrice& p, const Point& point) {
                 return collective_seconds(p, static_cast<double>(point.size("bytes")));
               })) {
      entry.variable = "bytes";
      entry.range_low = price->points.front().first;
      entry.range_high = price->points.back().first;
      const CollectivePrice::Piece& last = price->pieces.back();
      entry.rule = fmt::format("{} pieces, the last {:.0f} us + S / {:.0f} GB/s", price->pieces.size(),
                               1e6 * last.latency_s, 1e-9 * last.bytes_per_s);
      if (const auto kind = collective_of(op)) {
        price->kind = *kind;
        price->ranks = static_cast<int>(ranks);
        price->tier = *tier_of(tier);
        price->provenance = entry.provenance(source);
        std::erase_if(into.collectives, [&](const CollectivePrice& c) {
          return c.kind == price->kind && c.ranks == price->ranks && c.tier == price->tier;
        });
        into.collectives.push_back(std::move(*price));
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace plimsoll::calibrate
