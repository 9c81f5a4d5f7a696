// How surely is a median known from repetitions?
#include "calibrate/bench/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "calibrate/bench/catalogue.hpp"
#include "calibrate/samples/rounds.hpp"

namespace plimsoll::calibrate {
namespace {

TEST(MedianInterval, HoldsTheMedianAndNarrowsWithRepetition) {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(1 + 0.001 * i);
  const MedianInterval many = median_interval(values);
  EXPECT_NEAR(many.median, 1.0495, 1e-9);
  // 50 +- ceil(0.98 * 10): the 40th and 60th value.
  EXPECT_DOUBLE_EQ(many.low, 1.040);
  EXPECT_DOUBLE_EQ(many.high, 1.060);
  const MedianInterval few = median_interval({3, 1, 2});
  EXPECT_EQ(few.low, 1);
  EXPECT_EQ(few.high, 3);
}

/// All that there is comes of one run.
class Once : public Work {
 public:
  bool once() const override { return true; }
  std::vector<double> run(int count) override {
    EXPECT_EQ(count, 1);
    ++runs;
    return {1, 4, 2, 3, 5};
  }
  int runs = 0;
};

TEST(MeasurePoint, WorkOfOneRunIsRunOnceAndItsMedianTaken) {
  Ranks ranks(rank_names([](const char* /*name*/) -> const char* { return nullptr; }), 10);
  Once work;
  const Sample sample = measure_point({"copy", {}, {}}, work, ranks, false, {});
  EXPECT_EQ(work.runs, 1);
  EXPECT_EQ(sample.time_s, 3);
  EXPECT_EQ(sample.repetitions, 5);
}

std::vector<std::int64_t> rounds_of(const std::vector<Case>& cases) {
  std::vector<std::int64_t> rounds;
  for (const Case& c : cases) rounds.push_back(c.point.size("round"));
  return rounds;
}

TEST(InOrder, RoundsStandTogetherAndEvenlyAmongTheOthersOfTheirValue) {
  std::vector<Case> cases;
  for (const std::int64_t bytes : {1, 2}) {
    for (const std::int64_t round : {1, 2}) cases.push_back({{"copy", {}, {{"bytes", bytes}, {"round", round}}}, 1});
  }
  for (std::int64_t m = 0; m < 4; ++m) cases.push_back({{"gemm", {}, {{"m", m}}}, 1});
  cases.push_back({{"gemm", {}, {{"m", 9}}}, 2});
  cases.push_back({{"gemm", {}, {{"m", 8}}}, 0});
  EXPECT_THAT(rounds_of(in_order(cases)), testing::ElementsAre(0, 0, 1, 1, 0, 0, 2, 2, 0, 0));
  // Without others they follow each other.
  std::erase_if(cases, [](const Case& c) { return c.point.kind == "gemm"; });
  EXPECT_THAT(rounds_of(in_order(cases)), testing::ElementsAre(1, 1, 2, 2));
}

TEST(CudaGrid, AllSizesOfPageableCopiesComeInEveryRoundAndNoneLater) {
  std::map<std::int64_t, std::set<std::int64_t>> sizes;  // of each round
  for (const Case& c : cuda_grid(1, "nvlink")) {
    if (c.point.label("memory") == "pageable") sizes[c.point.size("round")].insert(c.point.size("bytes"));
  }
  ASSERT_EQ(sizes.size(), 9U);
  for (const auto& [round, all] : sizes) EXPECT_EQ(all, sizes.at(1)) << round;
  EXPECT_EQ(sizes.at(1).size(), 17U);
}

/// What a pair is: a tenth of a second of launches, rests and times alone for one time of a microsecond.
class LongForAShortTime : public Work {
 public:
  std::vector<double> run(int count) override {
    std::this_thread::sleep_for(count * std::chrono::milliseconds(10));
    return std::vector<double>(static_cast<std::size_t>(count), 1e-6 * ++runs_);
  }

 private:
  int runs_ = 0;
};

TEST(MeasurePoint, TakesAsManyRepetitionsAsItsTimeHoldsAndNoFewerThanAnIntervalNeeds) {
  Ranks ranks(rank_names([](const char* /*name*/) -> const char* { return nullptr; }), 10);
  MeasureOptions options;
  options.point_s = 0.001;
  LongForAShortTime work;
  // By the microsecond they would come fifty at a time.
  EXPECT_EQ(measure_point({"pair", {}, {}}, work, ranks, false, options).repetitions, 9);
}

}  // namespace
}  // namespace plimsoll::calibrate
