// No two buffers of an arena that may be alive at once share an address, and next to nothing is lost between them.
#include "planner/account/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/step/verify_step.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

using testing::scenario;

const char* const small_moe = "sketch:dense=0.3B,expert=0.6B,experts=8,top_k=2,hidden=512,layers=4";

/// A buffer on the GPU, told by its ops one by one.
struct Life {
  std::int64_t first_byte = 0, end_byte = 0;
  OpId alloc = 0, free = 0;
  std::vector<OpId> uses;
};

std::vector<Life> lives_of(const RankProgram& program, const ArenaPlan& arena) {
  std::vector<Life> lives(program.buffers.size());
  for (OpId id = 0; id < program.ops.size(); ++id) {
    const Op& op = program.ops[id];
    if (const auto* alloc = std::get_if<Alloc>(&op.action)) {
      Life& life = lives[alloc->buffer];
      life.first_byte = arena.offsets[alloc->buffer].count;
      life.end_byte = life.first_byte + program.buffers[alloc->buffer].size.count;
      life.alloc = id;
      life.free = static_cast<OpId>(program.ops.size());
    }
    if (const auto* free = std::get_if<Free>(&op.action)) lives[free->buffer].free = id;
    for (std::size_t i = 0; i < std::size_t{op.read_count} + op.write_count; ++i)
      lives[program.refs[op.first_ref + i]].uses.push_back(id);
  }
  std::vector<Life> on_gpu;
  for (BufferId buffer = 0; buffer < lives.size(); ++buffer)
    if (program.buffers[buffer].pool != Lane::host) on_gpu.push_back(std::move(lives[buffer]));
  std::sort(on_gpu.begin(), on_gpu.end(), [](const Life& a, const Life& b) { return a.alloc < b.alloc; });
  return on_gpu;
}

/// All lanes meet between steps and between the rounds of a repeated micro-batch.
bool lanes_meet_between(const RankProgram& program, OpId before, OpId after) {
  const auto between = [&](OpId join) { return before < join && join <= after; };
  return between(program.steady_first) || between(program.steady_end) ||
         std::any_of(program.repeats.begin(), program.repeats.end(),
                     [&](const Repeat& repeat) { return between(repeat.end); });
}

/// Pairs of buffers that share an address though a use of the one may still run, or come, when the other is used.
int clashes(const RankProgram& program, const ArenaPlan& arena) {
  const HappensBefore happens(program);
  const std::vector<Life> lives = lives_of(program, arena);
  int count = 0;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    for (std::size_t j = i + 1; j < lives.size(); ++j) {
      const Life &earlier = lives[i], &later = lives[j];
      if (earlier.first_byte >= later.end_byte || later.first_byte >= earlier.end_byte) continue;
      const bool ended = std::all_of(earlier.uses.begin(), earlier.uses.end(), [&](OpId use) {
        return std::all_of(later.uses.begin(), later.uses.end(), [&](OpId next) {
          return happens.ordered(use, next) || lanes_meet_between(program, use, next);
        });
      });
      if (later.alloc < earlier.free || !ended) ++count;
    }
  }
  return count;
}

struct Case {
  const char* model;
  const char* cluster;
  std::vector<std::string> keys;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.model << " " << one.keys.front(); }

class Arena : public ::testing::TestWithParam<Case> {
 protected:
  StepProgram program(const char* more) const {
    std::vector<std::string> keys{"engine=plimsoll"};
    keys.insert(keys.end(), GetParam().keys.begin(), GetParam().keys.end());
    keys.emplace_back(more);
    return build_step(scenario(GetParam().model, GetParam().cluster, keys), 0);
  }
};

TEST_P(Arena, NoTwoBuffersThatMayBeAliveAtOnceShareAnAddress) {
  for (const char* recompute : {"recompute=none", "recompute=full"}) {
    const StepProgram step = program(recompute);
    const RankProgram& rank = step.classes.front().program;
    EXPECT_EQ(clashes(rank, plan_arena(rank)), 0) << recompute;
  }
}

// A repeated micro-batch runs again at the same addresses, where its last round's buffers may be overwritten: what is freed only
// in the round after must not be used there.
TEST_P(Arena, ARepeatedMicroBatchHandsNothingToTheNextInBuffersOfItsOwn) {
  const StepProgram step = program("gradient_accumulation=5");
  const RankProgram& rank = step.classes.front().program;
  ASSERT_FALSE(rank.repeats.empty());
  for (const Life& life : lives_of(rank, plan_arena(rank))) {
    for (const Repeat& repeat : rank.repeats) {
      const auto inside = [&](OpId id) { return repeat.first <= id && id < repeat.end; };
      if (inside(life.alloc) == inside(life.free)) continue;
      for (const OpId use : life.uses) EXPECT_EQ(inside(use), inside(life.alloc));
    }
  }
}

TEST_P(Arena, EveryOffsetIsAMultipleOfTheAlignmentWithinTheArena) {
  const StepProgram step = program("recompute=none");
  const RankProgram& rank = step.classes.front().program;
  for (const std::int64_t alignment : {512, 4096}) {
    const ArenaPlan arena = plan_arena(rank, Bytes(alignment));
    for (const Life& life : lives_of(rank, arena)) {
      EXPECT_EQ(life.first_byte % alignment, 0);
      EXPECT_LE(life.end_byte, arena.size.count);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, Arena,
    ::testing::Values(Case{"sparrow-dense", "2xh200", {"zero.stage=0", "sequence=128"}},
                      Case{"sparrow-dense", "4xh200", {"zero.stage=3", "sequence=128", "gradient_accumulation=3"}},
                      Case{"sparrow-moe", "4xh200", {"zero.stage=3", "sequence=333", "expert_parallel=2"}},
                      Case{"sparrow-moe", "2xh200", {"zero.stage=1", "sequence=2048", "expert_parallel=2"}},
                      Case{"llama-3.2-1b", "8xh200", {"zero.stage=2", "gradient_accumulation=5"}},
                      Case{small_moe, "4xh200", {"zero.stage=3", "expert_parallel=4", "gradient_accumulation=2"}},
                      Case{"mixtral-8x7b", "16xh200", {"zero.stage=3", "sequence=900"}}));

// Best fit in the order of issue lost a third to more than half of these.
TEST(ArenaSize, LargeGathersAndSmallActivationsFragmentNothing) {
  for (const char* sequence : {"sequence=850", "sequence=900", "sequence=1000"}) {
    const StepProgram step = build_step(scenario("mixtral-8x7b", "16xh200", {"engine=plimsoll", sequence}), 0);
    const ArenaPlan arena = plan_arena(step.classes.front().program);
    EXPECT_LE(static_cast<double>(arena.size.count), 1.003 * static_cast<double>(arena.least.count)) << sequence;
  }
}

// What the orders reach at worst over sizes at which blocks of all kinds are large in turn: 1.04 times what is alive at the
// peak, where buffers on two lanes may be alive at once that never are in the order of issue.
TEST(ArenaSize, AnArenaIsAtMostATwentiethLargerThanWhatIsAliveAtItsPeak) {
  const std::vector<std::pair<const char*, const char*>> models{
      {"sparrow-dense", "expert_parallel=1"}, {"qwen3-0.6b", "expert_parallel=1"}, {"sparrow-moe", "expert_parallel=1"},
      {"sparrow-moe", "expert_parallel=4"},   {small_moe, "expert_parallel=1"},    {small_moe, "expert_parallel=2"}};
  const std::vector<std::vector<std::string>> sizes{
      {"micro_batch=1", "sequence=850"}, {"micro_batch=8", "sequence=2048"}, {"micro_batch=3", "sequence=333"}};
  double sum = 0;
  int count = 0;
  for (const auto& [model, ep] : models) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const char* recompute : {"recompute=none", "recompute=full"}) {
        for (const char* accumulation : {"gradient_accumulation=1", "gradient_accumulation=5"}) {
          for (const std::vector<std::string>& size : sizes) {
            std::vector<std::string> keys{"engine=plimsoll", ep, "zero.stage=" + std::to_string(stage), recompute,
                                          accumulation};
            keys.insert(keys.end(), size.begin(), size.end());
            const StepProgram step = build_step(scenario(model, "4xh200", keys), 0);
            const ArenaPlan arena = plan_arena(step.classes.front().program);
            const double ratio = static_cast<double>(arena.size.count) / static_cast<double>(arena.least.count);
            EXPECT_GE(ratio, 1);
            EXPECT_LE(ratio, 1.05) << model << " " << ::testing::PrintToString(keys);
            sum += ratio;
            ++count;
          }
        }
      }
    }
  }
  EXPECT_LE(sum / count, 1.01);
}

}  // namespace
}  // namespace plimsoll
