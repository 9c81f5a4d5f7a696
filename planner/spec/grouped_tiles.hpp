// Into which tiles does PyTorch cut a grouped product?  On Hopper it is CUTLASS's (aten/native/cuda/GroupMM.cu; both kernels'
// names in traces say so): clusters of two multiprocessors take a tile each, group by group.  No tile lies in two groups, so that
// the last of each may be almost empty, as those at the end of a width that no tile divides.
//   large   256 x 256, two of 128 x 256
//   small   128 x 128, two of 64 x 128: results of groups with at most 128 rows in the mean or 128 columns
#pragma once

#include <cstdint>
#include <vector>

namespace plimsoll {

/// The tiles of one launch.
struct GroupedTiles {
  bool small = false;
  double count = 0;    ///< of all groups; 0: not cut like this
  double steps = 0;    ///< of all tiles together, each over 64 of the contraction
  double longest = 0;  ///< steps of one tile, at most
  bool operator==(const GroupedTiles&) const = default;
};

/// How many rows each group has.
struct GroupRows {
  std::vector<std::int64_t> rows;  ///< by group; empty: not known
  /// In a step that was counted; else what is expected: real groups end anywhere in a tile, so that the last is half full in the
  /// mean, and there is one at least.
  bool counted = true;
};

inline constexpr std::int64_t grouped_step = 64;

/// Rows and columns of a tile.
constexpr std::int64_t grouped_tile_side(bool small) { return small ? 128 : 256; }

/// C[rows of a group, n] = A[rows, k] B[group][k, n].
GroupedTiles tiles_of_grouped(const GroupRows& groups, std::int64_t n, std::int64_t k);

/// C[group][n, k] = A[rows of the group, n]^T B[rows, k], the weights' gradient: groups are contracted.
GroupedTiles tiles_of_grouped_gradient(const GroupRows& groups, std::int64_t n, std::int64_t k);

}  // namespace plimsoll
