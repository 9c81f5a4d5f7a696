// Calibrations with holes, impossible times and contradictions: each is told with its place, or filled and said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "tests/support/temporary_folder.hpp"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

Result<Calibration> read(const std::string& sections) {
  const test::TemporaryFolder folder;
  const std::string text = R"({"format": "plimsoll-calibration/1", "device": "h200")" + sections + "}";
  return load_calibration(folder.write("calibration.json", text), *load_cluster("2xh200"));
}

const Diagnostic* find(const Diagnostics& diagnostics, const std::string& code) {
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.code == code) return &diagnostic;
  }
  return nullptr;
}

void expect_error(const std::string& sections, const std::string& code, int column_at_least = 1) {
  const auto calibration = read(sections);
  ASSERT_FALSE(calibration) << sections;
  const Diagnostic* error = find(calibration.diagnostics(), code);
  ASSERT_NE(error, nullptr) << code;
  EXPECT_EQ(error->place.line, 1);
  EXPECT_GE(error->place.column, column_at_least);
}

TEST(ReadCalibration, TimesAndRatesThatCannotBeAreErrorsWithTheirPlaces) {
  expect_error(R"(, "gemm": {"launch_us": -1, "tiles": [{"m": 128, "n": 128}]})", "calibration.range", 40);
  expect_error(R"(, "gemm": {"flops_per_s": 0, "tiles": [{"m": 128, "n": 128}]})", "calibration.range");
  expect_error(R"(, "gemm": {"tiles": []})", "calibration.missing");
  expect_error(R"(, "kernels": {"vectorized": {"evidence": "fitted"}})", "calibration.empty");
  expect_error(
      R"(, "kernels": {"silu": {"fixed_us": 1, "cached_bytes": 1e6, "cached_bytes_per_s": "4 TB/s", "evidence": "fitted"}})",
      "calibration.cached");
  expect_error(R"(, "collectives": [{"kind": "all_gather", "tier": "nvlink", "ranks": 2, "pieces": []}])",
               "calibration.missing");
}

TEST(ReadCalibration, ARuleWithoutItsRateIsAnError) {
  const std::string collective = R"(, "collectives": [{"kind": "all_gather", "tier": "nvlink", "ranks": 2, "pieces": )";
  expect_error(R"(, "gemm": {"tiles": [{"m": 128, "n": 128}]})", "calibration.missing");
  expect_error(R"(, "grouped_gemm": {"fixed_us": 4})", "calibration.missing");
  expect_error(R"(, "attention": {"forward": [{"head_dim": 128}]})", "calibration.missing");
  expect_error(R"(, "copies": {"fixed_us": 3})", "calibration.missing");
  expect_error(collective + R"([{"latency_us": 5}]}])", "calibration.missing");
}

TEST(ReadCalibration, TwoRatesOfOneHeadSizeContradictEachOther) {
  const std::string rate = R"({"head_dim": 128, "flops_per_s": 6e14})";
  expect_error(R"(, "attention": {"forward": [)" + rate + "," + rate + "]}", "calibration.twice");
}

TEST(ReadCalibration, AnotherFormatIsAnError) {
  const test::TemporaryFolder folder;
  const std::string text = R"({"format": "plimsoll-calibration/9", "device": "h200"})";
  const auto calibration = load_calibration(folder.write("calibration.json", text), *load_cluster("2xh200"));
  ASSERT_FALSE(calibration);
  EXPECT_NE(find(calibration.diagnostics(), "calibration.format"), nullptr);
}

TEST(ReadCalibration, ATimeThatFallsWithTheSizeIsToldUnlessByNoise) {
  const auto with_points = [](const std::string& points) {
    return read(R"(, "collectives": [{"kind": "all_gather", "tier": "nvlink", "ranks": 2,
                   "pieces": [{"latency_us": 5, "bytes_per_s": 5e11}], "points": )" +
                points + "}]");
  };
  const auto falls = with_points("[[1024, 10], [1048576, 5]]"), noisy = with_points("[[1024, 10], [1048576, 9.5]]");
  ASSERT_TRUE(falls && noisy);
  EXPECT_NE(find(falls.diagnostics(), "calibration.monotone"), nullptr);
  EXPECT_EQ(find(noisy.diagnostics(), "calibration.monotone"), nullptr);
}

TEST(ReadCalibration, ANameThatIsNearlyAKnownOneIsTold) {
  const auto calibration = read(R"(, "kernels": {"vectorised": {"fixed_us": 1}, "softmax_loss": {"fixed_us": 1}})");
  ASSERT_TRUE(calibration);
  const Diagnostic* warning = find(calibration.diagnostics(), "calibration.unknown");
  ASSERT_NE(warning, nullptr);
  EXPECT_THAT(warning->message, HasSubstr("/kernels/vectorised"));
  EXPECT_EQ(warning->place.line, 1);
  EXPECT_GT(warning->place.column, 50);
  EXPECT_THAT(warning->help, HasSubstr("vectorized"));
}

TEST(ReadCalibration, NamesBesideACollectiveAreThoseOfKernels) {
  const auto told = [](const std::string& sections) {
    std::vector<std::string> messages;
    const auto calibration = read(sections);
    EXPECT_TRUE(calibration);
    for (const Diagnostic& diagnostic : calibration.diagnostics())
      if (diagnostic.code == "calibration.unknown") messages.push_back(diagnostic.message);
    return messages;
  };
  EXPECT_THAT(told(R"(, "interference": {"factor": {"banana": 1.2, "other": 1.1, "reduce_norm": 1.1, "gemm": 1.3}})"),
              testing::ElementsAre("/interference/factor/banana prices nothing"));
  EXPECT_THAT(told(R"(, "interference": {"factor_exchange": {"other": 1.2}, "collective_beside": {"other": 2}})"),
              testing::ElementsAre("/interference/factor_exchange/other prices nothing",
                                   "/interference/collective_beside/other prices nothing"));
  EXPECT_THAT(told(R"(, "host": {"work_us": {"pythn": 1}})"),
              testing::ElementsAre("/host/work_us/pythn prices nothing"));
}

TEST(ReadCalibration, TwoCurvesOfOneCollectiveContradictEachOther) {
  const std::string curve =
      R"({"kind": "all_gather", "tier": "nvlink", "ranks": 2, "pieces": [{"latency_us": 5, "bytes_per_s": 1e11}]})";
  expect_error(R"(, "collectives": [)" + curve + "," + curve + "]", "calibration.twice");
}

TEST(ReadCalibration, APieceThatIsNeverTheFastestIsToldAndLeavesTheCurve) {
  const auto calibration = read(
      R"(, "collectives": [{"kind": "all_gather", "tier": "nvlink", "ranks": 2,
           "pieces": [{"latency_us": 5, "bytes_per_s": 5e11}, {"latency_us": 20, "bytes_per_s": 2e11}]}])");
  ASSERT_TRUE(calibration);
  const Diagnostic* warning = find(calibration.diagnostics(), "calibration.curve");
  ASSERT_NE(warning, nullptr);
  EXPECT_EQ(warning->severity, Severity::warning);
}

TEST(ReadCalibration, HolesAreFilledWithPublishedFiguresAndSaid) {
  const auto calibration = read("");
  ASSERT_TRUE(calibration);
  const Diagnostic* warning = find(calibration.diagnostics(), "calibration.hole");
  ASSERT_NE(warning, nullptr);
  EXPECT_THAT(warning->message, HasSubstr("no gemm, no attention, no host"));
  EXPECT_FALSE(calibration->gemm.tiles.empty());
  EXPECT_EQ(calibration->gemm.provenance.evidence, Evidence::assumed);
  EXPECT_FALSE(calibration->kernels.empty());
}

TEST(ReadCalibration, AnotherDevicesCalibrationIsAWarning) {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("calibration.json", R"({"format": "plimsoll-calibration/1", "device": "a100-80"})");
  const auto calibration = load_calibration(path, *load_cluster("2xh200"));
  ASSERT_TRUE(calibration);
  EXPECT_NE(find(calibration.diagnostics(), "calibration.device"), nullptr);
}

}  // namespace
}  // namespace plimsoll
