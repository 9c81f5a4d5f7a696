// What crosses which link, summed for a reader: rows that differ in size only become one, and each tier has its load.
#pragma once

#include <vector>

#include "planner/account/volume.hpp"

namespace plimsoll {

/// Rows that differ in size only; calls and wire bytes of `row` are those of all.
struct VolumeSum {
  VolumeRow row;
  Bytes least, most;  ///< full size of one call
};
std::vector<VolumeSum> sums_of(const CommVolume& volume);

struct TierLoad {
  Tier tier = Tier::nvlink;
  Bytes wire;  ///< sent by one GPU in an optimizer step
  Seconds
      alone;  ///< that they take at the tier's bandwidth, nothing else going on; 0 where the cluster has no such tier
};
/// Of the tiers that carry anything, from near to far.
std::vector<TierLoad> loads_of(const CommVolume& volume, const ClusterSpec& cluster);

}  // namespace plimsoll
