// Effects that practitioners know, each with its reason, as the simulator and the ledger show them.
#include <gtest/gtest.h>

#include "planner/account/volume.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/spec/read_calibration.hpp"
#include "simulator/timeline.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

using Keys = std::vector<std::string>;
using testing::scenario;

Keys operator+(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

Timeline simulated(const Scenario& s) {
  const auto calibration = load_calibration("", s.cluster);
  return simulate_step(build(s).program, s.cluster, *calibration);
}
double seconds(const std::string& model, const std::string& cluster, const Keys& keys) {
  return to_seconds(simulated(scenario(model, cluster, keys)).step_time);
}
double wire(const Scenario& s) {
  const StepProgram program = build_step(s, 0);
  return static_cast<double>(account_volume(program, program.classes.front().program, s.cluster).per_gpu.count);
}

const char* const dense = "sketch:dense=6B,hidden=4096,layers=32";

// Stage 3 gathers twice and reduce-scatters once, 3 Psi; a stage 2 that reduce-scatters moves 2 Psi (FSDP2 that keeps what it
// gathered is one); DeepSpeed's stage 2 all-reduces, 2 Psi, and gathers, 3 Psi in all.
TEST(Effects, StageThreeMovesHalfAsMuchAgainAsAStageTwoThatReduceScatters) {
  const Keys base{"engine=fsdp2", "micro_batch=1", "sequence=2048", "fsdp.reduce_dtype=bf16"};
  const double keeps = wire(scenario(dense, "8xh200", base + Keys{"fsdp.reshard_after_forward=false"}));
  const double gathers_again = wire(scenario(dense, "8xh200", base));
  // The root's embedding and head are never gathered twice.
  EXPECT_NEAR(gathers_again / keeps, 1.5, 0.06);
}

TEST(Effects, StageThreeMovesNoMoreThanDeepSpeedsStageTwo) {
  const Keys base{"engine=deepspeed", "micro_batch=1", "sequence=2048"};
  EXPECT_LE(wire(scenario(dense, "8xh200", base + Keys{"zero.stage=3"})),
            wire(scenario(dense, "8xh200", base + Keys{"zero.stage=2"})) * 1.001);
}

// Without prefetch the gather of a module is asked for when the module is entered, and the device waits for it; with a bucket
// of a layer gathers run ahead, and more than that finds nothing left to hide.
TEST(Effects, ALargerPrefetchHelpsUntilItStalls) {
  const auto at = [](const char* bucket) {
    return seconds(dense, "8xh200",
                   {"engine=deepspeed", "zero.stage=3", "micro_batch=1", "sequence=4096",
                    std::string("zero.stage3_prefetch_bucket_size=") + bucket});
  };
  const double none = at("0"), layer = at("200000000"), more = at("800000000");
  EXPECT_LT(layer, 0.97 * none);
  EXPECT_NEAR(more, layer, 0.01 * layer);
}

// An all-to-all over NVLink has nine times the bandwidth of one over the NICs; twice as many ranks for half the experts each
// do not make up for that.
TEST(Effects, ExpertsInsideANodeBeatExpertsAcrossNodes) {
  const Keys base{"engine=deepspeed", "zero.stage=2", "moe.implementation=autoep", "micro_batch=4", "sequence=4096"};
  EXPECT_LT(seconds("qwen3-30b-a3b", "16xh100", base + Keys{"expert_parallel=8"}),
            seconds("qwen3-30b-a3b", "16xh100", base + Keys{"expert_parallel=16"}));
}

// A step is one forward and a backward of twice its products; recomputing adds a forward: a third more, less where the loss
// and the optimizer, which nothing recomputes, take their part.
TEST(Effects, RecomputationTradesAThirdMoreComputeForMemory) {
  const Keys base{"engine=fsdp2", "micro_batch=2", "sequence=4096"};
  const Scenario keeps = scenario("llama-2-7b", "8xh200", base);
  const Scenario again = scenario("llama-2-7b", "8xh200", base + Keys{"recompute=full"});
  const double ratio = to_seconds(simulated(again).step_time) / to_seconds(simulated(keeps).step_time);
  EXPECT_GT(ratio, 1.2);
  EXPECT_LT(ratio, 1.36);
  EXPECT_LT(peak_of_sizes(build_step(again, 0).classes.front().program).count,
            peak_of_sizes(build_step(keeps, 0).classes.front().program).count / 2);
}

// 128 small experts a layer: gathering them all over the NICs moves 57 GB for one rank's tokens; exchanging the tokens of a
// node far less.  DeepSpeed's host hides some of that: there the step is its hooks.
TEST(Effects, FineGrainedExpertsAreExchangedRatherThanGathered) {
  const Keys reference{"engine=plimsoll", "zero.stage=3", "moe.implementation=fused", "micro_batch=1", "sequence=4096"};
  EXPECT_LT(seconds("qwen3-30b-a3b", "16xh100", reference + Keys{"expert_parallel=8"}),
            0.8 * seconds("qwen3-30b-a3b", "16xh100", reference + Keys{"expert_parallel=1"}));
  const Keys deepspeed{"engine=deepspeed", "zero.stage=3", "moe.implementation=autoep", "micro_batch=1",
                       "sequence=4096"};
  EXPECT_LT(seconds("qwen3-30b-a3b", "16xh100", deepspeed + Keys{"expert_parallel=8"}),
            seconds("qwen3-30b-a3b", "16xh100", deepspeed + Keys{"expert_parallel=1"}));
}

// One expert that takes 92 % of the tokens has its rank do the work of all, and the others wait.
TEST(Effects, ACollapsedRouterMultipliesTheStep) {
  const Keys base{"engine=deepspeed",  "zero.stage=2",  "moe.implementation=autoep",
                  "expert_parallel=8", "micro_batch=4", "sequence=4096"};
  const double balanced = seconds("mixtral-8x7b", "8xh200", base);
  const double collapsed =
      seconds("mixtral-8x7b", "8xh200", base + Keys{"routing={\"kind\": \"collapse\", \"share\": 0.92}"});
  EXPECT_GT(collapsed, 2 * balanced);
}

// Which rank takes most memory changes with the micro-batch, which is slowest does not: a step is timed by the slowest of its
// ranks, so that more work takes no less time.
TEST(Effects, AStepOfMoreTokensTakesNoLessTime) {
  for (const char* stage : {"zero.stage=1", "zero.stage=2"}) {
    double before = 0;
    for (const char* micro : {"micro_batch=1", "micro_batch=2", "micro_batch=4", "micro_batch=8"}) {
      const double time = seconds("sparrow-dense", "8xh100", {"engine=deepspeed", stage, micro, "sequence=1024"});
      EXPECT_GE(time, before) << stage << " " << micro;
      before = time;
    }
  }
}

}  // namespace
}  // namespace plimsoll
