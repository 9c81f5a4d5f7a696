// Every interpreter reads the same program: sweeps over engine, stage, ep, recomputation, accumulation and prefetch in which
// they must agree, and every program passes the verifier.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "planner/account/arena.hpp"
#include "planner/account/device_constants.hpp"
#include "planner/account/volume.hpp"
#include "planner/account/work.hpp"
#include "planner/cli/scenario_context.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/step/verify_step.hpp"
#include "simulator/timeline.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

using testing::scenario;

const std::string small_dense = "qwen3-0.6b";
const std::string small_moe = "sketch:dense=0.3B,expert=0.6B,experts=8,top_k=2,hidden=512,layers=4";

std::vector<Scenario> sweep() {
  std::vector<Scenario> result;
  const std::vector<std::string> size{"micro_batch=2", "sequence=512"};
  const auto add = [&](const std::string& model, std::vector<std::string> keys) {
    keys.insert(keys.end(), size.begin(), size.end());
    result.push_back(scenario(model, "4xh200", keys));
  };
  for (const char* recompute : {"none", "full"}) {
    const std::string again = std::string("recompute=") + recompute;
    for (const char* accumulation : {"1", "2", "5"}) {
      const std::string ga = std::string("gradient_accumulation=") + accumulation;
      for (int stage = 0; stage <= 3; ++stage) {
        const std::string zero = "zero.stage=" + std::to_string(stage);
        add(small_dense, {zero, again, ga});
        add(small_dense, {"engine=plimsoll", zero, again, ga});
      }
      add(small_dense, {"engine=fsdp2", again, ga});
    }
    for (const char* ep : {"1", "2", "4"}) {
      add(small_moe,
          {"engine=plimsoll", "zero.stage=3", "moe.implementation=fused", std::string("expert_parallel=") + ep, again});
    }
    add(small_dense, {"engine=fsdp2", "fsdp.reshard_after_forward=false", again});
  }
  return result;
}

TEST(Agreement, EveryProgramIsSound) {
  for (const Scenario& s : sweep()) {
    const auto faults = verify_step(build_step(s, 0));
    EXPECT_TRUE(faults.empty()) << faults.front();
  }
}

// The ledger is told the reference runtime's communicators before there is a program: one for each set of ranks and lane whose
// collectives NCCL carries.
TEST(Agreement, TheLedgerCountsTheCommunicatorsOfTheProgram) {
  for (const char* cluster : {"2xh200", "4xh200", "16xh200", "4x4090"}) {
    for (const char* stage : {"0", "1", "2", "3"}) {
      for (const int ep : {1, 2}) {
        const Scenario s = scenario(small_moe, cluster,
                                    {"engine=plimsoll", "moe.implementation=fused", "sequence=512",
                                     std::string("zero.stage=") + stage, "expert_parallel=" + std::to_string(ep)});
        const StepProgram program = build_step(s, 0);
        const RankProgram& rank = program.classes.front().program;
        std::set<std::tuple<int, int, Lane>> communicators;
        for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
          const auto* c = std::get_if<Collective>(&rank.ops[id].action);
          if (!c || c->carrier != Carrier::kernels || c->kind == CollectiveKind::all_to_all) continue;
          const Group& group = program.groups[c->group];
          if (group.size > 1) communicators.emplace(group.size, group.stride, rank.ops[id].lane);
        }
        ProcessUse use;
        use.software = Software::plimsoll_run;
        use.nvlink = s.cluster.in_node.tier == Tier::nvlink;
        use.ring_communicators = static_cast<int>(communicators.size());
        use.exchange_peers_in_node = ep - 1;
        EXPECT_EQ(ledger_context(s).outside.nccl, outside_framework(use).nccl) << cluster << " " << stage << " " << ep;
      }
    }
  }
}

// What the simulator puts on the wire is what the volumes say, and a lane is busy for the sum of its ops.
TEST(Agreement, TheSimulatorMovesTheVolumes) {
  for (const Scenario& s : sweep()) {
    const StepProgram program = build_step(s, 0);
    const RankProgram& rank = program.classes.front().program;
    const auto calibration = load_calibration("", s.cluster);
    ASSERT_TRUE(calibration);
    const Timeline timeline = simulate_step(program, s.cluster, *calibration);
    EXPECT_TRUE(timeline.unfinished.empty()) << timeline.unfinished.front();
    Bytes wire;
    for (const TimedOp& op : timeline.ops) {
      if (op.class_index != 0) continue;
      if (const auto* c = std::get_if<Collective>(&rank.ops[op.op].action)) {
        wire += wire_bytes(c->kind, c->full_size, program.groups[c->group].size);
      } else if (const auto* copy = std::get_if<HostCopy>(&rank.ops[op.op].action)) {
        wire += copy->size;
      }
      EXPECT_LE(op.end, timeline.step_time);
    }
    EXPECT_EQ(wire, account_volume(program, rank, s.cluster).per_gpu);
  }
}

// No placement is smaller than what is alive at once; more programs and a tighter bound: tests/unit/account/arena_test.cpp.
TEST(Agreement, TheArenaHoldsWhatIsAlive) {
  for (const Scenario& s : sweep()) {
    if (s.plan.engine != Engine::plimsoll) continue;
    const StepProgram program = build_step(s, 0);
    const ArenaPlan arena = plan_arena(program.classes.front().program);
    EXPECT_GE(arena.size, arena.least);
    EXPECT_LE(static_cast<double>(arena.size.count), 1.05 * static_cast<double>(arena.least.count));
  }
}

// The replayed peak counts whole blocks: never below the sum of the tensors alive.
TEST(Agreement, TheReplayIsNeverBelowTheSumOfSizes) {
  for (const Scenario& s : sweep()) {
    const StepProgram program = build_step(s, 0);
    const RankProgram& rank = program.classes.front().program;
    EXPECT_GE(replay_allocator(rank).allocated_peak, peak_of_sizes(rank));
  }
}

TEST(Agreement, TheSamePlanHasTheSameDigestAndAnotherOneAnother) {
  const Scenario a = scenario(small_dense, "4xh200", {"zero.stage=2"});
  const Scenario b = scenario(small_dense, "4xh200", {"zero.stage=3"});
  EXPECT_EQ(build_step(a, 0).digest, build_step(a, 0).digest);
  EXPECT_NE(build_step(a, 0).digest, build_step(b, 0).digest);
}

TEST(Agreement, PlansThatMakeDifferentRoomForRowsHaveDifferentDigests) {
  const auto digest = [](const char* factor, int rank) {
    return build_step(scenario(small_moe, "2xh200", {"engine=plimsoll", "expert_parallel=2", factor}), rank).digest;
  };
  EXPECT_NE(digest("moe.capacity_factor=1.25", 0), digest("moe.capacity_factor=2", 0));
  EXPECT_EQ(digest("moe.capacity_factor=2", 0), digest("moe.capacity_factor=2", 1));
}

}  // namespace
}  // namespace plimsoll
