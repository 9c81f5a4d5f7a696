// DeepSpeed's optimizer on the host, saving, and the files of a checkpoint, on a model small enough to count by hand
// (deepspeed_stages_test.cpp lists its parameters: 856 elements, 428 a partition, the largest 256).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/checkpoint_files.hpp"
#include "planner/step/engines/engines.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::IsEmpty;

constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr std::int64_t psi = 856, a = 428, largest = 256, rotary = 16;

RankProgram build(std::vector<std::string> sets, int rank = 0) {
  std::vector<std::string> all{"world_size=2", "sequence=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  const Scenario scenario = make_scenario(tiny, all);
  RankProgram program;
  build_deepspeed(scenario, rank, program);
  return program;
}

RankProgram offloaded(std::vector<std::string> sets = {}, int rank = 0) {
  sets.insert(sets.begin(), {"zero.stage=2", "offload.optimizer=cpu", "optimizer.implementation=torch_cpu"});
  return build(sets, rank);
}

/// Bytes that cross PCIe in ops [first, end).
std::int64_t copied(const RankProgram& program, std::pair<OpId, OpId> ops, bool to_device) {
  std::int64_t bytes = 0;
  for (OpId id = ops.first; id < ops.second; ++id) {
    const auto* copy = std::get_if<HostCopy>(&program.ops[id].action);
    if (copy && copy->to_device == to_device) bytes += copy->size.count;
  }
  return bytes;
}

TEST(DeepSpeedOffload, PinsMasterStagingGradientAndScratch) {
  const RankProgram program = offloaded();
  const LiveRange init = live(program, phase(program, "initialized"));
  const std::int64_t pinned = 4 * a + 2 * a + 4 * a + 2 * largest;
  EXPECT_EQ(init.at_end.pinned, pinned);
  EXPECT_EQ(init.at_end.pageable, 0);
  EXPECT_EQ(init.pinned_peak + init.pageable_peak, pinned + 6 * a)
      << "the gradient's pageable zeros, and the staging buffer's source";
  EXPECT_EQ(init.at_end.gpu_total(), 2 * psi + 2 * largest + rotary);
}

TEST(DeepSpeedOffload, PinsNothingWhenToldSo) {
  const RankProgram program = offloaded({"offload.pin_memory=false"});
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.pinned_peak, 0);
  EXPECT_EQ(init.at_end.pageable, 10 * a + 2 * largest);
  EXPECT_EQ(init.pageable_peak, init.at_end.pageable);
}

TEST(DeepSpeedOffload, MakesMomentsInTheFirstStepAndNeverPinsThem) {
  const RankProgram program = offloaded();
  EXPECT_EQ(live(program, phase(program, "first_step_backward")).at_end.pageable, 0);
  EXPECT_EQ(live(program, phase(program, "first_step_step")).at_end.pageable, 8 * a);
  EXPECT_EQ(live(program, phase(program, "steady_step")).at_end.pageable, 8 * a);
}

/// Elements that the host's Adam is told of in ops [first, end): its time is by the element.
std::int64_t stepped_on_host(const RankProgram& program, std::pair<OpId, OpId> ops) {
  std::int64_t elements = 0;
  for (OpId id = ops.first; id < ops.second; ++id) {
    const auto* work = std::get_if<HostWork>(&program.ops[id].action);
    if (work && work->kind == HostWorkKind::cpu_adam) elements += work->count;
  }
  return elements;
}

TEST(DeepSpeedOffload, StepsEveryElementOfThePartitionOnTheHost) {
  for (const char* stage : {"zero.stage=1", "zero.stage=2"}) {
    const RankProgram program = offloaded({stage});
    EXPECT_EQ(stepped_on_host(program, phase(program, "steady_step")), a) << stage;
  }
  const RankProgram third = build({"zero.stage=3", "offload.optimizer=cpu", "optimizer.implementation=torch_cpu"});
  EXPECT_EQ(stepped_on_host(third, phase(third, "steady_step")), a) << "every parameter divides by two ranks";
}

TEST(DeepSpeedOffload, KeepsNoGradientsOnTheGpu) {
  const RankProgram program = offloaded();
  EXPECT_THAT(sizes_of(program, steady(program), "gradient partition"), IsEmpty());
  EXPECT_EQ(live(program, phase(program, "steady_backward")).at_end.gpu.at(Category::gradients), 0);
  const std::vector<const BufferDecl*> in_step = allocated(program, phase(program, "steady_step"));
  for (const BufferDecl* buffer : in_step) EXPECT_LE(buffer->size.count, 4) << buffer->name;
}

TEST(DeepSpeedOffload, SendsFp32GradientsOutAnd16BitParametersBack) {
  const RankProgram program = offloaded();
  EXPECT_EQ(copied(program, phase(program, "steady_backward"), false), 4 * a);
  EXPECT_EQ(copied(program, steady(program), true), 2 * a);
}

TEST(DeepSpeedOffload, AccumulatesWholeGradientsOnTheHost) {
  const RankProgram program = offloaded({"gradient_accumulation=3"});
  const std::int64_t whole = 2 * 448;  // of every parameter that touches the partition
  const Live after_first = live(program, phase(program, "first_step_accumulation")).at_end;
  EXPECT_EQ(after_first.pinned, 10 * a + 2 * largest + whole);
  EXPECT_EQ(copied(program, phase(program, "steady_accumulation"), false), 2 * whole) << "after each but the last";
  EXPECT_EQ(copied(program, phase(program, "steady_accumulation"), true), whole) << "before each but the first";
  EXPECT_EQ(copied(program, phase(program, "steady_backward"), true), whole);
}

// Measured: a step of stage 1 with two micro-batches copies the updated parameters to the device, and no gradient.
TEST(DeepSpeedOffload, ReducesOnceAtStageOneAndAccumulatesNothingOnTheHost) {
  const RankProgram program = offloaded({"zero.stage=1", "gradient_accumulation=3"});
  EXPECT_EQ(live(program, phase(program, "first_step_accumulation")).at_end.pinned, 10 * a + 2 * largest);
  EXPECT_EQ(copied(program, steady(program), true), 2 * a);
}

// The driver stages what is not pinned, and returns when it has: measured, 39 and 69 ms of the host for 0.5 GB out and in.
TEST(DeepSpeedOffload, MakesTheHostWaitForPageableCopies) {
  for (const bool pinned : {true, false}) {
    const RankProgram program = offloaded({pinned ? "offload.pin_memory=true" : "offload.pin_memory=false"});
    const auto [first, end] = phase(program, "steady_backward");
    int copies = 0;
    for (OpId id = first; id < end; ++id) {
      const auto* copy = std::get_if<HostCopy>(&program.ops[id].action);
      if (!copy) continue;
      ++copies;
      EXPECT_EQ(copy->pinned, pinned);
      EXPECT_EQ(std::holds_alternative<HostSync>(program.ops[id + 1].action), !pinned);
    }
    EXPECT_GT(copies, 0);
  }
}

TEST(DeepSpeedSave, CopiesOneStorageAtATime) {
  const RankProgram flat = build({"zero.stage=2"});
  EXPECT_EQ(live(flat, phase(flat, "save_16bit")).pageable_peak, 2 * psi) << "the flat buffer is one storage";
  EXPECT_EQ(live(flat, phase(flat, "save_checkpoint")).pageable_peak, 4 * a) << "the larger of 2 A and 4 a";
  const RankProgram replicated = build({"zero.stage=0"});
  EXPECT_EQ(live(replicated, phase(replicated, "save_16bit")).pageable_peak, 2 * largest);
  EXPECT_EQ(live(replicated, phase(replicated, "save_checkpoint")).pageable_peak, 4 * largest);
}

TEST(DeepSpeedSave, LeavesTheModelToTheFirstRank) {
  const RankProgram flat = build({"zero.stage=2"}, 1);
  EXPECT_EQ(live(flat, phase(flat, "save_16bit")).pageable_peak, 0);
  EXPECT_EQ(live(flat, phase(flat, "save_checkpoint")).pageable_peak, 4 * a);
  const RankProgram replicated = build({"zero.stage=0"}, 1);
  EXPECT_EQ(live(replicated, phase(replicated, "save_checkpoint")).pageable_peak, 0);
}

TEST(DeepSpeedSave, CopiesNothingOfAnOptimizerOnTheHost) {
  const RankProgram first = offloaded(), second = offloaded({}, 1);
  EXPECT_EQ(copied(first, phase(first, "save_checkpoint"), false), 2 * psi);
  EXPECT_EQ(copied(second, phase(second, "save_checkpoint"), false), 0);
}

/// Sizes of the files by name, without what pickling adds (less than 32 KiB each here).
std::map<std::string, std::int64_t> files_of(const std::vector<std::string>& sets) {
  std::vector<std::string> all{"world_size=2", "sequence=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  std::map<std::string, std::int64_t> sizes;
  // 1024 times as wide a vocabulary, so that payloads stand out: 2^18 x 8 elements in the embedding.
  std::string wide = tiny;
  wide.replace(wide.find("\"vocab_size\": 32"), 16, "\"vocab_size\": 262144");
  for (const CheckpointFile& file : checkpoint_files(make_scenario(wide, all))) sizes[file.name] = file.bytes.count;
  return sizes;
}
constexpr std::int64_t wide_psi = 262144 * 8 + 600;

void expect_file(const std::map<std::string, std::int64_t>& files, const std::string& name, std::int64_t payload) {
  ASSERT_TRUE(files.count(name)) << name;
  EXPECT_GE(files.at(name), payload) << name;
  EXPECT_LE(files.at(name), payload + 32768) << name;
}

TEST(CheckpointFiles, OfStage2HoldTheWeightsOnceAndTheStateInParts) {
  const auto files = files_of({"zero.stage=2"});
  EXPECT_EQ(files.size(), 7u);
  expect_file(files, "save_16bit/m.bin", 2 * wide_psi);
  expect_file(files, "checkpoint/global_step1/mp_rank_00_model_states.pt", 2 * wide_psi);
  for (const char* name : {"checkpoint/global_step1/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                           "checkpoint/global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"}) {
    expect_file(files, name, 6 * wide_psi);
  }
  EXPECT_EQ(files.at("checkpoint/latest"), 12);
}

TEST(CheckpointFiles, OfStage0HoldTheStateInTheModelFile) {
  const auto files = files_of({"zero.stage=0"});
  EXPECT_EQ(files.size(), 3u);
  expect_file(files, "checkpoint/global_step1/mp_rank_00_model_states.pt", 14 * wide_psi);
}

TEST(CheckpointFiles, OfStage3GatherWeightsOnlyWhenAsked) {
  EXPECT_EQ(files_of({"zero.stage=3"}).count("save_16bit/m.bin"), 0u);
  const auto files = files_of({"zero.stage=3", "zero.stage3_gather_16bit_weights_on_model_save=true"});
  expect_file(files, "save_16bit/m.bin", 2 * wide_psi);
  expect_file(files, "checkpoint/global_step1/zero_pp_rank_1_mp_rank_00_model_states.pt", 0);
  expect_file(files, "checkpoint/global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 6 * wide_psi);
}

TEST(CheckpointFiles, OfNativeExpertsAreOneEach) {
  const auto files = files_of({"zero.stage=2", "expert_parallel=2", "moe.implementation=native", "moe.num_experts=4"});
  for (const char* expert : {"0", "1", "2", "3"}) {
    expect_file(files, std::string("checkpoint/global_step1/layer_0_expert_") + expert + "_mp_rank_00_model_states.pt",
                2 * 3 * 128);
  }
  // Dense weights and the gate, the tied embedding under both its names.
  expect_file(files, "checkpoint/global_step1/mp_rank_00_model_states.pt",
              2 * (wide_psi - 3 * 128 + 4 * 8) + 2 * 262144 * 8);
}

TEST(CheckpointFiles, AreDeepSpeedsOnly) {
  EXPECT_THAT(checkpoint_files(make_scenario(tiny, {"engine=fsdp2", "sequence=4"})), IsEmpty());
}

}  // namespace
}  // namespace plimsoll
