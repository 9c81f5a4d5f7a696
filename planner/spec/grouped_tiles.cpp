// Tiles of grouped products, counted (planner/spec/grouped_tiles.hpp).
#include "planner/spec/grouped_tiles.hpp"

#include <algorithm>
#include <numeric>

namespace plimsoll {

namespace {

constexpr std::int64_t most_of_small = 128;

double pieces(std::int64_t size, std::int64_t piece) { return static_cast<double>((size + piece - 1) / piece); }

double pieces_of_rows(std::int64_t rows, std::int64_t piece, bool counted) {
  if (counted) return pieces(rows, piece);
  return std::max(1.0, static_cast<double>(rows) / static_cast<double>(piece) + 0.5);
}

std::int64_t depth_of(bool small) { return (small ? 2 : 1) * grouped_step; }

}  // namespace

GroupedTiles tiles_of_grouped(const GroupRows& groups, std::int64_t n, std::int64_t k) {
  GroupedTiles tiles;
  if (groups.rows.empty()) return tiles;
  const std::int64_t all = std::accumulate(groups.rows.begin(), groups.rows.end(), std::int64_t{0});
  tiles.small = all / static_cast<std::int64_t>(groups.rows.size()) <= most_of_small || n <= most_of_small;
  const std::int64_t side = grouped_tile_side(tiles.small), depth = depth_of(tiles.small);
  for (const std::int64_t rows : groups.rows)
    tiles.count += pieces_of_rows(rows, side, groups.counted) * pieces(n, side);
  tiles.longest = pieces(k, depth) * static_cast<double>(depth / grouped_step);
  tiles.steps = tiles.count * tiles.longest;
  return tiles;
}

GroupedTiles tiles_of_grouped_gradient(const GroupRows& groups, std::int64_t n, std::int64_t k) {
  GroupedTiles tiles;
  tiles.small = n <= most_of_small || k <= most_of_small;
  const std::int64_t side = grouped_tile_side(tiles.small), depth = depth_of(tiles.small);
  const double of_group = pieces(n, side) * pieces(k, side);
  for (const std::int64_t rows : groups.rows) {
    const double steps = pieces_of_rows(rows, depth, groups.counted) * static_cast<double>(depth / grouped_step);
    tiles.count += of_group;
    tiles.steps += of_group * steps;
    tiles.longest = std::max(tiles.longest, steps);
  }
  return tiles;
}

}  // namespace plimsoll
