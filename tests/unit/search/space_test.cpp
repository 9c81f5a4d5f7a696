// Which plans does a search choose from?
#include "planner/search/space.hpp"

#include <gmock/gmock.h>

#include <set>

#include "tests/unit/search/small_space.hpp"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::Field;
using testing::small_cluster;
using testing::small_model;
using testing::small_scenario;

TEST(Space, keeps_what_the_user_states) {
  const Space space(small_scenario(small_model(128, 2), small_cluster(8, 80),
                                   {"zero.stage=2", "recompute=full", "world_size=4", "offload.optimizer=none"}),
                    0);
  EXPECT_THAT(space.choices(), Each(Field(&Choice::stage, 2)));
  EXPECT_THAT(space.choices(), Each(Field(&Choice::recompute_every, 1)));
  EXPECT_THAT(space.choices(), Each(Field(&Choice::world, 4)));
  EXPECT_THAT(space.choices(), Each(Field(&Choice::offload, Offloading::none)));
  EXPECT_EQ(space.choices().size(), 2U);  // with the default bucket, and with a small one
}

TEST(Space, divides_a_global_batch_over_ranks_and_micro_batches) {
  const Space space(small_scenario(small_model(128, 2), small_cluster(4, 80), {"zero.stage=3", "world_size=4"}), 24);
  const Choice& choice = space.choices().front();
  EXPECT_EQ(space.micro_batches(), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 8, 12, 24}));
  EXPECT_EQ(space.accumulations(choice, 1), (std::vector<std::int64_t>{6}));
  EXPECT_EQ(space.accumulations(choice, 6), (std::vector<std::int64_t>{1}));
  EXPECT_TRUE(space.accumulations(choice, 4).empty());
}

TEST(Space, takes_every_number_of_gpus_that_divides_a_global_batch) {
  const Space space(small_scenario(small_model(128, 2), small_cluster(8, 80), {"zero.stage=3"}), 12);
  std::set<int> worlds;
  for (const Choice& choice : space.choices()) worlds.insert(choice.world);
  EXPECT_EQ(worlds, (std::set<int>{1, 2, 3, 4, 6}));
}

TEST(Space, takes_the_defaults_that_follow_from_a_choice) {
  const Space space(small_scenario(small_model(128, 2), small_cluster(4, 80), {}), 0);
  for (const Choice& choice : space.choices()) {
    const Plan plan = space.plan(choice, 2, 4);
    EXPECT_EQ(plan.construction == Construction::zero_init, choice.stage == 3);
    EXPECT_EQ(plan.optimizer.implementation == OptimizerImplementation::deepspeed_cpu,
              choice.offload != Offloading::none);
    EXPECT_TRUE(space.is_legal(plan));
  }
}

TEST(Space, offloads_under_fsdp2_as_its_policy_does) {
  const Space space(small_scenario(small_model(128, 2), small_cluster(4, 80), {"engine=fsdp2"}), 0);
  int offloading = 0;
  for (const Choice& choice : space.choices()) {
    const Plan plan = space.plan(choice, 1, 1);
    EXPECT_EQ(plan.offload.optimizer, plan.offload.parameters);
    EXPECT_TRUE(space.is_legal(plan));
    if (plan.offload.parameters == OffloadDevice::cpu) ++offloading;
  }
  EXPECT_EQ(2 * offloading, static_cast<int>(space.choices().size()));
}

TEST(Space, shards_experts_by_every_degree_that_divides_them_and_the_ranks) {
  const Space space(small_scenario(small_model(128, 2, 4), small_cluster(8, 80), {"world_size=8"}), 0);
  std::set<int> degrees;
  for (const Choice& choice : space.choices()) degrees.insert(choice.expert_parallel);
  EXPECT_EQ(degrees, (std::set<int>{1, 2, 4}));
}

TEST(Space, counts_what_the_engine_refuses) {
  const Space space(small_scenario(small_model(128, 2, 4), small_cluster(8, 80),
                                   {"world_size=8", "moe.implementation=grouped", "expert_parallel=2"}),
                    8);
  EXPECT_TRUE(space.choices().empty());
  ASSERT_EQ(space.refused().size(), 1U);
  EXPECT_EQ(space.refused().front().count, space.size());
}

TEST(Space, counts_steps_of_more_micro_batches_than_a_plan_may_have) {
  // 2^13 sequences on one GPU: 4,096 micro-batches of 2 are a plan, 8,192 of 1 are not.
  const Space space(small_scenario(small_model(128, 2), small_cluster(1, 80),
                                   {"engine=ddp", "sequence=2048", "recompute=none", "world_size=1"}),
                    8192);
  ASSERT_EQ(space.refused().size(), 1U);
  EXPECT_EQ(space.refused().front().reason, "a step of more than 4,096 micro-batches");
  EXPECT_EQ(space.refused().front().count, 1);
  EXPECT_TRUE(space.accumulations(space.choices().front(), 1).empty());
  EXPECT_EQ(space.accumulations(space.choices().front(), 2), std::vector<std::int64_t>{4096});
}

}  // namespace
}  // namespace plimsoll
