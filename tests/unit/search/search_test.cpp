// The answer of the search equals that of evaluating every candidate, and every candidate is accounted for.
#include "planner/search/search.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "planner/search/nearest.hpp"
#include "planner/spec/write_plan.hpp"
#include "tests/unit/search/small_space.hpp"

namespace plimsoll {
namespace {

using testing::CountingEvaluator;
using ::testing::Ge;
using ::testing::Le;
using testing::small_cluster;
using testing::small_model;
using testing::small_scenario;

/// The lower bound of the lanes knows no CPU Adam, so an offloaded step may seem faster: relatives do not bound there.
SearchOptions options_for(const Scenario& scenario, bool relatives) {
  SearchOptions options;
  options.peaks = published_peaks(scenario.cluster.device);
  options.budget_s = 600;
  options.relatives_bound = relatives;
  options.want_front = false;
  return options;
}

std::int64_t accounted_for(const SearchResult& result) {
  return std::accumulate(result.excluded.begin(), result.excluded.end(), std::int64_t{result.best ? 1 : 0},
                         [](std::int64_t sum, const Exclusion& e) { return sum + e.count; });
}

void expect_same_as_exhaustive(const Scenario& scenario, std::int64_t global_batch, bool relatives) {
  const Space space(scenario, global_batch);
  std::int64_t calls = 0;
  const testing::Exhaustive all = testing::evaluate_all(space, CountingEvaluator{nullptr});
  SearchOptions options = options_for(scenario, relatives);
  options.threads = 1;  // the calls are counted without a lock
  const SearchResult result = search_plans(space, CountingEvaluator{&calls}, options);
  EXPECT_TRUE(result.proven);
  EXPECT_EQ(accounted_for(result), result.considered);
  EXPECT_THAT(result.considered, Ge(all.candidates));
  ASSERT_EQ(result.best.has_value(), all.best.has_value());
  EXPECT_EQ(result.best->seconds_per_token, all.best->seconds_per_token);
  EXPECT_TRUE(same_settings(result.best->plan, all.best->plan))
      << write_plan_json(result.best->plan) << write_plan_json(all.best->plan);
  EXPECT_THAT(calls, Le(all.candidates));
}

TEST(Search, equals_exhaustive_evaluation_of_a_dense_model_under_deepspeed) {
  expect_same_as_exhaustive(
      small_scenario(small_model(256, 3), small_cluster(4, 0.35), {"sequence=512", "recompute=none", "world_size=4"}),
      16, false);
}

TEST(Search, equals_exhaustive_evaluation_of_a_mixture_at_stage_3) {
  expect_same_as_exhaustive(small_scenario(small_model(256, 2, 4), small_cluster(4, 0.5),
                                           {"sequence=512", "zero.stage=3", "world_size=4", "offload.optimizer=none"}),
                            32, true);
}

TEST(Search, equals_exhaustive_evaluation_of_fsdp2_without_a_global_batch) {
  expect_same_as_exhaustive(
      small_scenario(small_model(256, 3), small_cluster(2, 0.25), {"engine=fsdp2", "sequence=2048", "micro_batch=2"}),
      0, true);
}

TEST(Search, equals_exhaustive_evaluation_over_micro_batches) {
  expect_same_as_exhaustive(
      small_scenario(small_model(128, 2), small_cluster(2, 1.5),
                     {"engine=fsdp2", "sequence=8192", "world_size=2", "gradient_accumulation=1"}),
      0, true);
}

TEST(Search, gives_the_same_answer_on_several_threads) {
  const Scenario scenario =
      small_scenario(small_model(256, 3), small_cluster(4, 0.35), {"sequence=512", "zero.stage=2"});
  const Space space(scenario, 16);
  SearchOptions options = options_for(scenario, false);
  const SearchResult one = search_plans(space, CountingEvaluator{nullptr}, options);
  options.threads = 3;
  const SearchResult three = search_plans(space, CountingEvaluator{nullptr}, options);
  ASSERT_TRUE(one.best && three.best);
  EXPECT_TRUE(same_settings(one.best->plan, three.best->plan));
}

TEST(Search, says_that_nothing_fits_and_what_lacks_least) {
  const Scenario scenario = small_scenario(small_model(512, 2), small_cluster(1, 0.01), {"sequence=512"});
  const SearchResult result =
      search_plans(Space(scenario, 4), CountingEvaluator{nullptr}, options_for(scenario, false));
  EXPECT_FALSE(result.best);
  ASSERT_TRUE(result.nearest);
  EXPECT_LT(result.nearest->evaluated.margin.count, 0);
  EXPECT_EQ(accounted_for(result), result.considered);
}

// The GPU holds an offloaded plan of the smallest micro-batch, whose host is short of a little; the others lack more.
TEST(Search, names_as_nearest_what_lacks_least_on_the_gpu_or_on_the_host) {
  Scenario scenario = small_scenario(
      small_model(512, 2), small_cluster(1, 0.12),
      {"sequence=256", "zero.stage=2", "zero.reduce_bucket_size=1000000", "zero.allgather_bucket_size=1000000"});
  scenario.cluster.host_memory = Bytes(150 << 20);
  const auto lack = [&](const Evaluated& evaluated) {
    return std::max(0.0, -(evaluated.margin / scenario.cluster.device.memory)) +
           std::max(0.0, evaluated.host_per_node / scenario.cluster.host_memory - 1);
  };
  double least = std::numeric_limits<double>::infinity();
  const Evaluator note = [&](const Scenario& asked, double worth_s) {
    const Evaluated evaluated = CountingEvaluator{nullptr}(asked, worth_s);
    least = std::min(least, lack(evaluated));
    return evaluated;
  };
  const Space space(scenario, 8);
  ASSERT_FALSE(testing::evaluate_all(space, note).best);
  const SearchResult result = search_plans(space, CountingEvaluator{nullptr}, options_for(scenario, false));
  ASSERT_TRUE(result.nearest);
  EXPECT_EQ(lack(result.nearest->evaluated), least);
  EXPECT_TRUE(result.nearest_proven);
  EXPECT_GT(result.nearest->evaluated.margin.count, 0);  // it is the host that is short
  EXPECT_EQ(result.nearest->micro_batch, 1);
}

TEST(Search, names_the_very_nearest_of_a_whole_space) {
  for (const auto& [gpus, experts, global_batch] : {std::tuple{1, 0, 4}, {2, 4, 8}}) {
    const Scenario scenario =
        small_scenario(small_model(512, 2, experts), small_cluster(gpus, 0.02), {"sequence=256", "zero.stage=3"});
    double least = std::numeric_limits<double>::infinity();
    const Evaluator note = [&](const Scenario& asked, double worth_s) {
      const Evaluated evaluated = CountingEvaluator{nullptr}(asked, worth_s);
      least = std::min(least, lack(evaluated, scenario.cluster));
      return evaluated;
    };
    const Space space(scenario, global_batch);
    ASSERT_FALSE(testing::evaluate_all(space, note).best);
    const SearchResult result = search_plans(space, CountingEvaluator{nullptr}, options_for(scenario, false));
    ASSERT_TRUE(result.nearest);
    EXPECT_TRUE(result.nearest_proven);
    EXPECT_EQ(lack(result.nearest->evaluated, scenario.cluster), least);
  }
}

TEST(Search, admits_that_its_time_was_up) {
  const Scenario scenario = small_scenario(small_model(256, 2), small_cluster(4, 1), {"sequence=512"});
  SearchOptions options = options_for(scenario, false);
  options.budget_s = 0;
  const SearchResult result = search_plans(Space(scenario, 64), CountingEvaluator{nullptr}, options);
  EXPECT_FALSE(result.proven);
  EXPECT_EQ(accounted_for(result), result.considered);
}

// Nothing takes much less memory than the best plan, so that the front is found at once.
TEST(Search, uses_all_of_its_time_unless_its_answer_is_proven) {
  const Scenario scenario = small_scenario(small_model(2048, 2), small_cluster(4, 80),
                                           {"sequence=128", "world_size=4", "micro_batch=1", "zero.stage=0"});
  SearchOptions options = options_for(scenario, false);
  options.budget_s = 0.2;
  options.threads = 1;
  options.runners_up = 0;
  options.want_front = true;
  const Evaluator slow = [](const Scenario& asked, double worth_s) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return CountingEvaluator{nullptr}(asked, worth_s);
  };
  const SearchResult result = search_plans(Space(scenario, 0), slow, options);
  EXPECT_TRUE(result.proven || result.seconds >= options.budget_s) << result.seconds;
  EXPECT_EQ(accounted_for(result), result.considered);
}

TEST(Search, answers_with_the_best_so_far_where_it_is_asked_to_stop) {
  const Scenario scenario = small_scenario(small_model(256, 2), small_cluster(4, 80), {"sequence=512"});
  SearchOptions options = options_for(scenario, false);
  std::stop_source asked;
  options.stop = asked.get_token();
  options.progress = [&](const SearchProgress& now) {
    if (now.best_tokens_per_s > 0) asked.request_stop();
  };
  std::int64_t calls = 0;
  const SearchResult result = search_plans(Space(scenario, 64), CountingEvaluator{&calls}, options);
  EXPECT_TRUE(result.best);
  EXPECT_FALSE(result.proven);
  EXPECT_LT(calls, result.considered / 4);
  EXPECT_EQ(accounted_for(result), result.considered);
}

/// Short models that tell how long each plan takes and up to a factor what it holds.
Outline told(const Scenario& scenario, OutlineOf what) {
  const Evaluated evaluated = CountingEvaluator{nullptr}(scenario, 0);
  Outline outline;
  outline.layers.device_s = 1e-12;
  if (what == OutlineOf::layers || what == OutlineOf::memory) return outline;
  outline.expected_s = evaluated.step_time_s;
  outline.expected_to_fit = scenario.cluster.device.memory - evaluated.margin;
  return outline;
}

TEST(Search, evaluates_first_what_is_expected_to_be_the_best) {
  const Scenario scenario =
      small_scenario(small_model(256, 3), small_cluster(4, 0.35), {"sequence=512", "world_size=4"});
  const Space space(scenario, 16);
  std::vector<double> times;  // seconds a token, of what was evaluated and fits
  const Evaluator note = [&](const Scenario& asked, double worth_s) {
    const Evaluated evaluated = CountingEvaluator{nullptr}(asked, worth_s);
    const auto tokens = static_cast<double>(16 * asked.plan.sequence);
    if (evaluated.verdict == Verdict::fits) times.push_back(evaluated.step_time_s / tokens);
    return evaluated;
  };
  SearchOptions options = options_for(scenario, false);
  options.threads = 1;
  options.outline = told;
  const SearchResult result = search_plans(space, note, options);
  const testing::Exhaustive all = testing::evaluate_all(space, CountingEvaluator{nullptr});
  EXPECT_TRUE(result.proven);
  EXPECT_GT(result.estimated, 10);
  ASSERT_TRUE(result.best && all.best);
  EXPECT_TRUE(same_settings(result.best->plan, all.best->plan));
  EXPECT_EQ(accounted_for(result), result.considered);
  ASSERT_FALSE(times.empty());
  EXPECT_DOUBLE_EQ(times.front(), all.best->seconds_per_token);
}

TEST(ParetoFront, keeps_what_no_other_plan_beats_in_everything) {
  const auto plan = [](double time, std::int64_t bytes, int world) {
    Found found;
    found.seconds_per_token = time;
    found.choice.world = world;
    found.evaluated.job_device_peak = Bytes(bytes);
    return found;
  };
  const auto front = pareto_front({plan(1, 100, 8), plan(2, 50, 8), plan(3, 60, 8), plan(4, 60, 4), plan(4, 60, 4)});
  ASSERT_EQ(front.size(), 3U);
  EXPECT_EQ(front[1].seconds_per_token, 2);
  EXPECT_EQ(front[2].choice.world, 4);
}

}  // namespace
}  // namespace plimsoll
