// The price of a lone collective: by its own curve, by the nearest one, by published links; and the line that none goes below.
#include "planner/spec/collective_curve.hpp"

#include <gtest/gtest.h>

#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"

namespace plimsoll {
namespace {

CollectivePrice all_gather_of(int ranks) {
  CollectivePrice price;
  price.tier = Tier::nvlink;
  price.ranks = ranks;
  price.pieces = {{10e-6, 100e9}, {30e-6, 300e9}};
  return price;
}

TEST(CollectiveCurve, of_as_many_ranks_counts_as_it_is) {
  const std::vector<CollectivePrice> prices{all_gather_of(8)};
  const auto curve = collective_curve(prices, *load_cluster("8xh100"), CollectiveKind::all_gather, {8, 1, 0});
  ASSERT_TRUE(curve);
  EXPECT_DOUBLE_EQ(curve->seconds(1e6), 10e-6 + 1e6 / 100e9);
  EXPECT_DOUBLE_EQ(curve->seconds(300e6), 30e-6 + 300e6 / 300e9);
}

// 4 ranks of a curve of 8: 3 steps instead of 7, half of the latency goes with them; 3/4 of each byte is sent instead of 7/8.
TEST(CollectiveCurve, of_the_nearest_ranks_is_scaled_by_steps_and_by_what_is_sent) {
  const std::vector<CollectivePrice> prices{all_gather_of(8)};
  const auto curve = collective_curve(prices, *load_cluster("8xh100"), CollectiveKind::all_gather, {4, 1, 0});
  ASSERT_TRUE(curve);
  EXPECT_EQ(curve->evidence, Evidence::extrapolated);
  const double latency = 30e-6 * (0.5 + 0.5 * 3 / 7), bandwidth = 300e9 * (7.0 / 8) / (3.0 / 4);
  EXPECT_DOUBLE_EQ(curve->seconds(300e6), latency + 300e6 / bandwidth);
}

// 367 GB/s of NVLink a GPU, 85 % of them; 7/8 of each byte; 7 steps.
TEST(CollectiveCurve, without_any_curve_goes_by_published_links) {
  const ClusterSpec cluster = *load_cluster("8xh100");
  const auto curve = collective_curve({}, cluster, CollectiveKind::all_gather, {8, 1, 0});
  ASSERT_TRUE(curve);
  const double hops = 7 * hop_latency(cluster, Tier::nvlink).count;
  EXPECT_DOUBLE_EQ(curve->seconds(1e9), 8e-6 + hops + 1e9 * (7.0 / 8) / (0.85 * 367e9));
  EXPECT_FALSE(collective_curve({}, cluster, CollectiveKind::all_gather, {1, 1, 0}));
}

TEST(CollectiveCurve, nowhere_goes_below_its_line) {
  for (const char* name : {"2xh200", "8xh100", "8xa100-80g", "8xl40s", "4096xh100"}) {
    const ClusterSpec cluster = *load_cluster(name);
    const Calibration calibration = *load_calibration("", cluster);
    for (const CollectiveKind kind : collective_kinds) {
      for (int ranks = 2; ranks <= cluster.world(); ranks *= 2) {
        const auto curve = collective_curve(calibration.collectives, cluster, kind, {ranks, 1, 0});
        ASSERT_TRUE(curve) << name << ranks;
        const LeastSeconds least = curve->least();
        for (double bytes = 0; bytes < 1e12; bytes = 3 * bytes + 1)
          EXPECT_LE(least.latency_s + bytes * least.s_per_byte, curve->seconds(bytes) * (1 + 1e-12))
              << name << " " << name_of(kind) << " of " << ranks << ", " << bytes;
        EXPECT_GT(least.s_per_byte, 0);
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll
