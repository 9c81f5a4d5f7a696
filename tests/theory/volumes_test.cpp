// Wire bytes per optimizer step against closed forms, in units of Psi = 2 bytes x parameters x (n - 1) / n: an all-reduce is 2,
// an all-gather or reduce-scatter 1.  DeepSpeed's stages 1 and 2 all-reduce their gradients (measured), so stage 0 moves 2,
// stage 1 3, stage 2 (2 GA + 1), stage 3 at most 3 GA with what it keeps from forward to backward.
#include <gtest/gtest.h>

#include "planner/account/volume.hpp"
#include "tests/support/scenarios.hpp"

namespace plimsoll {
namespace {

using testing::scenario;

CommVolume volume_of(const Scenario& s) {
  const StepProgram program = build_step(s, 0);
  return account_volume(program, program.classes.front().program, s.cluster);
}

double in_units(const CommVolume& volume, double parameters, double n) {
  return static_cast<double>(volume.per_gpu.count) / (2 * parameters * (n - 1) / n);
}

TEST(Volumes, DeepSpeedByStageAndAccumulation) {
  constexpr double psi = 6738415616;
  const struct {
    int stage, accumulation;
    double low, high;
  } cases[] = {{0, 1, 2, 2}, {0, 4, 2, 2}, {1, 1, 3, 3},   {1, 4, 3, 3},
               {2, 1, 3, 3}, {2, 4, 9, 9}, {3, 1, 1.9, 3}, {3, 4, 7, 12}};
  for (const auto& c : cases) {
    const double units =
        in_units(volume_of(scenario("llama-2-7b", "8xh200",
                                    {"zero.stage=" + std::to_string(c.stage), "micro_batch=1", "sequence=1024",
                                     "gradient_accumulation=" + std::to_string(c.accumulation)})),
                 psi, 8);
    EXPECT_GE(units, c.low * 0.999) << "stage " << c.stage << " accumulation " << c.accumulation;
    EXPECT_LE(units, c.high * 1.001) << "stage " << c.stage << " accumulation " << c.accumulation;
  }
}

double exchanged(const CommVolume& volume) {
  double sum = 0;
  for (const VolumeRow& row : volume.rows) {
    if (row.kind == "all_to_all" && row.dtype == DType::bf16) sum += static_cast<double>(row.wire.count);
  }
  return sum;
}

// Four exchanges per MoE layer and micro-batch, two more with recomputation, of tokens x top_k x hidden x 2 bytes each,
// (ep - 1) / ep of which leave the rank.
TEST(Volumes, ExpertExchangesScaleWithTokensNotWithParameters) {
  const auto run = [](const char* recompute) {
    return exchanged(volume_of(scenario("mixtral-8x7b", "8xh200",
                                        {"zero.stage=1", "expert_parallel=8", "moe.implementation=autoep",
                                         "micro_batch=2", "sequence=2048", std::string("recompute=") + recompute})));
  };
  const double one = 32.0 * 2 * 2048 * 2 * 4096 * 2 * 7 / 8;
  EXPECT_NEAR(run("none") / one, 4, 0.001);
  EXPECT_NEAR(run("full") / one, 6, 0.001);
}

// ep inside the node stays on NVLink; ep across two nodes sends half of what leaves a rank's node over the NIC.
TEST(Volumes, ExchangesThatLeaveTheNodeAreOnTheNic) {
  const auto on_nic = [](const char* ep) {
    const CommVolume volume = volume_of(scenario("qwen3-30b-a3b", "16xh100",
                                                 {"zero.stage=1", std::string("expert_parallel=") + ep,
                                                  "moe.implementation=autoep", "micro_batch=1", "sequence=1024"}));
    double nic = 0;
    for (const VolumeRow& row : volume.rows) {
      if (row.kind == "all_to_all" && row.tier == Tier::nic) nic += static_cast<double>(row.wire.count);
    }
    return nic;
  };
  EXPECT_EQ(on_nic("8"), 0);
  EXPECT_EQ(on_nic("4"), 0);
  // ep = 16: 8 of 16 destinations are in the other node; 48 layers, top 8, rows of 2048 x 2 bytes, and few bytes of counts.
  const double rows = 48.0 * 1024 * 8 * 2048 * 2 * 4 * 8 / 16;
  EXPECT_NEAR(on_nic("16") / rows, 1, 0.001);
}

// DeepSpeed reduces gradients when the backward has returned (stages 0 and 1) or within it (2 and 3): never in a forward.
TEST(Volumes, GradientsAreReducedInTheBackwardAtEveryStage) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    for (const char* accumulation : {"1", "4"}) {
      const CommVolume volume =
          volume_of(scenario("llama-2-7b", "8xh200",
                             {std::string("zero.stage=") + stage, "micro_batch=1", "sequence=1024",
                              std::string("gradient_accumulation=") + accumulation}));
      Bytes reduced;
      for (const VolumeRow& row : volume.rows) {
        const bool reduction = row.kind == "all_reduce" || row.kind == "reduce_scatter";
        if (!reduction) continue;
        EXPECT_NE(row.phase, "forward") << "stage " << stage << ", " << accumulation << " micro-batches";
        if (row.phase == "backward") reduced += row.wire;
      }
      EXPECT_GT(reduced, Bytes(0)) << "stage " << stage;
    }
  }
}

}  // namespace
}  // namespace plimsoll
