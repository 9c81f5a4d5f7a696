// Optimizer groups of DeepSpeed: order, chopping, padding, who owns what.
#include "planner/step/engines/deepspeed_groups.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/groups.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;

std::deque<Parameter> parameters_of(const std::vector<std::pair<std::int64_t, int>>& sizes_and_meshes) {
  std::deque<Parameter> parameters;
  for (const auto& [size, mesh] : sizes_and_meshes) {
    Parameter& parameter = parameters.emplace_back();
    parameter.index = static_cast<int>(parameters.size()) - 1;
    parameter.shape = {{size}};
    parameter.group = mesh;
  }
  return parameters;
}

Plan plan_of(int world, int expert_parallel) {
  Plan plan;
  plan.world_size = world;
  plan.expert_parallel = expert_parallel;
  plan.moe.implementation = MoeImplementation::native;
  plan.zero.stage = 2;
  return plan;
}

TEST(OptimizerGroups, PutDenseParametersFirstAndExpertsOnTheirOwnMesh) {
  std::deque<Parameter> parameters = parameters_of({{10, 0}, {6, 1}, {7, 0}, {4, 1}});
  const auto groups = optimizer_groups(plan_of(8, 2), 5, parameters);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(groups[0].parameters, ElementsAre(&parameters[0], &parameters[2]));
  EXPECT_EQ(groups[0].group, group_id::data_parallel);
  EXPECT_EQ(groups[0].ranks, 8);
  EXPECT_EQ(groups[0].rank, 5);
  EXPECT_EQ(groups[0].padded(), 32);  // roundup(17, 16)
  EXPECT_EQ(groups[0].partition(), 4);
  EXPECT_THAT(groups[1].parameters, ElementsAre(&parameters[1], &parameters[3]));
  EXPECT_EQ(groups[1].group, group_id::expert_data_parallel);
  EXPECT_EQ(groups[1].ranks, 4);
  EXPECT_EQ(groups[1].rank, 2);  // of ranks 1, 3, 5, 7
  EXPECT_EQ(groups[1].padded(), 16);
}

TEST(OptimizerGroups, ChopExpertsAtTheirLimitInFullElements) {
  const std::int64_t half = expert_group_limit / 2;
  std::deque<Parameter> parameters = parameters_of({{half, 1}, {half, 1}, {1, 1}, {1, 1}, {expert_group_limit + 5, 1}});
  const auto groups = optimizer_groups(plan_of(2, 1), 0, parameters);
  ASSERT_EQ(groups.size(), 3u);  // the dense group is empty and left out
  EXPECT_EQ(groups[0].numel, 2 * half + 1);
  EXPECT_EQ(groups[1].numel, 1);
  EXPECT_EQ(groups[2].numel, expert_group_limit + 5);
}

TEST(OptimizerGroups, TakeExpertsOfTheModelsOwnBlocksAsDense) {
  std::deque<Parameter> parameters = parameters_of({{10, 0}, {6, 1}});
  Plan plan = plan_of(2, 1);
  plan.moe.implementation = MoeImplementation::grouped;
  const auto groups = optimizer_groups(plan, 0, parameters);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].numel, 16);
}

TEST(OptimizerGroups, LeaveOutFrozenParameters) {
  std::deque<Parameter> parameters = parameters_of({{10, 0}, {6, 0}});
  parameters[0].trainable = false;
  EXPECT_EQ(optimizer_groups(plan_of(2, 1), 0, parameters).front().numel, 6);
}

TEST(OptimizerGroups, CutAParameterThatStraddlesPartitions) {
  std::deque<Parameter> parameters = parameters_of({{5, 0}, {9, 0}, {4, 0}});
  const auto groups = optimizer_groups(plan_of(3, 1), 0, parameters);
  ASSERT_EQ(groups[0].partition(), 6);  // 18 elements, no padding
  EXPECT_EQ(groups[0].slice(0, 0), 5);
  EXPECT_EQ(groups[0].slice(1, 0), 1);
  EXPECT_EQ(groups[0].slice(1, 1), 6);
  EXPECT_EQ(groups[0].slice(1, 2), 2);
  EXPECT_EQ(groups[0].slice(2, 1), 0);
  EXPECT_EQ(groups[0].slice(2, 2), 4);
}

TEST(OptimizerGroups, AlignParametersTo16BytesWhenAsked) {
  std::deque<Parameter> parameters = parameters_of({{5, 0}, {9, 0}});
  Plan plan = plan_of(1, 1);
  plan.zero.parameter_alignment = true;
  const auto groups = optimizer_groups(plan, 0, parameters);
  EXPECT_THAT(groups[0].offsets, ElementsAre(0, 8));
  EXPECT_EQ(groups[0].numel, 8 + 16);
}

TEST(OptimizerGroups, DealParametersRoundRobinWhenAsked) {
  std::deque<Parameter> parameters = parameters_of({{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}});
  Plan plan = plan_of(2, 1);
  plan.zero.round_robin_gradients = true;
  const auto groups = optimizer_groups(plan, 0, parameters);
  EXPECT_THAT(groups[0].parameters,
              ElementsAre(&parameters[0], &parameters[2], &parameters[4], &parameters[1], &parameters[3]));
  EXPECT_THAT(groups[0].offsets, ElementsAre(0, 1, 4, 9, 11));
}

}  // namespace
}  // namespace plimsoll
