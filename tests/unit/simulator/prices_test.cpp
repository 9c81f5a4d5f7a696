// What a kernel costs where the calibration knows more than its kind: how operands lie, their type, rows, groups.
#include "simulator/prices.hpp"

#include <gtest/gtest.h>

#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "tests/support/temporary_folder.hpp"

namespace plimsoll {
namespace {

constexpr SimTime us = 1'000'000;  // picoseconds

class PricesTest : public ::testing::Test {
 protected:
  PricesTest() : cluster_(*load_cluster("1xh200")) {}

  /// A price of so many microseconds an element, and nothing else.
  void price(const char* name, double us_per_element) {
    KernelPrice price;
    price.fixed_s = 0;
    price.s_per_element = us_per_element * 1e-6;
    calibration_.kernels[name] = price;
  }
  void fixed(const char* name, double microseconds) {
    KernelPrice price;
    price.fixed_s = microseconds * 1e-6;
    calibration_.kernels[name] = price;
  }
  SimTime cost(const Kernel& kernel) const { return Prices(calibration_, cluster_, program_, 1).kernel(kernel); }
  static Kernel walked(KernelKind kind, DType dtype, std::int64_t dimensions) {
    Kernel kernel = Kernel::pointwise(kind, dtype, 10, Bytes(0));
    kernel.m = dimensions;
    return kernel;
  }

  ClusterSpec cluster_;
  Calibration calibration_;
  StepProgram program_;
};

TEST_F(PricesTest, HeadsOfOneSequenceAreWalkedInThreeDimensionsAndCostLess) {
  price("strided_mul", 4);
  EXPECT_EQ(cost(walked(KernelKind::strided_mul, DType::bf16, 3)), 40 * us) << "no price of its own: the kind's";
  price("strided_mul_flat", 3);
  EXPECT_EQ(cost(walked(KernelKind::strided_mul, DType::bf16, 4)), 40 * us);
  EXPECT_EQ(cost(walked(KernelKind::strided_mul, DType::bf16, 3)), 30 * us);
}

TEST_F(PricesTest, ATypesPriceComesBeforeThatOfTheLayout) {
  price("strided_mul", 4);
  price("strided_mul_flat", 3);
  price("strided_mul_fp32", 5);
  EXPECT_EQ(cost(walked(KernelKind::strided_mul, DType::fp32, 3)), 50 * us);
  EXPECT_EQ(cost(walked(KernelKind::strided_mul, DType::bf16, 3)), 30 * us);
}

TEST_F(PricesTest, ShortRowsOfASoftmax) {
  price("log_softmax", 4);
  price("log_softmax_short", 3);
  Kernel kernel = Kernel::pointwise(KernelKind::log_softmax, DType::fp32, 10, Bytes(0));
  EXPECT_EQ(cost(kernel), 40 * us) << "rows of unknown length";
  kernel.n = 128256;
  EXPECT_EQ(cost(kernel), 40 * us);
  kernel.n = 32000;
  EXPECT_EQ(cost(kernel), 30 * us);
}

TEST_F(PricesTest, EveryRowOfAReductionCosts) {
  price("reduce_last", 1);
  fixed("reduce_last_row", 2);
  Kernel kernel = Kernel::pointwise(KernelKind::reduce_last, DType::fp32, 12, Bytes(0));
  kernel.n = 4;
  EXPECT_EQ(cost(kernel), (12 + 3 * 2) * us);
}

TEST_F(PricesTest, EveryGroupOfAGroupedProductCosts) {
  const Kernel kernel = Kernel::grouped_gemm(4096, 1024, 1024, DType::bf16, 8);
  const SimTime before = cost(kernel);
  fixed("grouped_gemm_group", 2);
  EXPECT_EQ(cost(kernel) - before, 8 * 2 * us);
}

// Eight tiles of nine steps on 66 clusters: one wave of 9 x 1 us + 2 us.
TEST_F(PricesTest, AGroupedProductCostsByItsTilesWhereTheyAreKnown) {
  calibration_.grouped_gemm.prepare_s = 0;
  calibration_.grouped_gemm.large = {.flops_per_s = 553.648128e12, .epilogue_s = 2e-6, .memory_bytes_per_s = 1e15};
  Kernel kernel = Kernel::grouped_gemm(600, 300, 576, DType::bf16, 2);
  const SimTime by_rate = cost(kernel);
  kernel.tiles = tiles_of_grouped({{300, 300}}, 300, 576);
  EXPECT_EQ(kernel.tiles.count, 8);
  EXPECT_NEAR(static_cast<double>(cost(kernel)), 11.0 * us, 1e-6 * us);
  EXPECT_NE(cost(kernel), by_rate);
  calibration_.grouped_gemm.large = {};
  EXPECT_EQ(cost(kernel), by_rate) << "no price of tiles";
}

TEST_F(PricesTest, EveryPassOfASortIsAKernelOverAllKeys) {
  price("sort_pass", 1);
  Kernel kernel = Kernel::pointwise(KernelKind::sort_pass, DType::int64, 10, Bytes(0));
  kernel.launches = 4;
  EXPECT_EQ(cost(kernel), 40 * us);
}

// 2^15 + 1 columns: rows of the result do not start at multiples of 16 bytes.
TEST_F(PricesTest, AnOddVocabularySlowsItsProducts) {
  calibration_.gemm.tiles = {{128, 128, 1}};
  const SimTime aligned = cost(Kernel::gemm(128, 32768, 256, DType::bf16));
  price("gemm_unaligned", 1e-3);
  EXPECT_EQ(cost(Kernel::gemm(128, 32768, 256, DType::bf16)), aligned);
  EXPECT_NEAR(static_cast<double>(cost(Kernel::gemm(128, 32769, 256, DType::bf16))), 128.0 * 32769 * 256 * 1e-3 * us,
              1e-6 * us);
  EXPECT_LT(cost(Kernel::gemm(129, 4096, 256, DType::bf16)), aligned) << "an odd number of rows is no vocabulary";
}

// Rows of a linear layer are as long as its widths, not as there are tokens: 8 elements are aligned, 4 as little as 2.
TEST_F(PricesTest, OddWidthsSlowTheProductsOfALinearLayer) {
  using enum LinearProduct;
  calibration_.gemm.tiles = {{128, 128, 1}};
  const auto seconds = [&](LinearProduct product, std::int64_t m, std::int64_t n, std::int64_t k) {
    return static_cast<double>(cost(Kernel::linear_gemm(product, m, n, k, DType::bf16)));
  };
  const double aligned = seconds(forward, 129, 512, 256);
  price("gemm_unaligned_even", 1e-3);
  price("gemm_unaligned_forward", 2e-3);
  price("gemm_unaligned_forward_inner", 3e-3);
  price("gemm_unaligned_to_input", 4e-3);
  price("gemm_unaligned_to_input_inner", 5e-3);
  price("gemm_unaligned_to_weight", 6e-3);
  EXPECT_EQ(seconds(forward, 129, 512, 256), aligned) << "an odd number of tokens";
  const auto expect = [&](double per_multiply_add, LinearProduct product, std::int64_t m, std::int64_t n,
                          std::int64_t k) {
    const auto adds = static_cast<double>(m * n * k);
    EXPECT_NEAR(seconds(product, m, n, k), adds * per_multiply_add * us, 1e-6 * us) << m << "x" << n << "x" << k;
  };
  expect(1e-3, forward, 128, 516, 256);
  expect(1e-3, to_weight, 514, 256, 127);
  expect(2e-3, forward, 128, 513, 256);
  expect(3e-3, forward, 128, 256, 513);
  expect(4e-3, to_input, 128, 513, 256);
  expect(5e-3, to_input, 128, 256, 513);
  expect(6e-3, to_weight, 256, 513, 128);
}

// 64 products of 2048 x 2048 x 64 write 537 MB: at 1 TB/s that takes longer than their FLOPs.
TEST_F(PricesTest, ProductsOfABatchPassTheMemoryOnce) {
  calibration_.gemm.launch_s = 0;
  calibration_.gemm.memory_bytes_per_s = 1e12;
  const Kernel kernel = Kernel::gemm(2048, 2048, 64, DType::bf16, 64);
  EXPECT_EQ(cost(kernel), kernel.bytes.count);  // a picosecond a byte
}

// What names a calibration may price is read off the published figures: they must hold every kind that a step program has.
TEST_F(PricesTest, RanksOfANodeCopyAtTheSameTime) {
  calibration_.copy_fixed_s = 0;
  calibration_.copy_bytes_per_s = 50e9;
  const HostCopy pinned{true, true, Bytes(100'000'000)}, pageable{true, false, Bytes(100'000'000)};
  calibration_.copy_prices = {{true, false, true, 0, 5e9, {}, {}}, {true, false, false, 0, 10e9, {}, {}}};
  const auto copy = [&](const HostCopy& what) { return Prices(calibration_, cluster_, program_, 1).copy(what); };
  EXPECT_EQ(copy(pinned), 2'000 * us) << "no price of its own";
  EXPECT_EQ(copy(pageable), 10'000 * us) << "alone in its node";
  cluster_ = *load_cluster("2xh200");
  EXPECT_EQ(copy(pageable), 20'000 * us);
}

TEST_F(PricesTest, EveryKernelAndEveryHostWorkHasANameThatCalibrationsKnow) {
  std::string factors, work;
  for (int i = 0; i < kernel_kind_count; ++i)
    factors += std::string(i == 0 ? "" : ", ") + '"' + name_of(static_cast<KernelKind>(i)) + "\": 1.1";
  for (int i = 0; i < host_work_kind_count; ++i) {
    if (static_cast<HostWorkKind>(i) == HostWorkKind::cpu_adam) continue;  // priced by the element
    work += std::string(work.empty() ? "" : ", ") + '"' + name_of(static_cast<HostWorkKind>(i)) + "\": 1";
  }
  const test::TemporaryFolder folder;
  const std::string text =
      R"({"format": "plimsoll-calibration/1", "device": "h200", "interference": {"factor_exchange": {)" + factors +
      R"(}}, "host": {"work_us": {)" + work + "}}}";
  const auto calibration = load_calibration(folder.write("calibration.json", text), cluster_);
  ASSERT_TRUE(calibration);
  for (const Diagnostic& diagnostic : calibration.diagnostics())
    EXPECT_NE(diagnostic.code, "calibration.unknown") << diagnostic.message;
}

}  // namespace
}  // namespace plimsoll
