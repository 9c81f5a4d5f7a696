// Do the categories of every phase say what the replay says, and does a replay without an allocator find the same peaks?
#include "planner/account/phase_categories.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/account/allocator.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

struct Case {
  const char* model;
  const char* cluster;
  std::vector<std::string> keys;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {"llama-3.2-1b", "2xh200", {"engine=ddp"}},
      {"llama-3.2-1b", "8xh100", {"engine=fsdp2"}},
      {"llama-3.2-1b", "8xh100", {"zero.stage=2", "gradient_accumulation=4"}},
      {"mixtral-8x7b", "8xh200", {"zero.stage=3", "expert_parallel=8", "moe.implementation=autoep"}},
      {"olmoe-1b-7b", "8xh100", {"zero.stage=3", "offload.optimizer=cpu"}},
  };
  return list;
}

TEST(PhaseCategories, AreTheLedgersAtTheStepsPeak) {
  for (const Case& c : cases()) {
    const StepProgram step = build_step(testing::scenario(c.model, c.cluster, c.keys), 0);
    const RankProgram& program = step.classes.front().program;
    const Replay replay = replay_allocator(program);
    const auto phases = categories_by_phase(program, replay);
    ASSERT_EQ(phases.size(), replay.phases.size());
    for (std::size_t i = 0; i < phases.size(); ++i) {
      EXPECT_EQ(phases[i].name, replay.phases[i].name);
      if (phases[i].name != replay.peak_phase) continue;
      EXPECT_EQ(phases[i].categories, replay.categories_at_peak) << c.model << " " << phases[i].name;
    }
  }
}

TEST(ReplayOfSizes, IsNeverAboveTheAllocatorsAndLacksOnlyRemaindersOfBlocks) {
  for (const Case& c : cases()) {
    const StepProgram step = build_step(testing::scenario(c.model, c.cluster, c.keys), 0);
    const RankProgram& program = step.classes.front().program;
    const Replay replay = replay_allocator(program);
    const auto [sizes, categories] = replay_sizes(program);
    EXPECT_EQ(sizes.allocated_peak, peak_of_sizes(program)) << c.model;
    EXPECT_LE(sizes.allocated_peak, replay.allocated_peak) << c.model;
    EXPECT_GE(sizes.allocated_peak, replay.allocated_peak - replay.slack_at_peak) << c.model;
    ASSERT_EQ(sizes.phases.size(), replay.phases.size()) << c.model;
    for (std::size_t i = 0; i < sizes.phases.size(); ++i) EXPECT_EQ(sizes.phases[i].name, replay.phases[i].name);
    Bytes sum;
    for (const BufferId id : sizes.live_at_peak)
      sum += Bytes(std::max<std::int64_t>(512, round_up(program.buffers[id].size.count, 512)));
    EXPECT_EQ(sum, sizes.allocated_peak) << c.model;
    ASSERT_EQ(categories.size(), sizes.phases.size()) << c.model;
    const auto walked_again = categories_by_phase(program, sizes);
    for (std::size_t i = 0; i < categories.size(); ++i) {
      EXPECT_EQ(categories[i].name, sizes.phases[i].name) << c.model;
      EXPECT_EQ(categories[i].total(), sizes.phases[i].allocated_peak) << c.model << " " << categories[i].name;
      EXPECT_EQ(categories[i].categories, walked_again[i].categories) << c.model << " " << categories[i].name;
      if (categories[i].name != sizes.peak_phase) continue;
      EXPECT_EQ(categories[i].categories, sizes.categories_at_peak) << c.model << " " << categories[i].name;
    }
  }
}

}  // namespace
}  // namespace plimsoll
