// What is concluded from a model of fewer layers holds for the whole.
#include "planner/search/short_model.hpp"

#include <gtest/gtest.h>

#include <random>

#include "planner/account/replay.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/write_plan.hpp"
#include "planner/step/build_step.hpp"
#include "tests/unit/search/small_space.hpp"

namespace plimsoll {
namespace {

using testing::small_cluster;
using testing::small_model;
using testing::small_scenario;

RankProgram program_of(const Scenario& scenario) { return std::move(build_step(scenario, 0).classes.front().program); }

Bytes least_of(const Shortened& shortened) {
  return least_live(program_of(shortened.few), program_of(shortened.more), shortened.left_out,
                    shortened.constructs_whole)
      .of_job();
}

/// Of the device's live tensors, construction included.
Bytes peak_of_job(const RankProgram& program) {
  Bytes live, peak;
  for (OpId id = 0; id < program.steady_end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (alloc != nullptr && program.buffers[alloc->buffer].pool != Lane::host)
      live += program.buffers[alloc->buffer].size;
    if (free != nullptr && program.buffers[free->buffer].pool != Lane::host) live -= program.buffers[free->buffer].size;
    peak = std::max(peak, live);
  }
  return peak;
}

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

std::vector<std::string> random_sets(std::mt19937& random, bool mixture) {
  std::vector<std::string> sets{"sequence=" + pick<std::string>(random, {"256", "1024"}),
                                "micro_batch=" + pick<std::string>(random, {"1", "3"}),
                                "gradient_accumulation=" + pick<std::string>(random, {"1", "2", "3"}),
                                "recompute=" + pick<std::string>(random, {"none", "full", R"({"every": 2})"})};
  const std::string engine = pick<std::string>(random, {"deepspeed", "deepspeed", "deepspeed", "fsdp2", "ddp"});
  sets.push_back("engine=" + engine);
  if (engine == "fsdp2") {
    sets.push_back("fsdp.reshard_after_forward=" + pick<std::string>(random, {"true", "false"}));
    if (random() % 2 == 0) sets.push_back(R"(offload={"optimizer": "cpu", "parameters": "cpu"})");
  }
  if (engine != "deepspeed") return sets;
  const std::string stage = pick<std::string>(random, {"0", "1", "2", "3"});
  sets.push_back("zero.stage=" + stage);
  if (stage != "0") sets.push_back("offload.optimizer=" + pick<std::string>(random, {"none", "cpu"}));
  if (stage == "3") sets.push_back("zero.stage3_max_live_parameters=" + pick<std::string>(random, {"0", "1000000000"}));
  if (mixture) {
    sets.push_back("moe.implementation=" + pick<std::string>(random, {"grouped", "loop", "autoep"}));
    sets.push_back("expert_parallel=" + pick<std::string>(random, {"1", "2", "4"}));
  }
  return sets;
}

TEST(ShortModel, never_needs_more_memory_than_the_whole) {
  std::mt19937 random(20260803);
  int compared = 0;
  for (int i = 0; i < 400; ++i) {
    const bool mixture = random() % 2 == 0;
    const int layers = pick(random, {6, 9, 14});
    const Scenario scenario =
        small_scenario(small_model(pick<std::int64_t>(random, {128, 384}), layers, mixture ? 4 : 0),
                       small_cluster(pick(random, {1, 2, 4}), 80), random_sets(random, mixture));
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) continue;
    const auto shortened = shorten(scenario);
    if (!shortened) continue;
    ++compared;
    EXPECT_LE(least_of(*shortened), peak_of_job(program_of(scenario))) << write_plan_json(scenario.plan);
  }
  EXPECT_GT(compared, 150);
}

// What it leaves out is a rounding and, of a layer, 64 KiB; here backward decides, and nothing is put into buckets.
TEST(ShortModel, tells_nearly_all_of_what_the_whole_takes) {
  const Scenario scenario = small_scenario(small_model(256, 16), small_cluster(2, 80),
                                           {"engine=fsdp2", "sequence=4096", "micro_batch=4", "world_size=2"});
  const auto shortened = shorten(scenario);
  ASSERT_TRUE(shortened);
  const Bytes whole = peak_of_sizes(program_of(scenario));
  EXPECT_GE(least_of(*shortened), Bytes(whole.count - (std::int64_t{6} << 20)));
}

// Where nothing is shared between layers the peak grows by the same bytes with each.
TEST(ShortModel, expects_what_the_whole_takes) {
  for (const char* stage : {"zero.stage=0", "zero.stage=1"}) {
    for (const int accumulation : {1, 3}) {
      const Scenario scenario =
          small_scenario(small_model(256, 24), small_cluster(2, 80),
                         {stage, "sequence=1024", "gradient_accumulation=" + std::to_string(accumulation)});
      const auto shortened = shorten(scenario, 4);
      ASSERT_TRUE(shortened);
      EXPECT_EQ(shortened->more.model.layers.size(), shortened->few.model.layers.size() + 4);
      const double times = static_cast<double>(shortened->left_out) / 4;
      Shortened own = *shortened;
      own.few.plan.zero = own.more.plan.zero = scenario.plan.zero;
      const Bytes expected = expected_live(program_of(own.few), program_of(own.more), times).of_job();
      const Bytes whole = peak_of_job(program_of(scenario));
      EXPECT_NEAR(expected / whole, 1, 0.02) << stage << ", accumulation " << accumulation;
    }
  }
}

TEST(ShortModel, are_no_further_apart_than_the_model_has_layers) {
  const auto shortened = shorten(small_scenario(small_model(128, 4), small_cluster(1, 80), {}), 4);
  ASSERT_TRUE(shortened);
  EXPECT_EQ(shortened->apart, 2);
  EXPECT_EQ(shortened->more.model.layers.size(), 4U);
}

TEST(ShortModel, counts_every_layer_once) {
  Scenario scenario = small_scenario(small_model(128, 11), small_cluster(2, 80), {R"(recompute={"every": 2})"});
  scenario.model.layers[0].attention.qk_norm = AttentionSpec::QkNorm::per_head;  // a layer of its own
  const auto shortened = shorten(scenario);
  ASSERT_TRUE(shortened);
  EXPECT_EQ(shortened->stands_for, (std::vector<std::int64_t>{1, 5, 5}));
  EXPECT_EQ(shortened->few.model.layers.size(), 3U);
  EXPECT_EQ(shortened->more.model.layers.size(), 5U);
  EXPECT_EQ(shortened->left_out, 4);
}

TEST(ShortModel, is_not_made_of_a_model_whose_layers_are_few_or_all_different) {
  EXPECT_FALSE(shorten(small_scenario(small_model(128, 3), small_cluster(1, 80), {})));
  Scenario different = small_scenario(small_model(128, 12), small_cluster(1, 80), {});
  for (std::size_t i = 0; i < 12; ++i) different.model.layers[i].mlp->intermediate += static_cast<std::int64_t>(i);
  EXPECT_FALSE(shorten(different));
}

}  // namespace
}  // namespace plimsoll
