// DeepSpeed below stage 3, rule by rule, on a model small enough to count by hand:
//
//   parameter   embedding   q    k    v    o   gate   up   down   2 norms   final norm   (the head is the embedding)
//   elements        256    64   32   32   64    128  128    128     8 + 8            8   Psi = 856
//   offset            0   256  320  352  384    448  576    704   832, 840         848
//
// On two ranks a partition has 428 elements: the embedding, q, k, v and the first 44 of o belong to rank 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "planner/step/groups.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr std::int64_t psi = 856, a = 428, embedding = 256;
constexpr std::int64_t rotary = 2 * 4 * 2;  // two buffers of two fp32 frequencies

RankProgram build(std::vector<std::string> sets, int rank = 0) {
  std::vector<std::string> all{"world_size=2", "sequence=4", "zero.reduce_bucket_size=300"};
  all.insert(all.end(), sets.begin(), sets.end());
  const Scenario scenario = make_scenario(tiny, all);
  RankProgram program;
  build_deepspeed(scenario, rank, program);
  return program;
}

std::vector<std::int64_t> reduced(const RankProgram& program, const char* in = "steady_backward") {
  std::vector<std::int64_t> sizes;
  for (const Sent& sent : collectives(program, phase(program, in))) {
    EXPECT_EQ(sent.kind, CollectiveKind::all_reduce);
    EXPECT_EQ(sent.group, group_id::data_parallel);
    sizes.push_back(sent.elements);
  }
  return sizes;
}

TEST(DeepSpeedStage2, KeepsTwoAAndTwelveSmallABetweenSteps) {
  const RankProgram program = build({"zero.stage=2"});
  const Live live_now = live(program, steady(program)).at_end;
  EXPECT_EQ(live_now.gpu.at(Category::parameters), 2 * psi + rotary);
  EXPECT_EQ(live_now.gpu.at(Category::master_weights), 4 * a);
  EXPECT_EQ(live_now.gpu.at(Category::optimizer_moments), 8 * a + 4);  // and the fused step counter
  EXPECT_EQ(live_now.gpu.at(Category::gradients), 0);
  EXPECT_EQ(live_now.gpu.at(Category::communication_buckets), 0);
  const Live before = live(program, phase(program, "first_step_backward")).at_end;
  EXPECT_EQ(before.gpu.count(Category::optimizer_moments), 0u) << "moments come with the first step";
}

TEST(DeepSpeedStage2, PadsAGroupToTwiceItsRanks) {
  const RankProgram program = build({"zero.stage=2", "world_size=3"});
  const Live live_now = live(program, steady(program)).at_end;
  EXPECT_EQ(live_now.gpu.at(Category::parameters), 2 * 858 + rotary);  // roundup(856, 6)
  EXPECT_EQ(live_now.gpu.at(Category::master_weights), 4 * 286);
}

TEST(DeepSpeedStage2, InitPeaksWithZeroGradientsBesideTheMasters) {
  const RankProgram program = build({"zero.stage=2"});
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.gpu_peak, 2 * psi + 8 * a + rotary);
  EXPECT_EQ(init.at_end.gpu_total(), 2 * psi + 4 * a + rotary);
}

TEST(DeepSpeedStage2, FlattensOnTheHostWhereTheDeviceHasNoRoom) {
  Scenario scenario = make_scenario(tiny, {"world_size=2", "sequence=4", "zero.stage=2"});
  scenario.cluster.device.memory = Bytes(1'536'032'768 + 2 * psi + rotary + 2 * psi - 1);
  RankProgram program;
  build_deepspeed(scenario, 0, program);
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.pageable_peak, 2 * (2 * psi)) << "every parameter and the flat buffer";
  EXPECT_EQ(init.at_end.pageable, 0);
  EXPECT_EQ(init.at_end.gpu_total(), 2 * psi + 4 * a + rotary);
}

TEST(DeepSpeedStage2, ReducesTheBucketBeforeAGradientThatDoesNotFit) {
  // Ready: final norm 8, down 128, up 128 | gate 128, norm 8, o 64, v 32, k 32 | q 64, norm 8 | embedding 256
  EXPECT_THAT(reduced(build({"zero.stage=2"})), ElementsAre(264, 264, 72, 256));
}

TEST(DeepSpeedStage2, ReducesALargeParameterAlone) {
  // final norm 8, down 128 | up 128 | gate 128, norm 8 | o 64, v 32, k 32 | q 64, norm 8 | embedding, larger than 150
  const RankProgram program = build({"zero.stage=2", "zero.reduce_bucket_size=150"});
  EXPECT_THAT(reduced(program), ElementsAre(136, 128, 136, 128, 72, 256));
}

TEST(DeepSpeedStage2, FlattensOnlyWhatHasSeveralOwners) {
  // The second reduction has gate and norm of rank 1, o of both, v and k of rank 0; the third q of 0 and a norm of 1.
  const RankProgram program = build({"zero.stage=2"});
  EXPECT_THAT(sizes_of(program, steady(program), "flattened gradients"), ElementsAre(2 * 264, 2 * 72));
}

TEST(DeepSpeedStage2, KeepsWholeGradientsOfWhatTouchesItsPartition) {
  const auto partition = [](int rank) {
    const RankProgram program = build({"zero.stage=2"}, rank);
    return sizes_of(program, steady(program), "gradient partition");
  };
  EXPECT_THAT(partition(0), ElementsAre(2 * (256 + 64 + 32 + 32 + 64)));
  EXPECT_THAT(partition(1), ElementsAre(2 * (64 + 3 * 128 + 3 * 8)));
}

TEST(DeepSpeedStage2, FillsASecondPartitionInLaterMicroBatches) {
  const RankProgram program = build({"zero.stage=2", "gradient_accumulation=3"});
  const std::int64_t whole = 2 * 448;
  EXPECT_THAT(sizes_of(program, steady(program), "gradient partition"), ElementsAre(whole, whole, whole));
  const LiveRange last = live(program, phase(program, "steady_backward"));
  EXPECT_EQ(last.at_end.gpu.at(Category::gradients), whole) << "added into the first one";
}

TEST(DeepSpeedStage2, AccumulatesTheSlicesAloneInFp32) {
  const RankProgram program = build({"zero.stage=2", "gradient_accumulation=2", "gradient_dtype=fp32"});
  EXPECT_THAT(sizes_of(program, steady(program), "gradient partition"), ElementsAre(4 * a));
}

// final norm 8 | down | up | gate | norm 8, o 64 | v 32, k 32 | q 64, norm 8 | embedding: v and k are neighbours of one owner,
// but go apart into the fp32 sums, so that they are flattened; each own slice is added through a copy in fp32.
TEST(DeepSpeedStage2, DoesNotJoinTheSlicesThatItAddsUpInFp32) {
  const std::vector<std::string> sets{"zero.stage=2", "zero.reduce_bucket_size=100"};
  const RankProgram joined = build(sets);
  EXPECT_THAT(sizes_of(joined, steady(joined), "flattened gradients"), ElementsAre(2 * 72, 2 * 72));
  const RankProgram apart = build({sets[0], sets[1], "gradient_dtype=fp32"});
  EXPECT_THAT(sizes_of(apart, steady(apart), "flattened gradients"), ElementsAre(2 * 72, 2 * 64, 2 * 72));
  EXPECT_THAT(sizes_of(apart, phase(apart, "steady_backward"), "gradient in fp32"),
              ElementsAre(4 * 44, 4 * 32, 4 * 32, 4 * 64, 4 * 256));
}

TEST(DeepSpeedStage2, StepsWithItsFp32SumsAsTheyAre) {
  const RankProgram program = build({"zero.stage=2", "gradient_dtype=fp32"});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_step"), "flat gradients"), IsEmpty());
  EXPECT_THAT(sizes_of(program, phase(program, "steady_step"), "gradients in fp32"), IsEmpty());
}

// The last partition ends in padding (858 elements on three ranks, 856 of them parameters): a part of the sums, no tensor.
TEST(DeepSpeedStage2, PadsItsFp32SumsInPlace) {
  const RankProgram program = build({"zero.stage=2", "world_size=3", "gradient_dtype=fp32"}, 2);
  EXPECT_THAT(sizes_of(program, steady(program), "gradient partition"), ElementsAre(4 * 286));
  EXPECT_THAT(sizes_of(program, steady(program), "padding of gradients"), IsEmpty());
}

TEST(DeepSpeedOffload, SumsInFp32OnTheDevice) {
  const RankProgram program =
      build({"zero.stage=2", "offload.optimizer=cpu", "gradient_accumulation=2", "gradient_dtype=fp32"});
  EXPECT_THAT(sizes_of(program, steady(program), "gradient partition"), ElementsAre(4 * a));
  EXPECT_THAT(sizes_of(program, steady(program), "accumulated gradient"), IsEmpty());
  EXPECT_EQ(live(program, phase(program, "steady_accumulation")).at_end.gpu.at(Category::gradients), 4 * a);
  EXPECT_EQ(live(program, steady(program)).at_end.gpu.at(Category::gradients), 0);
}

// Without a bucket and with overlap_comm the gradients of rank 1 (final norm, down, up) live until the next reduction, for
// which the host waits for the device first.
TEST(DeepSpeedStage2, WithoutABucketOthersGradientsLiveToTheNextReduction) {
  const RankProgram program = build({"zero.stage=2", "zero.overlap_comm=true", "zero.contiguous_gradients=false"});
  EXPECT_THAT(sizes_of(program, steady(program), "reduce bucket"), IsEmpty());
  const auto [first, end] = phase(program, "steady_backward");
  int reductions = 0, syncs = 0;
  std::vector<std::int64_t> freed;
  for (OpId id = first; id < end; ++id) {
    const Op& op = program.ops[id];
    if (const auto* alloc = std::get_if<Alloc>(&op.action))
      reductions += std::string_view(program.buffers[alloc->buffer].name) == "flattened gradients";
    if (reductions != 1) continue;
    syncs += std::holds_alternative<HostSync>(op.action);
    const auto* free = std::get_if<Free>(&op.action);
    if (!free || program.buffers[free->buffer].category != Category::gradients) continue;
    EXPECT_EQ(syncs, 2) << "freed after the host has waited";
    freed.push_back(program.buffers[free->buffer].size.count);
  }
  EXPECT_THAT(freed, ::testing::UnorderedElementsAre(2 * 8, 2 * 128, 2 * 128));
}

TEST(DeepSpeedStage2, JoinsSlicesThenCastsThem) {
  const RankProgram two = build({"zero.stage=2"});
  EXPECT_THAT(sizes_of(two, phase(two, "steady_step"), "flat gradients"), ElementsAre(2 * a));
  EXPECT_THAT(sizes_of(two, phase(two, "steady_step"), "gradients in fp32"), ElementsAre(4 * a));
  // On four ranks the first partition (214) lies within the embedding: there is nothing to join.
  const RankProgram four = build({"zero.stage=2", "world_size=4"});
  EXPECT_THAT(sizes_of(four, phase(four, "steady_step"), "flat gradients"), IsEmpty());
  EXPECT_THAT(sizes_of(four, phase(four, "steady_step"), "gradients in fp32"), ElementsAre(4 * 214));
}

TEST(DeepSpeedStage2, TakesTheNormOnACopyInFp64OfOneSliceAfterTheOther) {
  const RankProgram program = build({"zero.stage=2"});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_step"), "gradient in fp64"),
              ElementsAre(8 * 256, 8 * 64, 8 * 32, 8 * 32, 8 * 44));
}

TEST(DeepSpeedStage2, OverlapsWithTwoBucketsOnAStreamOfItsOwn) {
  const RankProgram program = build({"zero.stage=2", "zero.overlap_comm=true"});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_backward"), "reduce bucket"), ElementsAre(600, 600));
  for (const BufferDecl* buffer : allocated(program, phase(program, "steady_backward"))) {
    const std::string_view name = buffer->name;
    if (name == "flattened gradients" || name == "gradient partition") {
      EXPECT_EQ(buffer->pool, Lane::reduce) << name;
    } else if (name == "reduce bucket") {
      EXPECT_EQ(buffer->pool, Lane::compute);
    }
  }
}

TEST(DeepSpeedStage2, CastsToAnotherCommunicationType) {
  const RankProgram program = build({"zero.stage=2", "zero.reduce_bucket_size=1000"});
  Scenario scenario = make_scenario(tiny, {"world_size=2", "sequence=4", "zero.stage=2"});
  scenario.plan.communication_dtype = DType::fp32;
  RankProgram in_fp32;
  build_deepspeed(scenario, 0, in_fp32);
  EXPECT_EQ(collectives(program, phase(program, "steady_backward")).front().dtype, DType::bf16);
  EXPECT_EQ(collectives(in_fp32, phase(in_fp32, "steady_backward")).front().dtype, DType::fp32);
  EXPECT_THAT(sizes_of(in_fp32, steady(in_fp32), "gradients in the communication type"), ElementsAre(4 * psi));
}

TEST(DeepSpeedStage2, WithoutOwnersReducesTheBucketInPlace) {
  const RankProgram program = build({"zero.stage=2", "zero.reduce_scatter=false"});
  EXPECT_THAT(reduced(program), ElementsAre(264, 264, 72, 256));
  EXPECT_THAT(sizes_of(program, steady(program), "flattened gradients"), IsEmpty());
}

TEST(DeepSpeedStage2, ReducesToOneOwnerAtATimeWhenAsked) {
  // A reduction to an owner has a broadcast's volume: rank 1's part of the second bucket is gate, norm and 20 of o.
  const RankProgram program = build({"zero.stage=2", "zero.use_multi_rank_bucket_allreduce=false"});
  std::vector<std::int64_t> sizes;
  for (const Sent& sent : collectives(program, phase(program, "steady_backward"))) {
    EXPECT_EQ(sent.kind, CollectiveKind::broadcast);
    sizes.push_back(sent.elements);
  }
  EXPECT_THAT(sizes, ElementsAre(264, 156, 108, 64, 8, 256));
}

TEST(DeepSpeedStage2, LeavesAloneWhatOneRankNeedNotSend) {
  const RankProgram program = build({"zero.stage=2", "world_size=1"});
  EXPECT_THAT(collectives(program, {0, program.steady_end}, 0), IsEmpty());
}

TEST(DeepSpeedStage1, ReducesOnceInOrderOfParametersAfterTheLastBackward) {
  // embedding 256, q... do not fit together: 256 | q 64, k 32, v 32, o 64 | gate 128, up 128 | down 128 and the norms
  const RankProgram program = build({"zero.stage=1", "gradient_accumulation=2"});
  EXPECT_THAT(reduced(program), ElementsAre(256, 192, 256, 152));
  EXPECT_THAT(collectives(program, phase(program, "steady_accumulation")), IsEmpty());
  EXPECT_THAT(sizes_of(program, steady(program), "reduce bucket"), ElementsAre(600)) << "kept through micro-batches";
}

TEST(DeepSpeedStage1, HoldsAllGradientsUntilThen) {
  const RankProgram program = build({"zero.stage=1", "gradient_accumulation=2"});
  const Live between = live(program, phase(program, "steady_accumulation")).at_end;
  EXPECT_EQ(between.gpu.at(Category::gradients), 2 * psi);
  EXPECT_EQ(between.gpu.at(Category::communication_buckets), 600);
  const Live after = live(program, phase(program, "steady_backward")).at_end;
  EXPECT_EQ(after.gpu.at(Category::gradients), 2 * 448) << "only what touches the partition";
}

TEST(DeepSpeedStage1, SumsFp16GradientsInFp32WhenAsked) {
  const RankProgram program =
      build({"zero.stage=1", "precision=fp16", "gradient_dtype=fp32", "gradient_accumulation=2"});
  const Live between = live(program, phase(program, "steady_accumulation")).at_end;
  EXPECT_EQ(between.gpu.at(Category::gradients), 4 * psi);
  EXPECT_THAT(sizes_of(program, steady(program), "reduce bucket"), ElementsAre(4 * 300));
  const Live after = live(program, phase(program, "steady_backward")).at_end;
  EXPECT_EQ(after.gpu.at(Category::gradients), 4 * a) << "only this rank's slices";
}

TEST(DeepSpeedStage1, ReducesAsGradientsBecomeReadyWithOverlap) {
  const RankProgram program = build({"zero.stage=1", "zero.overlap_comm=true", "gradient_accumulation=2"});
  EXPECT_THAT(reduced(program), ElementsAre(264, 264, 72, 256));
  EXPECT_THAT(collectives(program, phase(program, "steady_accumulation")), IsEmpty());
}

TEST(DeepSpeedVolumes, AreTwoThreeAndTwoPerMicroBatchPlusOneTimesPsi) {
  const auto moved = [](const std::vector<std::string>& sets) {
    const RankProgram program = build(sets);
    std::int64_t elements = 0;
    for (const Sent& sent : collectives(program, steady(program))) {
      elements += (sent.kind == CollectiveKind::all_reduce ? 2 : 1) * sent.elements;
    }
    return elements;
  };
  EXPECT_EQ(moved({"zero.stage=0", "gradient_accumulation=3"}), 2 * psi);
  EXPECT_EQ(moved({"zero.stage=1", "gradient_accumulation=3"}), 3 * psi);
  EXPECT_EQ(moved({"zero.stage=2", "gradient_accumulation=3"}), (2 * 3 + 1) * psi);
}

TEST(DeepSpeedBf16Optimizer, KeepsFp32GradientsOfAllParameters) {
  const std::vector<std::string> sets{"zero.stage=1", "gradient_dtype=fp32", "gradient_accumulation=2"};
  const RankProgram program = build(sets);
  EXPECT_EQ(live(program, steady(program)).at_end.gpu.at(Category::gradients), 4 * psi);
  const Live between = live(program, phase(program, "steady_accumulation")).at_end;
  EXPECT_EQ(between.gpu.at(Category::gradients), 4 * psi + 2 * psi) << "16-bit ones are zeroed, not freed";
  EXPECT_THAT(sizes_of(program, steady(program), "reduce bucket"), IsEmpty());
  EXPECT_THAT(reduced(program), ElementsAre(psi));
  EXPECT_THAT(sizes_of(program, steady(program), "gradients in the communication type"), ElementsAre(2 * psi));
}

// Not in the hooks: one after the other in the order of parameters, beside all 16-bit gradients.
TEST(DeepSpeedBf16Optimizer, AddsGradientsInFp32WhenBackwardHasEnded) {
  const RankProgram program = build({"zero.stage=1", "gradient_dtype=fp32"});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_backward"), "gradient in fp32"),
              ElementsAre(4 * 256, 4 * 64, 4 * 32, 4 * 32, 4 * 64, 4 * 128, 4 * 128, 4 * 128, 4 * 8, 4 * 8, 4 * 8));
  bool ended = false;
  for (const BufferDecl* buffer : allocated(program, phase(program, "steady_backward"))) {
    const std::string_view name = buffer->name;
    ended = ended || name == "gradient in fp32";
    EXPECT_FALSE(ended && name == "weight gradient") << "before backward had ended";
  }
}

TEST(DeepSpeedStage0, StepsOnceWithZerosAtInit) {
  const RankProgram program = build({"zero.stage=0"});
  const std::int64_t counters = 4 * 11;  // one a parameter
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.gpu_peak, 20 * psi + counters + rotary);
  EXPECT_EQ(init.at_end.gpu_total(), 14 * psi + counters + rotary);
}

TEST(DeepSpeedStage0, CastsEveryGradientToFp32BeforeItSteps) {
  const RankProgram program = build({"zero.stage=0"});
  const auto step = phase(program, "steady_step");
  const std::vector<std::int64_t> casts = sizes_of(program, step, "gradient in fp32");
  EXPECT_EQ(casts.size(), 11u);
  EXPECT_EQ(casts.front(), 4 * embedding);
  EXPECT_THAT(reduced(program), ElementsAre(psi)) << "one reduction, whatever reduce_bucket_size says";
}

TEST(DeepSpeedStage0, InFp32TheOptimizerWorksOnTheModelItself) {
  const RankProgram program = build({"zero.stage=0", "precision=fp32"});
  const Live live_now = live(program, steady(program)).at_end;
  EXPECT_EQ(live_now.gpu.at(Category::parameters), 4 * psi + rotary);
  EXPECT_EQ(live_now.gpu.count(Category::master_weights), 0u);
  EXPECT_EQ(live_now.gpu.at(Category::optimizer_moments), 8 * psi + 4 * 11);
}

TEST(DeepSpeedConstruction, DropsATiedHeadAfterItWasBuilt) {
  const RankProgram program = build({"zero.stage=2"});
  const LiveRange built = live(program, phase(program, "model_built"));
  EXPECT_EQ(built.gpu_peak, 2 * psi + 2 * embedding);
  EXPECT_EQ(built.at_end.gpu_total(), 2 * psi + rotary);
}

TEST(DeepSpeedConstruction, CastsAModelFromTheHostThereParameterByParameter) {
  const RankProgram program = build({"zero.stage=2", "construction=cpu"});
  const LiveRange built = live(program, phase(program, "model_built"));
  EXPECT_EQ(built.at_end.pageable, 4 * psi + rotary);
  EXPECT_EQ(built.at_end.gpu_total(), 0);
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.pageable_peak, 4 * psi + rotary + 2 * embedding) << "the first parameter is the largest";
  EXPECT_EQ(init.at_end.pageable, 0);
}

TEST(DeepSpeedConstruction, ConvertsToFp16OneByOne) {
  const RankProgram program = build({"zero.stage=1", "precision=fp16"});
  for (const BufferDecl* buffer : allocated(program, phase(program, "model_built")))
    EXPECT_NE(buffer->dtype, DType::fp16);
  EXPECT_EQ(live(program, phase(program, "initialized")).gpu_peak, 2 * psi + 8 * a + rotary) << "as in bf16";
}

}  // namespace
}  // namespace plimsoll
