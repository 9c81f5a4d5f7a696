// How surely is a median known from repetitions, and from repetitions that share a condition?
#include "calibrate/bench/measure.hpp"

#include <gtest/gtest.h>

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

/// Runs on a core that takes 1 ms and on one that takes 2, in turn.
class OnTwoCores : public Work {
 public:
  explicit OnTwoCores(bool by_run) : by_run_(by_run) {}
  std::vector<double> run(int count) override {
    return std::vector<double>(static_cast<std::size_t>(count), runs_++ % 2 == 0 ? 1e-3 : 2e-3);
  }
  bool by_run() const override { return by_run_; }

 private:
  bool by_run_;
  int runs_ = 0;
};

TEST(MeasurePoint, RepetitionsUnderOneConditionAreOneValue) {
  Ranks ranks(rank_names([](const char* /*name*/) -> const char* { return nullptr; }), 10);
  const Point point{"copy", {}, {{"bytes", 1}}};
  MeasureOptions options;
  options.point_s = 0.01;
  OnTwoCores separate(true), together(false);
  const Sample both = measure_point(point, separate, ranks, false, options);
  EXPECT_EQ(both.low_s, 1e-3);
  EXPECT_EQ(both.high_s, 2e-3);
  EXPECT_FALSE(both.note.empty());
  // Ten repetitions on the first core would seem to know the time.
  const Sample first = measure_point(point, together, ranks, false, options);
  EXPECT_EQ(first.low_s, first.high_s);
}

}  // namespace
}  // namespace plimsoll::calibrate
