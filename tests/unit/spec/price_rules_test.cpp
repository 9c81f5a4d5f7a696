// Do the rules of the prices give what their equations say?
#include "planner/spec/price_rules.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace plimsoll {
namespace {

TEST(PriceRules, AProductByHand) {
  GemmPrice price;
  price.launch_s = 2e-6;
  price.flops_per_s = 132e12;  // 1 TFLOP/s a multiprocessor
  price.epilogue_s_per_element = 0;
  price.traffic_share = 0;
  price.memory_bytes_per_s = 1e18;
  price.tiles = {{128, 128, 1}};
  // 16 tiles on 132 multiprocessors: one wave of 2 * 128 * 128 * 1000 FLOP at 1 TFLOP/s.
  EXPECT_NEAR(gemm_seconds(price, 132, 512, 512, 1000, DType::bf16), 2e-6 + 32.768e-6, 1e-12);
  // 133 tiles take two waves.
  EXPECT_NEAR(gemm_seconds(price, 132, 133 * 128, 128, 1000, DType::bf16), 2e-6 + 65.536e-6, 1e-12);
}

// In 15,088 products of 46 traced steps one was preceded by a memset where it had more than 264 tiles, and only there.
TEST(PriceRules, TheCounterOfTilesIsClearedBeforeMoreThanTwoWaves) {
  GemmPrice price;
  price.tiles = {{128, 128, 1}};
  const double without = gemm_seconds(price, 132, 264 * 128, 128, 1000, DType::bf16);
  const double third = gemm_seconds(price, 132, 265 * 128, 128, 1000, DType::bf16);
  price.memset_s = 1e-3;
  EXPECT_DOUBLE_EQ(gemm_seconds(price, 132, 264 * 128, 128, 1000, DType::bf16), without);
  EXPECT_DOUBLE_EQ(gemm_seconds(price, 132, 265 * 128, 128, 1000, DType::bf16), third + 1e-3);
}

TEST(PriceRules, AThinProductInFp32WaitsForTheMemory) {
  GemmPrice price;
  price.launch_s = 2e-6;
  price.fp32_flops_per_s = 50e12;
  price.fp32_fixed_s = 5e-6;
  const double m = 8192, n = 8, k = 2048, bytes = 4 * (m * k + k * n + m * n), busy = 5e-6 + 2 * m * n * k / 50e12;
  EXPECT_NEAR(gemm_seconds(price, 132, m, n, k, DType::fp32), 2e-6 + busy, 1e-12) << "without a rate of the memory";
  price.fp32_bytes_per_s = 1e12;
  EXPECT_NEAR(gemm_seconds(price, 132, m, n, k, DType::fp32), 2e-6 + bytes / 1e12, 1e-12);
}

TEST(PriceRules, GpusTogetherSagAsOneAloneThatDoesMore) {
  GemmPrice price;
  price.sag_from = 0.3;
  price.sag_full = 0.7;
  price.sag_together = 0.1;
  EXPECT_DOUBLE_EQ(sag_share(price, 0.3, 1), 0);
  EXPECT_NEAR(sag_share(price, 0.5, 1), 0.5, 1e-12);
  EXPECT_NEAR(sag_share(price, 0.4, 2), 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(sag_share(price, 0.8, 2), 1);
}

TEST(PriceRules, ASurfaceIsExactAtAPlaceWithoutShrinkageAndOneFarAway) {
  Surface surface;
  surface.width = 0.5;
  surface.shrink = 0;
  surface.places = {{{10, 10, 10}, std::log(1.2)}};
  EXPECT_DOUBLE_EQ(surface_factor(surface, 1024, 1024, 1024), 1.2);
  EXPECT_DOUBLE_EQ(surface_factor(surface, 1024, 1024, 8), 1) << "more than three widths away";
  surface.shrink = 1;  // equal weights: half of the logarithm
  EXPECT_NEAR(surface_factor(surface, 1024, 1024, 1024), std::sqrt(1.2), 1e-12);
}

TEST(PriceRules, ACollectiveTakesItsFastestPiece) {
  const std::vector<CollectivePrice::Piece> pieces{{5e-6, 200e9}, {20e-6, 500e9}};
  EXPECT_DOUBLE_EQ(collective_seconds(pieces, 0), 5e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(pieces, 1e9), 20e-6 + 2e-3);
  EXPECT_EQ(collective_seconds(std::vector<CollectivePrice::Piece>{}, 1), std::numeric_limits<double>::infinity());
}

TEST(PriceRules, MeasuredPointsCountInsideTheirRange) {
  CollectivePrice price;
  price.pieces = {{0, 100e9}};
  price.points = {{1e6, 20e-6}, {4e6, 80e-6}};
  EXPECT_DOUBLE_EQ(collective_seconds(price, 1e6), 20e-6);
  EXPECT_NEAR(collective_seconds(price, 2e6), 40e-6, 1e-12) << "a straight line of logarithms";
  EXPECT_NEAR(collective_seconds(price, 8e6), 160e-6, 1e-12) << "beyond them the pieces, through the last point";
  EXPECT_NEAR(collective_seconds(price, 5e5), 10e-6, 1e-12);
}

// 132 multiprocessors are 66 clusters, whose step takes 2 x 64 x 256 x 256 / (553.648128 TFLOP/s / 66) = 1 us.
TEST(PriceRules, GroupedProductsByTilesAndWaves) {
  GroupedGemmPrice price;
  price.prepare_s = 1e-6;
  price.large = {
      .fixed_s = 2e-6, .group_s = 0.5e-6, .flops_per_s = 553.648128e12, .epilogue_s = 3e-6, .memory_bytes_per_s = 1e12};
  const auto us = [&](std::int64_t groups, const GroupedTiles& tiles, double bytes = 0, double sag = 1) {
    return 1e6 * tiled_grouped_seconds(price, 132, groups, tiles, bytes, sag);
  };
  EXPECT_NEAR(us(4, {.count = 66, .steps = 66 * 8, .longest = 8}), 1 + 2 + 2 + (8 + 3), 1e-9) << "one wave";
  EXPECT_NEAR(us(4, {.count = 67, .steps = 67 * 8, .longest = 8}), 1 + 2 + 2 + 2 * (8 + 3), 1e-9)
      << "one tile too many";
  EXPECT_NEAR(us(4, {.count = 67, .steps = 67 * 8, .longest = 8}, 0, 2), 1 + 2 + 2 + 4 * (8 + 3), 1e-9)
      << "half the clock";
  EXPECT_NEAR(us(4, {.count = 66, .steps = 66 * 8, .longest = 8}, 50e6), 1 + 2 + 2 + 50, 1e-9) << "bound by memory";
  EXPECT_NEAR(us(2, {.count = 66, .steps = 66 * 8, .longest = 20}), 1 + 2 + 1 + (20 + 3), 1e-9) << "the longest tile";
}

// Groups of 300 and 10 rows, width 300: two and one tiles of 256 rows by two of 256 columns.
TEST(PriceRules, TilesOfGroupsEndWithTheirGroup) {
  const GroupedTiles large = tiles_of_grouped({{300, 10}}, 300, 100);
  EXPECT_EQ(large, (GroupedTiles{false, (2 + 1) * 2, 6 * 2, 2}));
  const GroupedTiles small = tiles_of_grouped({{200, 10, 0}}, 300, 100);
  EXPECT_EQ(small, (GroupedTiles{true, (2 + 1) * 3, 9 * 2, 2})) << "70 rows in the mean; none, no tile";
  EXPECT_TRUE(tiles_of_grouped({{4096}}, 128, 64).small) << "128 columns";
  const GroupedTiles gradient = tiles_of_grouped_gradient({{300, 10, 0}}, 300, 257);
  EXPECT_EQ(gradient, (GroupedTiles{false, 3 * 4, 4 * (5 + 1), 5})) << "that of no rows is written all the same";
  EXPECT_EQ(tiles_of_grouped({}, 300, 100).count, 0) << "not known how the rows lie";
  EXPECT_EQ(tiles_of_grouped({{512, 512}}, 256, 64).count, 4);
  EXPECT_EQ(tiles_of_grouped({{512, 512}, false}, 256, 64).count, 5) << "expected rows: the last tile is half full";
  EXPECT_EQ(tiles_of_grouped({{32, 32}, false}, 256, 64).count, 4) << "but there is one";
}

TEST(PriceRules, CopiesAndAttention) {
  CopyPrice copy;
  copy.fixed_s = 3e-6;
  copy.bytes_per_s = 50e9;
  EXPECT_DOUBLE_EQ(copy_seconds(copy, 50e6), 3e-6 + 1e-3);
  AttentionPrice attention;
  attention.fixed_s = 6e-6;
  attention.forward = {{128, 600e12, 1000, -1}, {64, 300e12, 0, 1e-6}};
  EXPECT_NEAR(attention_seconds(attention, false, 1, 1000, 128, 300e9), 6e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(attention_seconds(attention, false, 1, 1000, 64, 300e9), 1e-6 + 1e-3, 1e-12) << "its own fixed cost";
}

// At length 1000 100 and 300 TFLOP/s (600 halved), fixed costs of 2 and 6 us.
TEST(PriceRules, AttentionBetweenTwoKnownHeadSizesIsInterpolated) {
  AttentionPrice attention;
  attention.fixed_s = 6e-6;
  attention.forward = {{128, 600e12, 1000, -1}, {64, 100e12, 0, 2e-6}};
  EXPECT_NEAR(attention_seconds(attention, false, 1, 1000, 96, 200e9), 4e-6 + 1e-3, 1e-12) << "200 TFLOP/s";
  EXPECT_NEAR(attention_seconds(attention, false, 1, 1000, 256, 300e9), 6e-6 + 1e-3, 1e-12) << "beyond: the nearest";
  EXPECT_NEAR(attention_seconds(attention, false, 1, 1000, 32, 100e9), 2e-6 + 1e-3, 1e-12);
}

}  // namespace
}  // namespace plimsoll
