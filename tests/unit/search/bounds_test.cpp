// No bound is above what the step program of the same plan takes.
#include "planner/search/bounds.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "planner/account/work.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/write_plan.hpp"
#include "planner/step/build_step.hpp"
#include "tests/unit/search/small_space.hpp"

namespace plimsoll {
namespace {

using testing::small_cluster;
using testing::small_model;
using testing::small_scenario;

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

/// A plan at random; it need not be legal.
std::vector<std::string> random_sets(std::mt19937& random, bool mixture) {
  std::vector<std::string> sets{"sequence=" + pick<std::string>(random, {"256", "512"}),
                                "micro_batch=" + pick<std::string>(random, {"1", "2", "3"}),
                                "gradient_accumulation=" + pick<std::string>(random, {"1", "2", "5"}),
                                "recompute=" + pick<std::string>(random, {"none", "full", R"({"every": 2})"}),
                                "attention=" + pick<std::string>(random, {"sdpa", "eager"})};
  const std::string engine = pick<std::string>(random, {"deepspeed", "deepspeed", "fsdp2", "ddp", "plimsoll"});
  sets.push_back("engine=" + engine);
  if (engine == "deepspeed") {
    const std::string stage = pick<std::string>(random, {"0", "1", "2", "3"});
    sets.push_back("zero.stage=" + stage);
    sets.push_back("precision=" + pick<std::string>(random, {"bf16", "bf16", "fp16", "fp32"}));
    sets.push_back("zero.overlap_comm=" + pick<std::string>(random, {"true", "false"}));
    sets.push_back("zero.reduce_scatter=" + pick<std::string>(random, {"true", "true", "false"}));
    if (stage == "3") {
      sets.push_back("zero.stage3_max_live_parameters=" + pick<std::string>(random, {"0", "200000", "1000000000"}));
      sets.push_back("zero.stage3_max_reuse_distance=" + pick<std::string>(random, {"0", "200000", "1000000000"}));
      sets.push_back("zero.stage3_prefetch_bucket_size=" + pick<std::string>(random, {"0", "100000", "50000000"}));
      sets.push_back("zero.stage3_param_persistence_threshold=" + pick<std::string>(random, {"0", "100000"}));
    }
    if (stage != "0") sets.push_back("offload.optimizer=" + pick<std::string>(random, {"none", "cpu", "nvme"}));
    if (stage == "3" && sets.back() != "offload.optimizer=none")
      sets.push_back("offload.parameters=" + pick<std::string>(random, {"none", "cpu", "nvme"}));
    if (mixture)
      sets.push_back("moe.implementation=" + pick<std::string>(random, {"grouped", "loop", "autoep"}));
    else if (stage != "3" && random() % 3 == 0)
      sets.emplace_back(R"(moe={"num_experts": 4, "top_k": 2})");
  }
  if (engine == "fsdp2") {
    sets.push_back("fsdp.reshard_after_forward=" + pick<std::string>(random, {"true", "false"}));
    if (random() % 2 == 0) sets.emplace_back(R"(offload={"optimizer": "cpu", "parameters": "cpu"})");
  }
  if (mixture || engine == "deepspeed")
    sets.push_back("expert_parallel=" + pick<std::string>(random, {"1", "1", "2", "4"}));
  if (mixture && random() % 3 == 0) sets.emplace_back(R"(routing={"kind": "skew", "max_over_mean": 1.5})");
  return sets;
}

TEST(PlanBounds, never_exceed_the_memory_and_the_time_of_the_step_program) {
  std::mt19937 random(20260801);
  int compared = 0;
  for (int i = 0; i < 900; ++i) {
    const bool mixture = random() % 2 == 0;
    const std::int64_t hidden = pick<std::int64_t>(random, {128, 256});
    const int layers = pick(random, {1, 2, 3});
    const int gpus = pick(random, {1, 2, 4, 16});
    const Scenario scenario = small_scenario(small_model(hidden, layers, mixture ? 4 : 0), small_cluster(gpus, 80),
                                             random_sets(random, mixture));
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) continue;
    ++compared;
    const PlanBounds bounds(scenario.model, scenario.cluster, published_peaks(scenario.cluster.device), scenario.plan);
    const StepProgram program = build_step(scenario, 0);
    const RankProgram& rank = program.classes.front().program;
    EXPECT_LE(bounds.device_memory(scenario.plan.micro_batch), peak_of_sizes(rank)) << write_plan_json(scenario.plan);
    EXPECT_LE(bounds.step_seconds(scenario.plan.micro_batch, scenario.plan.gradient_accumulation),
              account_work(program, rank, scenario.cluster).lower_bound.count * (1 + 1e-9))
        << write_plan_json(scenario.plan);
    LedgerContext context;
    context.capacity = scenario.cluster.device.memory;
    context.bistable = false;
    context.ranks_per_node = std::min(scenario.plan.world_size, scenario.cluster.devices_per_node);
    EXPECT_LE(bounds.host_memory(), make_ledger(rank, context).host_per_node) << write_plan_json(scenario.plan);
  }
  EXPECT_GT(compared, 300);
}

Bytes live(Scenario scenario, const std::function<void(Plan&)>& change) {
  change(scenario.plan);
  return peak_of_sizes(build_step(scenario, 0).classes.front().program);
}

TEST(LiveTensors, are_convex_in_the_micro_batch_and_no_more_for_plans_that_save) {
  constexpr Bytes stray{std::int64_t{4} << 20};  // as planner/search/memo.cpp allows
  std::mt19937 random(20260802);
  for (int i = 0; i < 150; ++i) {
    const bool mixture = random() % 2 == 0;
    const int layers = pick(random, {2, 3, 4});
    const Scenario scenario = small_scenario(small_model(128, layers, mixture ? 4 : 0),
                                             small_cluster(pick(random, {1, 2, 4}), 80), random_sets(random, mixture));
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) continue;
    SCOPED_TRACE(write_plan_json(scenario.plan));
    const auto micro = [&](std::int64_t m) {
      return live(scenario, [m](Plan& plan) {
        plan.micro_batch = m;
        if (plan.gradient_accumulation == 2) plan.gradient_accumulation = 1;
      });
    };
    const Bytes two = micro(2), four = micro(4), seven = micro(7);
    EXPECT_LE(two, four);
    EXPECT_GE(seven + stray, four + Bytes((four - two - stray).count * 3 / 2));
    const auto accumulated = [&](std::int64_t g) {
      return live(scenario, [g](Plan& plan) { plan.gradient_accumulation = g; });
    };
    if (scenario.plan.engine != Engine::deepspeed || scenario.plan.zero.stage != 3) {
      EXPECT_LE(accumulated(1), accumulated(2));
      EXPECT_LE(accumulated(1), accumulated(5));
    }
    const auto buckets = [&](std::int64_t elements) {
      return live(scenario, [elements](Plan& plan) { plan.zero.reduce_bucket_size = elements; });
    };
    EXPECT_LE(buckets(50'000'000), buckets(500'000'000));
  }
}

}  // namespace
}  // namespace plimsoll
