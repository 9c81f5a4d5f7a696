// Sums over the rows of a volume (planner/cli/volume_sums.hpp).
#include "planner/cli/volume_sums.hpp"

#include <algorithm>
#include <array>

namespace plimsoll {

std::vector<VolumeSum> sums_of(const CommVolume& volume) {
  std::vector<VolumeSum> sums;
  for (const VolumeRow& row : volume.rows) {
    const auto same = [&](const VolumeSum& sum) {
      return sum.row.kind == row.kind && sum.row.group == row.group && sum.row.phase == row.phase &&
             sum.row.tier == row.tier && sum.row.dtype == row.dtype;
    };
    const auto found = std::find_if(sums.begin(), sums.end(), same);
    if (found == sums.end()) {
      sums.push_back({row, row.full_size, row.full_size});
      continue;
    }
    found->row.calls += row.calls;
    found->row.wire += row.wire;
    found->least = std::min(found->least, row.full_size);
    found->most = std::max(found->most, row.full_size);
  }
  return sums;
}

std::vector<TierLoad> loads_of(const CommVolume& volume, const ClusterSpec& cluster) {
  std::array<Bytes, tier_count> by_tier{};
  for (const VolumeRow& row : volume.rows) by_tier[static_cast<std::size_t>(row.tier)] += row.wire;
  std::vector<TierLoad> loads;
  for (int i = 0; i < tier_count; ++i) {
    const Bytes wire = by_tier[static_cast<std::size_t>(i)];
    if (wire.count == 0) continue;
    const auto tier = static_cast<Tier>(i);
    const double rate = bandwidth_per_gpu(cluster, tier).count;
    loads.push_back({tier, wire, Seconds(rate > 0 ? static_cast<double>(wire.count) / rate : 0)});
  }
  return loads;
}

}  // namespace plimsoll
