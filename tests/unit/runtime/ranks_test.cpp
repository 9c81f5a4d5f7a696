// Several ranks: N ranks and one rank with N times the accumulation compute the same, to the bit where all sums are exact;
// what is sent is what the volumes say; faults end all ranks.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include "planner/account/volume.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/step/build_step.hpp"
#include "runtime/core/row_bound.hpp"
#include "tests/unit/runtime/world.hpp"

namespace plimsoll::testing {
namespace {

using Keys = std::vector<std::string>;

Keys with(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

/// All that is varied, with what one rank would do for it.
struct Case {
  std::string model;
  int world = 1;
  int accumulation = 1;
  Keys keys;
  std::string name() const {
    return fmt::format("{} ranks, accumulation {}, {}", world, accumulation, fmt::join(keys, " "));
  }
};

std::vector<Case> sweep() {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* recompute : {"recompute=none", "recompute=full"}) {
      for (const int accumulation : {1, 2}) {
        const std::string zero = fmt::format("zero.stage={}", stage);
        cases.push_back({tiny_dense, 4, accumulation, {zero, recompute}});
        for (const int ep : {1, 2, 4}) {
          const std::string experts = fmt::format("expert_parallel={}", ep);
          cases.push_back({tiny_moe, 4, accumulation, {zero, experts, recompute, "moe.capacity_factor=4"}});
          cases.push_back({tiny_moe, 4, accumulation, {zero, experts, recompute, "moe.drop_tokens=true"}});
        }
      }
    }
  }
  return cases;
}

// Emulated bf16: gradients have 8 significant bits, are summed wide and rounded once.  All micro-batches are equal and their
// number is a power of two, so every sum over micro-batches and ranks is a multiple of one gradient, and exact.  (The norm is
// no such sum, nor is a tied embedding's gradient, two roundings a micro-batch: nothing is tied here, nothing is clipped here.  Neither is the loss that is printed.)
TEST(Ranks, ComputeToTheBitWhatOneRankComputes) {
  std::map<std::pair<std::string, int>, JobResult> alone;
  for (const Case& c : sweep()) {
    const Keys keys{"precision=bf16", "micro_batch=1", "sequence=8", "gradient_clipping=0"};
    const Scenario many =
        job(c.model, c.world, with(with(keys, c.keys), {fmt::format("gradient_accumulation={}", c.accumulation)}));
    const Feed feed = [&](int, std::int64_t, std::int64_t) { return random_batch(many, 3); };
    const bool drops = c.keys.back() == "moe.drop_tokens=true";
    const std::string key = c.model + (drops ? "drop" : "");
    auto& one = alone[{key, c.accumulation}];
    if (one.reports.empty()) {
      one = run_job(job(c.model, 1,
                        with(keys, {fmt::format("gradient_accumulation={}", c.world * c.accumulation),
                                    drops ? "moe.drop_tokens=true" : "moe.drop_tokens=false"})),
                    feed);
      ASSERT_EQ(one.errors.front(), "");
    }
    const JobResult result = run_job(many, feed);
    ASSERT_THAT(result.errors, ::testing::Each("")) << c.name();
    EXPECT_EQ(first_unequal(result.gradients, one.gradients), "") << c.name();
    EXPECT_EQ(first_unequal(result.weights, one.weights), "") << c.name();
    EXPECT_NEAR(result.reports.front().loss, one.reports.front().loss, 1e-5) << c.name();
  }
}

// Different tokens on every rank, fp32: the sums round, each once per rank.
TEST(Ranks, ComputeWithDifferentTokensWhatOneRankComputes) {
  for (const Keys& keys : {Keys{"zero.stage=3"}, Keys{"zero.stage=3", "expert_parallel=2", "moe.capacity_factor=4"},
                           Keys{"zero.stage=1", "expert_parallel=4", "moe.capacity_factor=4"}}) {
    const Keys size{"precision=fp32", "micro_batch=1", "sequence=12", "gradient_clipping=1"};
    JobOptions options;
    options.steps = 3;
    const Scenario many = job(tiny_moe, 4, with(size, keys));
    const Scenario one = job(tiny_moe, 1, with(size, {"gradient_accumulation=4"}));
    const auto batch = [&](std::int64_t step, std::int64_t i) {
      return random_batch(many, static_cast<std::uint64_t>(100 * step + i));
    };
    const JobResult spread = run_job(
        many, [&](int rank, std::int64_t s, std::int64_t) { return batch(s, rank); }, options);
    const JobResult alone = run_job(
        one, [&](int, std::int64_t s, std::int64_t i) { return batch(s, i); }, options);
    ASSERT_THAT(spread.errors, ::testing::Each(""));
    const Difference difference = largest_difference(spread.gradients, alone.gradients);
    EXPECT_LE(difference.relative, 1e-4) << difference.where;  // AdamW turns roundings of small gradients into steps
    EXPECT_NEAR(spread.reports.back().loss, alone.reports.back().loss, 1e-5);
  }
}

TEST(Ranks, SendWhatTheVolumesSay) {
  for (const Case& c : sweep()) {
    // Dropless routing moves as many rows as it happens to: equal to the plan's only if nothing is counted.
    if (c.keys.back() == "moe.capacity_factor=4" && c.keys[1] != "expert_parallel=1") continue;
    const Scenario scenario = job(c.model, c.world,
                                  with({"precision=bf16", "micro_batch=1", "sequence=8",
                                        fmt::format("gradient_accumulation={}", 2 * c.accumulation - 1)},
                                       c.keys));
    const JobResult result = run_job(scenario, [&](int r, std::int64_t, std::int64_t) {
      return random_batch(scenario, static_cast<std::uint64_t>(r));
    });
    ASSERT_THAT(result.errors, ::testing::Each("")) << c.name();
    const StepProgram program = build_step(scenario, 0);
    const CommVolume volume = account_volume(program, program.classes.front().program, scenario.cluster);
    std::map<std::pair<std::string, std::string>, std::int64_t> planned, sent;
    for (const VolumeRow& row : volume.rows) {
      if (row.group != "host") planned[{row.kind, row.group}] += row.wire.count;
    }
    for (const auto& [key, bytes] : result.sent.front()) {
      if (bytes > 0) sent[{name_of(key.first), program.groups[key.second].name}] += bytes;
    }
    EXPECT_EQ(sent, planned) << c.name();
  }
}

TEST(Ranks, HaveArenasAsPlanned) {
  for (const Case& c : sweep()) {
    const Scenario scenario = job(c.model, c.world, with({"micro_batch=1", "sequence=8"}, c.keys));
    JobOptions options;
    options.steps = 2;  // the first step and a steady one
    const JobResult result = run_job(
        scenario, [&](int, std::int64_t, std::int64_t) { return random_batch(scenario, 3); }, options);
    EXPECT_EQ(result.high_water, result.arena) << c.name();
    EXPECT_EQ(result.most_live, result.least) << c.name();
  }
}

TEST(Ranks, EndWithTheBuffersNameWhereMoreRowsArriveThanThePlanStates) {
  // Room for the mean alone: any imbalance is too much for one of the two.
  const Scenario scenario =
      job(tiny_moe, 2, {"micro_batch=1", "sequence=8", "expert_parallel=2", "moe.capacity_factor=1"});
  const JobResult result =
      run_job(scenario, [&](int, std::int64_t, std::int64_t) { return random_batch(scenario, 5); });
  EXPECT_THAT(result.errors,
              ::testing::Contains(::testing::AllOf(::testing::HasSubstr("moe.capacity_factor=1.13 holds this step"),
                                                   ::testing::HasSubstr("all_to_all ep"))));
  EXPECT_THAT(result.errors, ::testing::Each(::testing::HasSubstr("at op")));
}

TEST(RowBound, IsNamedWhereARankReceivesAndSendsNone) {
  try {
    check_row_bound({.arrive = 9, .room = 8, .leave = 0, .ranks = 2}, "rows");
    FAIL() << "9 rows fit into room for 8";
  } catch (const MachineError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("\"rows\" has room for 8: "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("moe.capacity_factor=2 holds any routing"));
  }
  EXPECT_NO_THROW(check_row_bound({.arrive = 8, .room = 8, .leave = 0, .ranks = 2}, "rows"));
}

TEST(Steps, SkipAnUpdateWhoseGradientsAreNotFinite) {
  const Scenario scenario = job(tiny_dense, 2, {"precision=fp32", "micro_batch=1", "sequence=8"});
  JobOptions options;
  options.weights = [](const ParameterSlot& slot, std::int64_t i) {
    const bool broken = std::string_view(slot.name) == "lm_head.weight" && i == 5;
    return broken ? std::numeric_limits<float>::infinity() : initial_value(slot, i);
  };
  const JobResult result = run_job(
      scenario, [&](int, std::int64_t, std::int64_t) { return random_batch(scenario, 5); }, options);
  EXPECT_TRUE(result.reports.front().skipped);
  EXPECT_EQ(result.weights.at("model.norm.weight"), std::vector<float>(32, 1.0F));
  EXPECT_EQ(result.gradients.at("model.norm.weight"), std::vector<float>(32, 0.0F));
}

}  // namespace
}  // namespace plimsoll::testing
