// What does the interval of a simulated step span?
#include "planner/cli/simulated.hpp"

#include <gtest/gtest.h>

#include "planner/cli/evaluate.hpp"
#include "planner/spec/read_calibration.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

SimulatedStep step_of(const Evaluation& evaluation, const Calibration& calibration) {
  return simulated(evaluation.program, evaluation.scenario.cluster, calibration);
}

TEST(Simulated, WidensItsIntervalWhereCurvesOfCollectivesAreNotOfTheseGroups) {
  const Evaluation evaluation = build(testing::scenario("llama-3.1-8b", "2xh200", {"engine=fsdp2", "sequence=512"}));
  Calibration calibration = *load_calibration("h200", evaluation.scenario.cluster);
  const SimulatedStep measured = step_of(evaluation, calibration);
  EXPECT_LE(measured.timeline.evidence, Evidence::interpolated);
  for (CollectivePrice& price : calibration.collectives) price.provenance.evidence = Evidence::assumed;
  const SimulatedStep published = step_of(evaluation, calibration);
  EXPECT_EQ(published.timeline.evidence, Evidence::assumed);
  EXPECT_EQ(published.step_time_s, measured.step_time_s);
  EXPECT_LT(published.low_s, measured.low_s);
  EXPECT_GT(published.high_s, measured.high_s);
}

// ZeRO-3 of a small model on one GPU: the host bounds it.  Machines of one kind took 0.55 to 1.6 of what is calibrated.
TEST(Simulated, SpansMachinesWhoseHostsAreFastAndSlow) {
  const Evaluation evaluation = build(testing::scenario("llama-3.2-1b", "1xh200", {"zero.stage=3", "sequence=256"}));
  Calibration calibration = *load_calibration("h200", evaluation.scenario.cluster);
  const SimulatedStep step = step_of(evaluation, calibration);
  EXPECT_EQ(step.timeline.bound_by, "host");
  EXPECT_NEAR(step.low_s / step.step_time_s, 0.57, 0.04);
  EXPECT_NEAR(step.high_s / step.step_time_s, 1.57, 0.04);
  calibration.host.spread = 0;  // of this very machine
  const SimulatedStep of_this = step_of(evaluation, calibration);
  EXPECT_GT(of_this.low_s / of_this.step_time_s, 0.9);
  EXPECT_LT(of_this.high_s / of_this.step_time_s, 1.1);
}

TEST(Simulated, MarksCurvesOfAnotherNumberOfRanksAsExtrapolated) {
  const Evaluation evaluation = build(testing::scenario("sparrow-dense", "4xh200", {"engine=fsdp2", "sequence=512"}));
  Calibration calibration = *load_calibration("h200", evaluation.scenario.cluster);
  std::erase_if(calibration.collectives, [](const CollectivePrice& price) { return price.ranks != 2; });
  EXPECT_EQ(step_of(evaluation, calibration).timeline.evidence, Evidence::extrapolated);
}

}  // namespace
}  // namespace plimsoll
