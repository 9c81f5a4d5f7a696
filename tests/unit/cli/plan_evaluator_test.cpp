// Does what the search concludes from evaluations hold for the simulator?  The floor of layers under every engine setting,
// relatives, amortisation; and the answer against evaluating every plan.
#include "planner/cli/plan_evaluator.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/fastest_rates.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/write_plan.hpp"
#include "simulator/timeline.hpp"
#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

constexpr double endless = std::numeric_limits<double>::infinity();

class PlanEvaluator : public testing::Test {
 protected:
  Scenario scenario(const std::vector<std::string>& sets, double gibibytes = 141, bool deep = false) const {
    InputOptions options;
    options.model = deep ? deep_model.path() : model.path();
    options.cluster = "2xh200";
    options.sets = sets;
    Scenario result = Inputs(options).scenario();
    result.cluster.device.memory = Bytes(static_cast<std::int64_t>(gibibytes * (1 << 30)));
    return result;
  }
  Evaluated evaluated(const std::vector<std::string>& sets) const {
    return plan_evaluator(calibration)(scenario(sets), endless);
  }
  /// The best plan by evaluating each; the same as the search's.
  void expect_same_as_exhaustive(const Scenario& asked, std::int64_t global_batch) const {
    const Space space(asked, global_batch);
    const Evaluator evaluate = plan_evaluator(calibration);
    double best = endless;
    std::string plan;
    for (const Choice& choice : space.choices()) {
      for (const std::int64_t micro : space.micro_batches()) {
        for (const std::int64_t accumulation : space.accumulations(choice, micro)) {
          Scenario one = asked;
          one.plan = space.plan(choice, micro, accumulation);
          const Evaluated result = evaluate(one, endless);
          const double time =
              result.step_time_s / (static_cast<double>(micro * accumulation * choice.world * one.plan.sequence));
          if (result.verdict != Verdict::fits || time >= best) continue;
          best = time;
          plan = write_plan_json(one.plan);
        }
      }
    }
    SearchOptions options = search_options(calibration);
    options.budget_s = 600;
    options.want_front = false;
    const SearchResult found = search_plans(space, evaluate, options);
    EXPECT_TRUE(found.proven);
    ASSERT_TRUE(found.best);
    EXPECT_EQ(found.best->seconds_per_token, best);
    EXPECT_EQ(write_plan_json(found.best->plan), plan);
  }

  /// With more layers: long enough to be judged by a few of them.
  static std::string with_layers(int count) {
    std::string text = test::small_model;
    const std::string layers = "\"num_hidden_layers\": 2";
    return text.replace(text.find(layers), layers.size(), "\"num_hidden_layers\": " + std::to_string(count));
  }

  test::TemporaryFile model{test::small_model};
  test::TemporaryFile deep_model{with_layers(8)};
  Calibration calibration = *load_calibration("h200", {});
};

TEST_F(PlanEvaluator, the_layers_take_no_longer_than_any_step_that_contains_them) {
  for (const char* recompute : {"recompute=none", "recompute=full"}) {
    double floor = 0;
    for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"})
      floor = std::max(floor, evaluated({recompute, stage, "sequence=1024"}).layers.longest_s());
    EXPECT_GT(floor, 0);
    for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"})
      for (const int accumulation : {1, 3})
        EXPECT_LE(floor * accumulation, evaluated({recompute, stage, "sequence=1024",
                                                   "gradient_accumulation=" + std::to_string(accumulation)})
                                            .step_time_s)
            << stage;
  }
}

TEST_F(PlanEvaluator, a_step_with_recomputation_or_offload_takes_no_less) {
  for (const char* stage : {"zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    const double plain = evaluated({stage, "sequence=1024"}).step_time_s;
    EXPECT_GE(evaluated({stage, "sequence=1024", "recompute=full"}).step_time_s, plain) << stage;
    EXPECT_GE(evaluated({stage, "sequence=1024", "offload.optimizer=cpu"}).step_time_s, plain) << stage;
  }
}

TEST_F(PlanEvaluator, accumulation_takes_no_more_time_a_token) {
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    double before = endless;
    for (const int accumulation : {1, 2, 4, 8}) {
      const double time =
          evaluated({stage, "sequence=512", "gradient_accumulation=" + std::to_string(accumulation)}).step_time_s /
          accumulation;
      EXPECT_LE(time, before) << stage << " " << accumulation;
      before = time;
    }
  }
}

// What is known of a micro-batch's layers counts for larger ones, too.
TEST_F(PlanEvaluator, layers_take_no_less_of_a_larger_micro_batch) {
  const SearchOptions options = search_options(calibration);
  for (const char* stage : {"zero.stage=1", "zero.stage=3"}) {
    for (const char* recompute : {"recompute=none", "recompute=full"}) {
      for (const char* sequence : {"sequence=128", "sequence=1024"}) {
        double device = 0, host = 0;
        for (int micro = 1; micro <= 40; ++micro) {
          const Scenario plan =
              scenario({stage, recompute, sequence, "world_size=2", "micro_batch=" + std::to_string(micro)}, 141, true);
          const LayersTime layers = options.outline(plan, OutlineOf::layers).layers;
          EXPECT_GE(layers.device_s, device) << write_plan_json(plan.plan);
          EXPECT_GE(layers.host_s, host) << write_plan_json(plan.plan);
          device = layers.device_s;
          host = layers.host_s;
        }
      }
    }
  }
}

// A step of many micro-batches is not all put on the clock: what is added for the rest is no less than they have to do.
TEST_F(PlanEvaluator, takes_no_less_for_many_micro_batches_than_the_closed_form) {
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    for (const char* overlap : {"zero.overlap_comm=true", "zero.overlap_comm=false"}) {
      for (const int accumulation : {1, 6, 9, 16, 100}) {
        const Scenario plan = scenario(
            {stage, overlap, "sequence=2048", "gradient_accumulation=" + std::to_string(accumulation)}, 141, true);
        SCOPED_TRACE(write_plan_json(plan.plan));
        const PlanBounds bounds(plan.model, plan.cluster, fastest_rates(calibration), plan.plan);
        const Evaluated whole = plan_evaluator(calibration)(plan, endless);
        EXPECT_LE(bounds.step_seconds(1, accumulation), whole.step_time_s);
        const LayersTime layers = search_options(calibration).outline(plan, OutlineOf::layers).layers;
        EXPECT_LE(layers.longest_s() * accumulation, whole.step_time_s);
        const StepProgram program = build(plan).program;
        const double on_the_clock = to_seconds(simulate_step(program, plan.cluster, calibration).step_time);
        EXPECT_NEAR(whole.step_time_s / on_the_clock, 1, 0.005);  // what is extrapolated is near what all of it takes
      }
    }
  }
}

TEST_F(PlanEvaluator, lets_the_search_find_what_evaluating_all_finds_under_deepspeed) {
  expect_same_as_exhaustive(scenario({"sequence=1024", "world_size=2"}, 3), 16);
}

TEST_F(PlanEvaluator, lets_the_search_find_what_evaluating_all_finds_under_fsdp2) {
  expect_same_as_exhaustive(scenario({"engine=fsdp2", "sequence=4096", "world_size=2", "recompute=none"}, 4), 0);
}

TEST_F(PlanEvaluator, lets_the_search_find_what_evaluating_all_finds_by_short_models) {
  expect_same_as_exhaustive(scenario({"sequence=1024", "world_size=2", "zero.stage=3"}, 2.6, true), 8);
  expect_same_as_exhaustive(scenario({"sequence=1024", "world_size=2", "zero.stage=1"}, 2.6, true), 8);
}

TEST_F(PlanEvaluator, concludes_from_short_models_no_more_than_the_whole_plan_takes) {
  const SearchOptions options = search_options(calibration);
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    for (const char* offload : {"offload.optimizer=none", "offload.optimizer=cpu"}) {
      for (const char* recompute : {"recompute=none", "recompute=full", R"(recompute={"every": 2})"}) {
        for (const int accumulation : {1, 2, 5}) {
          if (stage == std::string("zero.stage=0") && offload != std::string("offload.optimizer=none")) continue;
          const Scenario plan = scenario({stage, offload, recompute, "sequence=1024", "world_size=2",
                                          "gradient_accumulation=" + std::to_string(accumulation)},
                                         141, true);
          SCOPED_TRACE(write_plan_json(plan.plan));
          const Evaluated whole = plan_evaluator(calibration)(plan, endless);
          const Outline time = options.outline(plan, OutlineOf::layers),
                        memory = options.outline(plan, OutlineOf::memory);
          EXPECT_GT(time.layers.device_s, 0);
          EXPECT_GT(memory.least_memory.count, 0);
          EXPECT_LE(time.layers.longest_s() * accumulation, whole.step_time_s);
          EXPECT_LE(memory.least_memory, whole.job_device_peak);
          Scenario less = plan;  // a device that lacks one byte of what it takes to fit
          less.cluster.device.memory = memory.least_to_fit - Bytes(1);
          EXPECT_NE(plan_evaluator(calibration)(less, endless).verdict, Verdict::fits);
        }
      }
    }
  }
}

// Buckets that layers share fill at other places in a longer model, so that estimates are near, no more; here within 5 %.
TEST_F(PlanEvaluator, estimates_a_step_from_short_models) {
  const test::TemporaryFile longer{with_layers(24)};
  InputOptions inputs;
  inputs.model = longer.path();
  inputs.cluster = "2xh200";
  const SearchOptions options = search_options(calibration);
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    for (const char* recompute : {"recompute=none", "recompute=full", R"(recompute={"every": 2})"}) {
      for (const char* accumulation : {"gradient_accumulation=1", "gradient_accumulation=5"}) {
        inputs.sets = {stage, recompute, accumulation, "sequence=1024", "world_size=2"};
        const Scenario plan = Inputs(inputs).scenario();
        SCOPED_TRACE(write_plan_json(plan.plan));
        const Evaluated whole = plan_evaluator(calibration)(plan, endless);
        for (const OutlineOf what : {OutlineOf::step, OutlineOf::close_step})
          EXPECT_NEAR(options.outline(plan, what).expected_s / whole.step_time_s, 1, 0.05);
      }
    }
  }
}

// One rule says which ranks are on the clock: what a search finds is what `simulate` and `ledger` say of the plan.
TEST_F(PlanEvaluator, times_a_plan_as_simulate_does_and_judges_it_as_ledger_does) {
  for (const char* stage : {"zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    const Scenario plan = scenario({stage, "sequence=1024", "world_size=2"});
    const Evaluated found = plan_evaluator(calibration)(plan, endless);
    const Evaluation told = evaluate(plan);
    EXPECT_EQ(found.step_time_s, to_seconds(simulate_step(told.program, plan.cluster, calibration).step_time)) << stage;
    EXPECT_EQ(found.job_device_peak, told.ledger.job_device_peak.value) << stage;
    const Evaluation of_rank_0 = build(plan, {RankChoice::Kind::one, 0});
    EXPECT_EQ(found.step_time_s, to_seconds(simulate_step(of_rank_0.program, plan.cluster, calibration).step_time));
  }
}

TEST_F(PlanEvaluator, stops_early_at_a_step_that_is_not_worth_it) {
  const Evaluated all = evaluated({"sequence=512"});
  const Evaluated cut = plan_evaluator(calibration)(scenario({"sequence=512"}), all.step_time_s / 2);
  EXPECT_TRUE(all.judged);
  EXPECT_FALSE(cut.judged);
  EXPECT_GT(cut.step_time_s, 0);
  EXPECT_LE(cut.step_time_s, all.step_time_s);
}

}  // namespace
}  // namespace plimsoll
