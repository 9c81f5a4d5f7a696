// Are known rules found again from samples that they made, are errors honest, and is what stands out named?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <random>

#include "calibrate/fit/fit.hpp"
#include "calibrate/fit/least_squares.hpp"
#include "planner/spec/price_rules.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/write_calibration.hpp"

namespace plimsoll::calibrate {
namespace {

Sample timed(Point point, double time_s) {
  Sample s;
  s.point = std::move(point);
  s.time_s = s.low_s = s.high_s = time_s;
  return s;
}

SampleFile file_of(std::vector<Sample> samples) {
  SampleFile file;
  file.path = "test.jsonl";
  file.header.device = "h200";
  file.header.machine = "m";
  file.header.multiprocessors = 132;
  file.samples = std::move(samples);
  return file;
}

Calibration base() {
  Calibration c;
  c.name = "base";
  c.gemm.tiles = {{256, 128, 1}, {128, 128, 0.92}, {64, 64, 0.67}};
  return c;
}

const Entry& entry(const FitResult& result, const std::string& name) {
  const auto found =
      std::find_if(result.entries.begin(), result.entries.end(), [&](const Entry& e) { return e.name == name; });
  EXPECT_NE(found, result.entries.end()) << name;
  return *found;
}

TEST(LeastSquares, FindsPositiveCoefficientsExactly) {
  Rows rows;
  std::vector<double> times;
  for (const double bytes : {1e3, 1e5, 1e7, 1e9}) {
    rows.push_back({1, bytes});
    times.push_back(5e-6 + bytes / 4e12);
  }
  const LinearFit fit = fit_nonnegative(rows, times);
  ASSERT_EQ(fit.coefficients.size(), 2U);
  EXPECT_NEAR(fit.coefficients[0], 5e-6, 1e-12);
  EXPECT_NEAR(1 / fit.coefficients[1], 4e12, 1e6);
}

TEST(LeastSquares, NeverGivesANegativeLatency) {
  // Faster than proportional at small sizes: a free line would cut the axis below zero.
  const LinearFit fit = fit_nonnegative({{1, 1e6}, {1, 2e6}, {1, 4e6}}, {0.8e-6, 2e-6, 4.4e-6});
  ASSERT_EQ(fit.coefficients.size(), 2U);
  EXPECT_EQ(fit.coefficients[0], 0);
  EXPECT_GT(fit.coefficients[1], 0);
}

TEST(LeastSquares, DoesNotInventWhatNothingDetermines) {
  EXPECT_TRUE(fit_nonnegative({}, {}).coefficients.empty());
  EXPECT_TRUE(fit_nonnegative({{0, 0}}, {1}).coefficients.empty());
}

TEST(Fit, CollectivesInPiecesAndByTheirPoints) {
  std::vector<Sample> samples;
  for (std::int64_t bytes = 1 << 10; bytes <= 1 << 30; bytes *= 2) {
    const double s = static_cast<double>(bytes);
    samples.push_back(timed(
        {"collective", {{"op", "all_gather"}, {"dtype", "bf16"}, {"tier", "nvlink"}}, {{"bytes", bytes}, {"ranks", 2}}},
        std::min(4.8e-6 + s / 200e9, 20e-6 + s / 525e9)));
  }
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  ASSERT_EQ(result->calibration.collectives.size(), 1U);
  const CollectivePrice& price = result->calibration.collectives.front();
  EXPECT_NEAR(price.pieces.back().bytes_per_s, 525e9, 5e9);
  EXPECT_EQ(price.points.size(), samples.size());
  EXPECT_EQ(price.provenance.samples, static_cast<int>(samples.size()));
  EXPECT_EQ(price.provenance.range_high, 1 << 30);
  const Errors errors = errors_of(entry(*result, "all_gather x2 nvlink").residuals, true);
  // Between measured points a straight line of logarithms misses the bend by a few percent.
  EXPECT_LT(errors.mean, 0.04);
}

TEST(Fit, AnOutlierIsNamed) {
  std::vector<Sample> samples;
  for (std::int64_t n = 1 << 18; n <= 1 << 28; n *= 2)
    samples.push_back(timed({"kernel", {{"op", "vectorized"}, {"dtype", "bf16"}}, {{"elements", n}}},
                            2e-6 + 6 * static_cast<double>(n) / 4e12));
  samples[5].time_s *= 1.8;
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  const auto& outliers = entry(*result, "kernel vectorized").outliers;
  ASSERT_EQ(outliers.size(), 1U);
  EXPECT_THAT(outliers.front(), testing::HasSubstr("elements=8388608"));
}

TEST(Fit, KernelsHaveARateWithinTheCacheAndOneBeyond) {
  constexpr double cache = 60e6;
  SampleFile file = file_of({});
  file.header.cache_bytes = static_cast<std::int64_t>(cache);
  for (std::int64_t n = 1 << 18; n <= 1 << 28; n *= 2) {
    const double bytes = 4 * static_cast<double>(n);
    file.samples.push_back(timed({"kernel", {{"op", "reduce_last"}, {"dtype", "bf16"}}, {{"elements", n}}},
                                 3e-6 + std::min(bytes, cache) / 3e12 + std::max(0.0, bytes - cache) / 4.4e12));
  }
  const auto result = fit_calibration({file}, base(), "test");
  ASSERT_TRUE(result);
  const KernelPrice& price = result->calibration.kernels.at("reduce_last");
  EXPECT_NEAR(price.fixed_s, 3e-6, 1e-11);
  EXPECT_NEAR(price.cached_bytes_per_s, 3e12, 1e7);
  EXPECT_NEAR(price.bytes_per_s, 4.4e12, 1e7);
  EXPECT_LT(errors_of(entry(*result, "kernel reduce_last").residuals, true).worst, 1e-6);
  // Without the cache's size there is one rate, which misses the bend.
  file.header.cache_bytes = 0;
  const auto one_rate = fit_calibration({file}, base(), "test");
  ASSERT_TRUE(one_rate);
  EXPECT_EQ(one_rate->calibration.kernels.at("reduce_last").cached_bytes, 0);
  EXPECT_GT(errors_of(entry(*one_rate, "kernel reduce_last").residuals, true).worst, 0.1);
}

TEST(Fit, NoPieceOfACurveIsBeatenEverywhere) {
  std::vector<Sample> samples;
  double wave = 0;
  for (std::int64_t bytes = 1 << 10; bytes <= 1 << 30; bytes *= 2) {
    const double s = static_cast<double>(bytes);
    wave += 0.9;
    samples.push_back(timed(
        {"collective", {{"op", "broadcast"}, {"dtype", "bf16"}, {"tier", "nvlink"}}, {{"bytes", bytes}, {"ranks", 2}}},
        (5e-6 + s / 350e9) * (1 + 0.15 * std::sin(wave))));
  }
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_GT(result->calibration.collectives.front().pieces.size(), 1U);
  for (const CollectivePrice::Piece& a : result->calibration.collectives.front().pieces) {
    for (const CollectivePrice::Piece& b : result->calibration.collectives.front().pieces)
      EXPECT_FALSE(a.latency_s < b.latency_s && a.bytes_per_s > b.bytes_per_s);
  }
}

TEST(Fit, AFrameworksKernelIsNotComparedWithTheBenchsOwn) {
  Calibration c = base();
  c.kernels["silu"].provenance.source = "traces";
  c.kernels["fused_norm"].provenance.source = "plimsoll-calibrate, cuda, 2026-11-30";
  EXPECT_FALSE(speaks_of(c, {"kernel", {{"op", "silu"}}, {}}));
  EXPECT_TRUE(speaks_of(c, {"kernel", {{"op", "fused_norm"}}, {}}));
  EXPECT_FALSE(speaks_of(c, {"kernel", {{"op", "unknown"}}, {}}));
  EXPECT_TRUE(speaks_of(c, {"gemm", {}, {}}));
  EXPECT_FALSE(speaks_of(c, {"gemm_grouped", {}, {}}));
}

std::vector<std::string> codes(const Diagnostics& diagnostics) {
  std::vector<std::string> result;
  for (const Diagnostic& d : diagnostics) result.push_back(d.code + ":" + std::to_string(d.place.line));
  return result;
}

Sample copied(const char* memory, std::int64_t bytes, double time_s) {
  Sample s = timed(
      {"copy", {{"direction", "host_to_device"}, {"memory", memory}, {"ranks", "one"}}, {{"bytes", bytes}}}, time_s);
  s.source = "bench";
  return s;
}

/// A copy that goes at 3 GB/s up to 64 KiB and at 9 beyond, after 5 us.
double bent(std::int64_t bytes) {
  constexpr double knee = 65536;
  const auto b = static_cast<double>(bytes);
  return 5e-6 + std::min(b, knee) / 3e9 + std::max(0.0, b - knee) / 9e9;
}

TEST(Fit, CopiesMayGoAtAnotherRateFromSomeSizeOn) {
  std::vector<Sample> samples;
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2)
    samples.push_back(copied("pageable", bytes, bent(bytes)));
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  ASSERT_EQ(result->calibration.copy_prices.size(), 1U);
  const CopyPrice& price = result->calibration.copy_prices.front();
  EXPECT_NEAR(price.bytes_per_s, 9e9, 1e3);
  for (const std::int64_t bytes : {1 << 12, 1 << 16, 1 << 20, 1 << 28})
    EXPECT_NEAR(copy_seconds(price, static_cast<double>(bytes)) / bent(bytes), 1, 1e-6) << bytes;
  const Entry& found = entry(*result, "copy host_to_device pageable one");
  EXPECT_EQ(found.kind, "pageable copy");
  EXPECT_LT(errors_of(found.residuals, true).worst, 0.05);
}

// One rank's pageable copies went at 14.3 GB/s in one run and at 10.8 in the next: a rule that knows one of them only must not
// claim to be within a per cent of the other.
TEST(Fit, CopiesOfSeveralRunsAreFittedTogetherAndTheIntervalHoldsTheirSpread) {
  std::vector<Sample> first, second;
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2) {
    const double s = static_cast<double>(bytes) / 10e9;
    first.push_back(copied("pageable", bytes, 1e-5 + s));
    second.push_back(copied("pageable", bytes, 1.3 * (1e-5 + s)));
  }
  const auto alone = fit_calibration({file_of(first)}, base(), "test");
  const auto both = fit_calibration({file_of(first), file_of(second)}, base(), "test");
  ASSERT_TRUE(alone && both);
  EXPECT_LT(alone->calibration.copy_prices.front().provenance.interval, 0.001);
  EXPECT_GT(both->calibration.copy_prices.front().provenance.interval, 0.1);
  EXPECT_EQ(both->calibration.copy_prices.front().provenance.samples, 30);
  EXPECT_THAT(entry(*both, "copy host_to_device pageable one").rule, testing::HasSubstr("from run to run"));
  EXPECT_TRUE(both.diagnostics().empty());
}

/// Each size goes a little faster than the one before: 5 GB/s at 4 KiB, 8 at 64 MiB.
double gradual(std::int64_t bytes) {
  const double octaves = std::log2(static_cast<double>(bytes) / 4096) / 14;
  return 5e-6 + static_cast<double>(bytes) / (5e9 + 3e9 * octaves);
}

TEST(Fit, WhatALineLeavesOverOfCopiesIsKeptWhereNeighboursAgree) {
  std::vector<Sample> smooth, noisy;
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2) {
    smooth.push_back(copied("pageable", bytes, gradual(bytes)));
    // Every other size in a moment a tenth slower: neighbours say nothing of each other.
    noisy.push_back(copied("pageable", bytes, (smooth.size() % 2 == 0 ? 1.1 : 1) * gradual(bytes)));
  }
  const auto kept = fit_calibration({file_of(smooth)}, base(), "test");
  ASSERT_TRUE(kept);
  EXPECT_NEAR(copy_seconds(kept->calibration.copy_prices.front(), 1 << 20) / gradual(1 << 20), 1, 1e-6);
  EXPECT_LT(errors_of(entry(*kept, "copy host_to_device pageable one").residuals, true).worst, 0.06);
  const auto line = fit_calibration({file_of(noisy)}, base(), "test");
  ASSERT_TRUE(line);
  const CopyPrice& price = line->calibration.copy_prices.front();
  EXPECT_LT(copy_seconds(price, 1 << 21) / noisy[9].time_s, 0.98);
  EXPECT_GT(copy_seconds(price, 1 << 20) / noisy[8].time_s, 1.02);
}

// Four rounds of nine came in a slow moment of the processor: the others say what a copy takes.
TEST(Fit, CopiesInRoundsAreAsLongAsTheirMedian) {
  std::vector<Sample> samples;
  for (std::int64_t round = 1; round <= 9; ++round) {
    for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2) {
      samples.push_back(copied("pageable", bytes, (round % 2 == 0 ? 1.5 : 1) * bent(bytes)));
      samples.back().point.sizes["round"] = round;
    }
  }
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_NEAR(result->calibration.copy_prices.front().bytes_per_s, 9e9, 1e3);
  EXPECT_EQ(result->calibration.copy_prices.front().provenance.samples, 15);
  EXPECT_THAT(entry(*result, "copy host_to_device pageable one").rule,
              testing::HasSubstr("22.2 % from round to round"));
}

TEST(Fit, OneRunGivenTwiceIsOneRun) {
  std::vector<Sample> samples;
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2)
    samples.push_back(copied("pageable", bytes, bent(bytes)));
  const auto result = fit_calibration({file_of(samples), file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->calibration.copy_prices.front().provenance.samples, 15);
  EXPECT_EQ(codes(result.diagnostics()), std::vector<std::string>{"fit.unused:0"});
}

TEST(Fit, SamplesWithoutTheirSizesAreLeftOutAndTold) {
  std::vector<Sample> samples;
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 26; bytes *= 2)
    samples.push_back(copied("pageable", bytes, bent(bytes)));
  samples.push_back(copied("pageable", 0, 1e-3));
  samples.push_back(timed({"gemm", {{"dtype", "bf16"}}, {{"m", 4096}, {"k", 4096}}}, 1e-3));
  samples.back().line = 17;
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->calibration.copy_prices.front().provenance.samples, 15);
  EXPECT_EQ(codes(result.diagnostics()), (std::vector<std::string>{"fit.sizes:0", "fit.sizes:17"}));
}

TEST(Fit, TimesThatNoRuleDescribesAreRefused) {
  // The host backend's copies on a busy machine: 2.3, 0.65, 89.7, 87.9 and 14196.8 us were a curve once.
  std::vector<Sample> samples = {copied("pinned", 1 << 12, 2.3e-6),     copied("pinned", 1 << 15, 0.65e-6),
                                 copied("pinned", 1 << 18, 89.7e-6),    copied("pinned", 1 << 21, 87.9e-6),
                                 copied("pinned", 1 << 24, 14196.8e-6), timed({"host", {{"op", "sync"}}, {}}, 1e-6)};
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->calibration.copy_prices.empty());
  EXPECT_EQ(codes(result.diagnostics()), std::vector<std::string>{"fit.refused:0"});
}

TEST(Fit, WhatNothingIsFittedToIsToldWithItsLine) {
  Sample banana = timed({"banana", {}, {}}, 1e-6),
         moon = timed({"pair", {{"first", "silu"}, {"second", "all_moon"}}, {}}, 1e-6);
  banana.line = 7;
  moon.line = 8;
  moon.figures = {{"slowdown_first", 1.2}, {"slowdown_second", 1.2}};
  const auto nothing = fit_calibration({file_of({banana, moon})}, base(), "test");
  ASSERT_FALSE(nothing);
  EXPECT_THAT(codes(nothing.diagnostics()),
              testing::ElementsAre("fit.kind:7", "fit.left_out:8", "fit.refused:0", "fit.empty:0"));
  const SampleFile good = file_of({timed({"host", {{"op", "sync"}}, {}}, 1e-6)});
  const auto twice = fit_calibration({good, good, file_of({})}, base(), "test");
  ASSERT_TRUE(twice);
  EXPECT_THAT(codes(twice.diagnostics()), testing::ElementsAre("fit.unused:0", "fit.unused:0"));
}

// Each of these was written into a calibration once that could not be read again.
TEST(Fit, WhatNoCalibrationMayHoldIsRefusedAndTheRestFitted) {
  std::vector<Sample> samples = {timed({"host", {{"op", "sync"}}, {}}, 1e-6),
                                 timed({"fixed_bytes", {{"what", "context"}}, {}}, 0)};
  samples.back().figures["bytes"] = 1e300;
  samples.back().line = 3;
  for (int i = 1; i <= 20; ++i) {
    samples.push_back(copied("pinned", i, 1e-5 * i));  // 100 KB/s
    for (const std::int64_t ranks : {1, 1 << 30})
      samples.push_back(timed({"collective", {{"op", "all_gather"}}, {{"bytes", i}, {"ranks", ranks}}}, 1e-6 * i));
    samples.push_back(
        timed({"collective", {{"op", "all_gather"}, {"tier", "moon"}}, {{"bytes", i}, {"ranks", 2}}}, 1e-6 * i));
  }
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_THAT(codes(result.diagnostics()), testing::ElementsAre("fit.refused:0", "fit.refused:0", "fit.refused:0",
                                                                "fit.refused:0", "fit.left_out:3"));
  const auto document =
      parse_document(std::make_shared<SourceFile>(SourceFile{"c.json", calibration_text(result->calibration)}));
  ASSERT_TRUE(document);
  EXPECT_TRUE(read_calibration(*document, "again"));
}

TEST(Fit, TooFewPointsAreRefusedAndTheBaseStays) {
  Calibration with = base();
  with.kernels["silu"].bytes_per_s = 3e12;
  const auto result = fit_calibration({file_of({timed({"kernel", {{"op", "silu"}}, {{"elements", 1 << 20}}}, 1e-6),
                                                timed({"host", {{"op", "sync"}}, {}}, 1e-6)})},
                                      with, "test");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->calibration.kernels.at("silu").bytes_per_s, 3e12);
  ASSERT_EQ(result.diagnostics().size(), 1U);
  EXPECT_EQ(result.diagnostics().front().code, "fit.refused");
}

TEST(Fit, TwoDevicesAreNoCalibration) {
  SampleFile other = file_of({timed({"copy", {}, {{"bytes", 4}}}, 1e-6)});
  other.header.device = "h100";
  const auto result = fit_calibration({file_of({timed({"copy", {}, {{"bytes", 8}}}, 1e-6)}), other}, base(), "test");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.diagnostics().front().code, "fit.device");
}

/// Products as a device with a known rule would time them, with a bump that the rule does not have.
std::vector<Sample> products(int per_size) {
  GemmPrice truth = base().gemm;
  truth.launch_s = 3e-6;
  truth.flops_per_s = 700e12;
  truth.epilogue_s_per_element = 3e-11;
  std::vector<Sample> samples;
  std::minstd_rand engine(3);
  std::uniform_real_distribution<double> log_size(9, 14);
  for (int i = 0; i < per_size; ++i) {
    const auto size = [&] { return static_cast<std::int64_t>(std::exp2(log_size(engine))) / 64 * 64; };
    const std::int64_t m = size(), n = size(), k = size();
    const double bump = 1 + 0.1 * std::sin(std::log2(static_cast<double>(k)));
    samples.push_back(timed({"gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", m}, {"n", n}, {"k", k}}},
                            truth.launch_s + (gemm_seconds(truth, 132, static_cast<double>(m), static_cast<double>(n),
                                                           static_cast<double>(k), DType::bf16) -
                                              truth.launch_s) *
                                                 bump));
  }
  return samples;
}

TEST(Fit, ProductsHeldOutArePredicted) {
  const auto result = fit_calibration({file_of(products(300))}, base(), "test");
  ASSERT_TRUE(result);
  const Errors errors = errors_of(entry(*result, "gemm").residuals, true, 100e-6);
  // The bump alone is 10 % either way; the surface must have learned most of it.
  EXPECT_LT(errors.mean, 0.04);
  EXPECT_GT(errors.count, 100);
  EXPECT_FALSE(result->calibration.gemm.surface.places.empty());
}

TEST(Fit, ACalibrationSurvivesItsFile) {
  auto samples = products(60);
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 28; bytes *= 4) {
    samples.push_back(
        timed({"copy", {{"direction", "host_to_device"}, {"memory", "pinned"}, {"ranks", "one"}}, {{"bytes", bytes}}},
              3e-6 + static_cast<double>(bytes) / 50e9));
    samples.push_back(
        timed({"collective", {{"op", "all_reduce"}, {"tier", "nvlink"}}, {{"bytes", bytes}, {"ranks", 2}}},
              9e-6 + static_cast<double>(bytes) / 300e9));
  }
  const auto result = fit_calibration({file_of(samples)}, base(), "test");
  ASSERT_TRUE(result);
  const std::string text = calibration_text(result->calibration);
  const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{"c.json", text}));
  ASSERT_TRUE(document);
  const auto again = read_calibration(*document, "again");
  ASSERT_TRUE(again) << format(again.diagnostics().front());
  EXPECT_EQ(calibration_text(*again), text);
  EXPECT_EQ(again->gemm.surface.places.size(), result->calibration.gemm.surface.places.size());
}

TEST(Fit, AHundredThousandSamplesTakeSeconds) {
  std::vector<Sample> samples;
  std::minstd_rand engine(5);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  for (int i = 0; i < 100000; ++i) {
    const std::int64_t bytes = 1024 + 37 * static_cast<std::int64_t>(i);
    samples.push_back(timed({"collective",
                             {{"op", i % 2 == 0 ? "all_gather" : "all_reduce"}, {"tier", "nvlink"}},
                             {{"bytes", bytes}, {"ranks", 2 << i % 5}}},
                            (5e-6 + static_cast<double>(bytes) / 400e9) * noise(engine)));
  }
  const std::clock_t start = std::clock();
  const auto result = fit_calibration({file_of(std::move(samples))}, base(), "test");
  const double cpu_s = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(result);
  // Processor time, since other work on the machine is no fault of the fit; below 2 s without sanitizers.
  EXPECT_LT(cpu_s, 20);
}

Sample pair(const char* first, const char* second, bool resident, double slow_first, double slow_second) {
  Point point{"pair", {{"first", first}, {"second", second}}, {}};
  if (resident) point.labels["resident"] = "second";
  Sample sample = timed(point, 1e-3 * slow_first);
  sample.figures = {{"alone_first_s", 1e-3}, {"slowdown_first", slow_first}, {"slowdown_second", slow_second}};
  return sample;
}

// What was resident decides; what was queued behind kernels is told, but another matter; kernels not measured keep the base's.
TEST(Fit, PairsAreByKernelRingAndExchange) {
  Calibration from = base();
  from.interference.factor = {{"gemm", 1.5}, {"other", 1.15}};
  from.interference.provenance.evidence = Evidence::assumed;
  const SampleFile file =
      file_of({pair("gemm_8_8_8", "all_gather", true, 1.2, 1.1), pair("gemm_16_8_8", "reduce_scatter", true, 1.2, 1.1),
               pair("gemm_8_8_8", "all_to_all", true, 1.4, 1.1), pair("adamw", "all_gather", true, 1.1, 2.5),
               pair("gemm_8_8_8", "all_gather", false, 1.3, 1.9), pair("attention", "all_gather", false, 1.25, 1.9),
               pair("silu", "all_gather", true, 1e300, 1)});
  const auto result = fit_calibration({file}, from, "test");
  ASSERT_TRUE(result);
  EXPECT_EQ(codes(result.diagnostics()), std::vector<std::string>{"fit.left_out:0"});  // the slowdown of 1e300
  const auto document =
      parse_document(std::make_shared<SourceFile>(SourceFile{"c.json", calibration_text(result->calibration)}));
  ASSERT_TRUE(document);
  const auto again = read_calibration(*document, "again");
  ASSERT_TRUE(again) << format(again.diagnostics().front());
  for (const Calibration* c : {&result->calibration, &*again}) {
    const InterferencePrices& beside = c->interference;
    EXPECT_NEAR(beside.factor.at("gemm"), 1.2, 1e-5);
    EXPECT_NEAR(beside.factor.at("adamw"), 1.1, 1e-5);
    EXPECT_EQ(beside.factor.at("other"), 1.15);
    EXPECT_NEAR(beside.factor.at("attention_forward"), 1.25, 1e-5);  // no resident one, and the base assumes
    EXPECT_EQ(beside.factor.count("silu"), 0U);                      // no slowdown
    EXPECT_NEAR(beside.exchange_factor.at("gemm"), 1.4, 1e-5);
    EXPECT_NEAR(beside.collective_beside.at("gemm"), 1.1, 1e-5);
    EXPECT_NEAR(beside.collective_beside.at("adamw"), 2.5, 1e-5);
    EXPECT_NEAR(beside.collective_factor, 2.5, 1e-5);  // of kernels that stream memory
  }
}

TEST(Fit, PairsThatAreNotKnownAreToldAndLeftOut) {
  SampleFile file =
      file_of({pair("gemm_8_8_8", "all_gather", true, 1.2, 1.1), pair("grouped_gemm_1", "all_gather", true, 1.9, 1.1),
               pair("grouped_gemm_2", "all_gather", true, 800, 1.1), pair("gemm_8_8_8", "all_moon", true, 1.2, 1.1),
               pair("banana", "all_gather", true, 1.2, 1.1), pair("copy", "all_gather", false, 1, 1),
               pair("gemm_8_8_9", "all_gather", true, 1.2, 1.1)});
  file.samples[1].low_s *= 0.93;  // an interval of 14 %
  file.samples[1].high_s *= 1.07;
  file.samples[6].figures["alone_first_s"] = 0;  // a plot of it never ended
  for (std::size_t i = 0; i < file.samples.size(); ++i) file.samples[i].line = static_cast<int>(i) + 2;
  const auto result = fit_calibration({file}, base(), "test");
  ASSERT_TRUE(result);
  EXPECT_THAT(codes(result.diagnostics()), testing::ElementsAre("fit.left_out:3", "fit.left_out:4", "fit.left_out:5",
                                                                "fit.left_out:6", "fit.left_out:8"));
  EXPECT_EQ(result->calibration.interference.collective_beside.size(), 1U);
}

}  // namespace
}  // namespace plimsoll::calibrate
