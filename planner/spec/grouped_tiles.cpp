// Tiles of grouped products, counted (planner/spec/grouped_tiles.hpp).
#include "planner/spec/grouped_tiles.hpp"

#include <algorithm>
#include <numeric>

#include "planner/base/quantity.hpp"

namespace plimsoll {

namespace {

constexpr std::int64_t most_of_small = 128;

double pieces(std::int64_t size, std::int64_t piece) { return static_cast<double>(ceil_div(size, piece)); }

double pieces_of_rows(std::int64_t rows, std::int64_t piece, bool counted) {
  if (counted) return pieces(rows, piece);
  return std::max(1.0, static_cast<double>(rows) / static_cast<double>(piece) + 0.5);
}

// How many grouped_step a tile goes at a time along the summed dimension.
int steps_of_tile(bool small) { return small ? 2 : 1; }
std::int64_t depth_of(bool small) { return steps_of_tile(small) * grouped_step; }

}  // namespace

GroupedTiles tiles_of_grouped(const GroupRows& groups, std::int64_t n, std::int64_t k) {
  GroupedTiles tiles;
  if (groups.rows.empty()) return tiles;
  const std::int64_t all = std::accumulate(groups.rows.begin(), groups.rows.end(), std::int64_t{0});
  tiles.small = all / static_cast<std::int64_t>(groups.rows.size()) <= most_of_small || n <= most_of_small;
  const std::int64_t side = grouped_tile_side(tiles.small), depth = depth_of(tiles.small);
  for (const std::int64_t rows : groups.rows)
    tiles.count += pieces_of_rows(rows, side, groups.counted) * pieces(n, side);
  tiles.longest = pieces(k, depth) * steps_of_tile(tiles.small);
  tiles.steps = tiles.count * tiles.longest;
  return tiles;
}

GroupedTiles tiles_of_grouped_gradient(const GroupRows& groups, std::int64_t n, std::int64_t k) {
  GroupedTiles tiles;
  tiles.small = n <= most_of_small || k <= most_of_small;
  const std::int64_t side = grouped_tile_side(tiles.small), depth = depth_of(tiles.small);
  const double of_group = pieces(n, side) * pieces(k, side);
  for (const std::int64_t rows : groups.rows) {
    const double steps = pieces_of_rows(rows, depth, groups.counted) * steps_of_tile(tiles.small);
    tiles.count += of_group;
    tiles.steps += of_group * steps;
    tiles.longest = std::max(tiles.longest, steps);
  }
  return tiles;
}

}  // namespace plimsoll
