// How surely is a median known from repetitions?
#include "calibrate/bench/measure.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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
