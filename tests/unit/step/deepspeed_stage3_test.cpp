// The job of a rank at ZeRO stage 3, on a model small enough to count by hand: one layer of hidden size 8 with
//   embedding (and tied head) 256, q 64, k 32, v 32, o 64, gate 128, up 128, down 128, three norms of 8
// = 856 elements in 11 parameters, 428 a rank of two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "planner/step/build_step.hpp"
#include "planner/step/engines/engines.hpp"
#include "planner/step/groups.hpp"
#include "planner/step/verify_step.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr const char* mixture = R"({"model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32, "num_local_experts": 4,
  "num_experts_per_tok": 2, "tie_word_embeddings": false, "max_position_embeddings": 64})";
constexpr std::int64_t psi = 856, part = psi / 2, largest = 256;
/// Two rotary tables of two fp32 numbers and a flag of four bytes.
constexpr std::int64_t small = 2 * 8 + 4;

RankProgram build(std::vector<std::string> sets, int rank = 0, const char* config = tiny) {
  std::vector<std::string> all{"world_size=2", "sequence=4", "zero.stage=3", "zero.reduce_bucket_size=1000",
                               "zero.stage3_param_persistence_threshold=0"};
  all.insert(all.end(), sets.begin(), sets.end());
  RankProgram program;
  build_deepspeed(make_scenario(config, all), rank, program);
  return program;
}

std::vector<std::int64_t> elements_of(const RankProgram& program, std::pair<OpId, OpId> ops, CollectiveKind kind) {
  std::vector<std::int64_t> result;
  for (const Sent& sent : collectives(program, ops)) {
    if (sent.kind == kind) result.push_back(sent.elements);
  }
  return result;
}

std::vector<std::int64_t> gathers(const RankProgram& program, std::string_view name) {
  return elements_of(program, phase(program, name), CollectiveKind::all_gather);
}

std::vector<std::int64_t> reductions(const RankProgram& program) {
  return elements_of(program, steady(program), CollectiveKind::reduce_scatter);
}

TEST(Stage3Construction, AParameterCosts6BytesPerElementWhileItIsMadeThenItsShard) {
  const RankProgram program = build({"construction=zero_init"});
  const LiveRange built = live(program, phase(program, "model_built"));
  // The tied head, made last, is sharded like any other.
  EXPECT_EQ(built.at_end.gpu_total(), 2 * part + 2 * largest / 2 + small);
  EXPECT_EQ(built.gpu_peak, 2 * part + 6 * largest + small);
  EXPECT_THAT(elements_of(program, phase(program, "model_built"), CollectiveKind::broadcast),
              ElementsAre(256, 64, 32, 32, 64, 128, 128, 128, 8, 8, 8, 256));
}

TEST(Stage3Construction, ParametersOfOneModuleAreCutTogether) {
  const RankProgram program = build({"construction=zero_init", "moe.implementation=grouped"}, 0, mixture);
  // Of the experts, [4, 32, 8] and [4, 8, 16] elements: the first is whole, in 16 bits, while the second is made.
  const auto ops = phase(program, "model_built");
  std::vector<std::string> names;
  for (const BufferDecl* buffer : allocated(program, ops)) {
    if (buffer->shape.numel() >= 512 || buffer->shape.numel() == 256) names.push_back(buffer->name);
  }
  EXPECT_THAT(names, ElementsAre("parameter in fp32", "model.embed_tokens.weight", "parameter in fp32",
                                 "model.layers.0.mlp.experts.gate_up_proj", "parameter in fp32",
                                 "model.layers.0.mlp.experts.down_proj", "shard", "shard", "parameter in fp32",
                                 "lm_head.weight"));
}

TEST(Stage3Construction, AModelOnTheDeviceIsCutByEngineInitialization) {
  const RankProgram program = build({"construction=gpu"});
  const LiveRange built = live(program, phase(program, "model_built"));
  EXPECT_EQ(built.at_end.gpu_total(), 2 * psi + small);
  EXPECT_EQ(built.gpu_peak, 2 * psi + 2 * largest + small) << "the tied head for a moment";
  const auto broadcasts = elements_of(program, phase(program, "initialized"), CollectiveKind::broadcast);
  EXPECT_EQ(broadcasts.size(), 11u);
}

TEST(Stage3Construction, AModelOnTheHostIsCastThereAndMovedWhole) {
  const RankProgram program = build({"construction=cpu"});
  const LiveRange built = live(program, phase(program, "model_built"));
  EXPECT_EQ(built.at_end.pageable, 4 * psi);
  EXPECT_EQ(built.pageable_peak, 4 * psi + 4 * largest);
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.pageable_peak, 4 * psi + 2 * largest) << "the first, largest parameter beside its 16-bit copy";
  EXPECT_EQ(init.at_end.pageable, 0);
}

TEST(Stage3Initialization, HoldsPartsMastersBucketAndGradientPartition) {
  const RankProgram program = build({});
  const LiveRange init = live(program, phase(program, "initialized"));
  const std::int64_t resident = 2 * part + 4 * part + 2 * 1000 + 2 * part + small;
  EXPECT_EQ(init.at_end.gpu_total(), resident);
  EXPECT_EQ(init.gpu_peak, std::max(2 * part + 8 * part + small, resident + 2 * largest));
  EXPECT_EQ(init.pageable_peak, 2 * part) << "defragmentation through the host";
}

TEST(Stage3Initialization, WithoutContiguousGradientsThereIsNoBucket) {
  const auto resident = [](std::vector<std::string> sets) {
    const RankProgram program = build(std::move(sets));
    return live(program, phase(program, "initialized")).at_end.gpu_total();
  };
  EXPECT_EQ(resident({}) - resident({"zero.contiguous_gradients=false"}), 2 * 1000);
}

TEST(Stage3Initialization, GathersEachParameterOnceOnTheComputeStream) {
  const RankProgram program = build({});
  const auto ops = phase(program, "initialized");
  EXPECT_THAT(elements_of(program, ops, CollectiveKind::all_gather),
              ElementsAre(256, 64, 32, 32, 64, 128, 128, 128, 8, 8, 8));
  for (OpId id = ops.first; id < ops.second; ++id) {
    if (std::holds_alternative<Collective>(program.ops[id].action)) {
      EXPECT_EQ(program.ops[id].lane, Lane::compute);
    }
  }
}

TEST(Stage3Initialization, GradientPartitionMayBeFp32) {
  const RankProgram program = build({"gradient_dtype=fp32"});
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.at_end.gpu_total(), 2 * part + 4 * part + 2 * 1000 + 4 * part + small);
}

TEST(Stage3Visits, ForwardThenBackwardInTheOrderOfTheModules) {
  const RankProgram program = build({});
  EXPECT_THAT(gathers(program, "first_step_forward"), ElementsAre(256, 8, 64, 32, 32, 64, 8, 128, 128, 128, 8, 256));
  // head, final norm, down, up, gate, post norm, o, v, k, q, input norm, embedding
  EXPECT_THAT(gathers(program, "first_step_backward"), ElementsAre(256, 8, 128, 128, 128, 8, 64, 32, 32, 64, 8, 256));
}

TEST(Stage3Visits, RecomputationWalksTheLayerAgainWithinBackward) {
  const RankProgram program = build({"recompute=full"});
  // head, final norm, down; then the layer's forward up to its last kept tensor (down is there already), which leaves every
  // module behind it; then the layer's backward.
  EXPECT_THAT(gathers(program, "first_step_backward"),
              ElementsAre(256, 8, 128, /* forward */ 8, 64, 32, 32, 64, 8, 128, 128, /* backward */ 128, 128, 8, 64, 32,
                          32, 64, 8, 256));
}

TEST(Stage3Visits, TheEmbeddingStaysFromItsLastFetchToTheEndOfBackward) {
  const RankProgram program = build({});
  const auto ops = phase(program, "steady_backward");
  OpId freed = 0, reduced = 0;
  for (OpId id = ops.first; id < ops.second; ++id) {
    if (const auto* free = std::get_if<Free>(&program.ops[id].action)) {
      if (std::string_view(program.buffers[free->buffer].name) == "model.embed_tokens.weight") freed = id;
    }
    if (std::holds_alternative<Collective>(program.ops[id].action)) reduced = id;
  }
  EXPECT_GT(freed, reduced) << "after the last flush";
}

// Where the workspace lies decides which remainders stay attached to it: with this order the allocated bytes of runs with
// CPU parameters agree exactly.
TEST(Stage3FirstStep, RotaryFrequenciesTakeTheFirstGemmWorkspace) {
  const RankProgram program = build({});
  std::vector<std::string> names;
  for (const BufferDecl* buffer : allocated(program, phase(program, "first_step_forward")))
    names.push_back(buffer->name);
  const auto place = [&](const char* name) { return std::find(names.begin(), names.end(), name) - names.begin(); };
  EXPECT_LT(place("cuBLAS workspace"), place("norm input in fp32"));
}

TEST(Stage3Lanes, GathersAndReductionsHaveTheirOwnUnlessTheyMayNotOverlap) {
  for (const bool overlap : {true, false}) {
    const RankProgram program = build({overlap ? "zero.overlap_comm=true" : "zero.overlap_comm=false"});
    const auto ops = phase(program, "steady_backward");
    for (OpId id = ops.first; id < ops.second; ++id) {
      const auto* collective = std::get_if<Collective>(&program.ops[id].action);
      if (!collective) continue;
      const Lane own = collective->kind == CollectiveKind::reduce_scatter ? Lane::reduce : Lane::gather;
      EXPECT_EQ(program.ops[id].lane, overlap ? own : Lane::compute);
    }
  }
}

TEST(Stage3Gradients, OneFlushTakesWhatFitsIntoTheBucket) { EXPECT_THAT(reductions(build({})), ElementsAre(psi)); }

TEST(Stage3Gradients, AFlushPrecedesTheGradientThatWouldNotFit) {
  // Ready: norm 8, down 128, up 128 | gate 128, post 8, o 64, v 32, k 32 | q 64, input norm 8 | embedding and head 256
  EXPECT_THAT(reductions(build({"zero.reduce_bucket_size=270"})), ElementsAre(264, 264, 72, 256));
}

TEST(Stage3Gradients, AGradientLargerThanTheBucketIsReducedFromItsOwnMemory) {
  const RankProgram program = build({"zero.reduce_bucket_size=200"});
  EXPECT_THAT(reductions(program), ElementsAre(136, 128, 200, 136, 256));
  EXPECT_THAT(sizes_of(program, steady(program), "interleaved gradients"), ElementsAre(2 * 136, 2 * 200, 2 * 136))
      << "neither up, alone in the bucket, nor the embedding, larger than it, is copied again";
}

TEST(Stage3Gradients, PartsArePaddedInTheReduction) {
  // Three ranks: ceil(256/3) = 86, 22, 11, 11, 22, 43, 43, 43, 3, 3, 3 elements
  const RankProgram program = build({"world_size=3"});
  EXPECT_THAT(reductions(program), ElementsAre(3 * (86 + 22 + 11 + 11 + 22 + 43 * 3 + 3 * 3)));
  EXPECT_THAT(sizes_of(program, steady(program), "interleaved gradients"), ElementsAre(2 * 870));
}

TEST(Stage3Gradients, WithoutReduceScatterTheBucketItselfIsAllReduced) {
  const RankProgram program = build({"zero.reduce_scatter=false"});
  EXPECT_THAT(elements_of(program, steady(program), CollectiveKind::all_reduce), ElementsAre(psi));
  EXPECT_THAT(sizes_of(program, steady(program), "scaled gradients"), ElementsAre(2 * psi));
  EXPECT_THAT(sizes_of(program, steady(program), "interleaved gradients"), IsEmpty());
}

// In fp32 all parts of a reduction are cast at once, in every micro-batch; with that type on the wire there is nothing to cast.
TEST(Stage3Gradients, SumsOfAnotherTypeTakeCastsOfAllPartsAtOnce) {
  const RankProgram program = build({"gradient_dtype=fp32", "gradient_accumulation=2"});
  for (const char* in : {"steady_accumulation", "steady_backward"}) {
    const std::vector<std::int64_t> casts = sizes_of(program, phase(program, in), "reduced gradient");
    EXPECT_EQ(casts.size(), 11u) << in;
    EXPECT_EQ(std::accumulate(casts.begin(), casts.end(), std::int64_t{0}), 4 * part) << in;
  }
  const RankProgram whole = build({"gradient_dtype=fp32", "zero.reduce_scatter=false"});
  EXPECT_THAT(sizes_of(whole, steady(whole), "reduced gradients"), ElementsAre(4 * psi));
  const RankProgram wide = build({"gradient_dtype=fp32", "communication_dtype=fp32"});
  EXPECT_THAT(sizes_of(wide, steady(wide), "reduced gradient"), IsEmpty());
}

TEST(Stage3Gradients, ALeafReducesItsGradientsTogetherInParameterOrder) {
  const RankProgram program =
      build({"moe.implementation=grouped", "moe.leaf=true", "zero.reduce_bucket_size=100000"}, 0, mixture);
  const auto ops = phase(program, "steady_backward");
  // Router, gate_up and down stay until the block's backward has ended: then each dies into the bucket.
  std::vector<std::int64_t> freed;
  for (OpId id = ops.first; id < ops.second; ++id) {
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!free) continue;
    const BufferDecl& buffer = program.buffers[free->buffer];
    if (buffer.category == Category::gradients && buffer.pool == Lane::compute) freed.push_back(buffer.shape.numel());
  }
  const auto router = std::find(freed.begin(), freed.end(), 4 * 8);
  ASSERT_GE(std::distance(router, freed.end()), 3);
  EXPECT_EQ(router[1], 4 * 32 * 8);
  EXPECT_EQ(router[2], 4 * 8 * 16);
}

TEST(Stage3Gradients, AutoEpFlushesWhereTheCommunicatorChanges) {
  const RankProgram program = build({"moe.implementation=autoep", "expert_parallel=2"}, 0, mixture);
  // norm and head | experts: a group of one | router alone | the rest
  const std::vector<std::int64_t> sizes = reductions(program);
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes[0], 8 + 256);
  EXPECT_EQ(sizes[1], 4 * 8);
}

TEST(Stage3Step, NormsInFp64ThenOneSubGroupFlatAndInFp32) {
  const RankProgram program = build({});
  const auto ops = phase(program, "steady_step");
  EXPECT_THAT(sizes_of(program, ops, "gradient in fp64"),
              ElementsAre(8 * 128, 8 * 32, 8 * 16, 8 * 16, 8 * 32, 8 * 64, 8 * 64, 8 * 64, 8 * 4, 8 * 4, 8 * 4));
  EXPECT_THAT(sizes_of(program, ops, "flat gradients"), ElementsAre(2 * part));
  EXPECT_THAT(sizes_of(program, ops, "gradients for the update"), ElementsAre(4 * part));
}

TEST(Stage3Step, Fp32AccumulationNeedsNoCast) {
  const RankProgram program = build({"gradient_dtype=fp32"});
  const auto ops = phase(program, "steady_step");
  EXPECT_THAT(sizes_of(program, ops, "flat gradients"), ElementsAre(4 * part));
  EXPECT_THAT(sizes_of(program, ops, "gradients for the update"), IsEmpty());
}

TEST(Stage3Step, ASubGroupEndsOnceItsPartsReachTheSize) {
  const RankProgram program = build({"zero.sub_group_size=140"});
  // Parts: 128, 32 | 16, 16, 32, 64, 64 | 64, 4, 4, 4
  EXPECT_THAT(sizes_of(program, phase(program, "steady_step"), "flat gradients"),
              ElementsAre(2 * 160, 2 * 192, 2 * 76));
}

TEST(Stage3Step, ASubGroupOfOneParameterIsNotFlattened) {
  const RankProgram program = build({"zero.sub_group_size=100"});
  // Parts: 128 | 32, 16, 16, 32, 64 | 64, 64 | 4, 4, 4
  EXPECT_THAT(sizes_of(program, phase(program, "steady_step"), "flat gradients"),
              ElementsAre(2 * 160, 2 * 128, 2 * 12));
}

TEST(Stage3Step, PersistentParametersAreGatheredOneByOneAtItsEnd) {
  const RankProgram program = build({"zero.stage3_param_persistence_threshold=32"});
  EXPECT_THAT(gathers(program, "steady_step"), ElementsAre(32, 32, 8, 8, 8));
  const LiveRange after = live(program, phase(program, "steady_step"));
  EXPECT_EQ(after.at_end.gpu.at(Category::gathered_parameters), 2 * (32 + 32 + 8 + 8 + 8));
}

TEST(Stage3Step, Fp16LooksForInfinitiesInTheWholePartition) {
  const RankProgram program = build({"precision=fp16"});
  const auto ops = phase(program, "steady_step");
  EXPECT_THAT(sizes_of(program, ops, "magnitude of gradients"), ElementsAre(2 * part));
  EXPECT_THAT(sizes_of(program, ops, "mask of infinities"), ElementsAre(part));
}

TEST(Stage3Accumulation, RepeatedMicroBatchesBalanceInTheFirstStepToo) {
  const RankProgram program = build({"gradient_accumulation=6", "zero.stage3_param_persistence_threshold=32"});
  ASSERT_EQ(program.repeats.size(), 2u);
  EXPECT_EQ(program.repeats[0].count, 3);
  EXPECT_EQ(program.repeats[1].count, 4);
  for (const Repeat& repeat : program.repeats) {
    std::int64_t net = 0;
    for (OpId id = repeat.first; id < repeat.end; ++id) {
      if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action))
        net += program.buffers[alloc->buffer].size.count;
      if (const auto* free = std::get_if<Free>(&program.ops[id].action))
        net -= program.buffers[free->buffer].size.count;
    }
    EXPECT_EQ(net, 0);
  }
}

std::vector<std::string> offload() {
  return {"offload.optimizer=cpu", "offload.parameters=cpu", "optimizer.implementation=torch_cpu",
          "construction=zero_init"};
}

TEST(Stage3Offload, KeepsTheBucketOnTheDeviceAndTheRestOnTheHost) {
  const RankProgram program = build(offload());
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.at_end.gpu_total(), 2 * 1000 + small);
  EXPECT_EQ(init.gpu_peak, 2 * 1000 + 2 * largest + largest + small) << "the shard is copied in beside its gather";
  EXPECT_EQ(init.at_end.pageable, 4 * part) << "masters";
  EXPECT_EQ(init.at_end.pinned, 2 * part + 4 * part + 2 * part) << "parameters, fp32 gradients, gradient partition";
  EXPECT_EQ(init.pageable_peak, 4 * part + 4 * part + 4 * part) << "zeros, and the gradient's pageable source";
  EXPECT_EQ(live(program, phase(program, "steady_step")).at_end.pageable, 12 * part);
}

TEST(Stage3Offload, PinsAsTheFlagsSay) {
  std::vector<std::string> sets = offload();
  sets.push_back("offload.pin_memory=false");
  const RankProgram program = build(sets);
  EXPECT_EQ(live(program, phase(program, "initialized")).at_end.pinned, 2 * part) << "the flat parameters always are";
}

TEST(Stage3Offload, MeasuresTheGradientOnTheDeviceAtTheBoundaryOnly) {
  std::vector<std::string> sets = offload();
  sets.push_back("gradient_accumulation=2");
  const RankProgram program = build(sets);
  EXPECT_THAT(sizes_of(program, phase(program, "steady_accumulation"), "gradient in float64"), IsEmpty());
  const auto ops = phase(program, "steady_backward");
  EXPECT_EQ(sizes_of(program, ops, "gradient in float64").size(), 11u);
  EXPECT_EQ(live(program, ops).at_end.gpu.at(Category::temporaries), 8 * 11) << "the norms, until the step";
}

TEST(Stage3Offload, ARatioKeepsWholeSubGroupsOnTheDevice) {
  Scenario scenario = make_scenario(
      tiny, {"world_size=2", "sequence=4", "zero.stage=3", "zero.sub_group_size=140", "zero.reduce_bucket_size=1000",
             "offload.optimizer=cpu", "optimizer.implementation=torch_cpu", "construction=zero_init"});
  scenario.plan.zero.offload_optimizer_ratio = 0.5;  // int(0.5 x 3) = 1 of the sub-groups of 160, 192 and 76 elements
  const StepProgram step = build_step(scenario, 0);
  EXPECT_THAT(verify_step(step), IsEmpty());
  const RankProgram& program = step.classes.front().program;
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.at_end.gpu_total(), 2 * part + 2 * 1000 + 4 * 160 + 4 * 160 + small) << "its master and its gradient";
  EXPECT_EQ(init.at_end.pageable, 4 * (192 + 76));
  const Live after = live(program, phase(program, "steady_step")).at_end;
  EXPECT_EQ(after.gpu.at(Category::optimizer_moments), 8 * 160);
  EXPECT_EQ(after.pageable, 12 * (192 + 76));
}

TEST(Stage3Offload, StatesOnNvmePassThroughPinnedBuffers) {
  const RankProgram program = build({"offload.optimizer=nvme", "offload.parameters=nvme",
                                     "optimizer.implementation=deepspeed_cpu", "construction=zero_init"});
  const LiveRange after = live(program, phase(program, "steady_step"));
  EXPECT_EQ(after.at_end.pageable, 0);
  // Four buffers of the sub-group's 428 x 4 bytes, rounded to 1024; five of 1e8 parameters; flat parameters, gradients.
  EXPECT_EQ(after.at_end.pinned, 4 * 2048 + 5 * 200'000'000 + 2 * part + 2 * part);
}

TEST(Stage3Save, TheWholeModelPassesThroughRank0sHostMemory) {
  for (const int rank : {0, 1}) {
    const RankProgram program = build({"zero.stage3_gather_16bit_weights_on_model_save=true"}, rank);
    const LiveRange saved = live(program, phase(program, "save_16bit"));
    EXPECT_EQ(saved.pageable_peak, rank == 0 ? 2 * psi : 0);
    EXPECT_EQ(saved.gpu_peak - saved.at_end.gpu_total(), 2 * largest) << "every rank gathers";
  }
}

TEST(Stage3Save, ACheckpointPassesOneStorageAtATime) {
  const RankProgram program = build({"zero.sub_group_size=140"});
  EXPECT_EQ(live(program, phase(program, "save_checkpoint")).pageable_peak, 4 * 192);
  EXPECT_EQ(live(build(offload()), {0, 0}).pageable_peak, 0);
}

// F.linear is replaced by one that does not, however the model was built.
TEST(Stage3Pins, OnlyWeightsThatEnterAsViewsSurviveTheirRelease) {
  const auto held = [](const char* set) {
    const RankProgram program = build({"zero.stage3_max_reuse_distance=0", set});
    Live forward = live(program, phase(program, "first_step_forward")).at_end;
    return forward.gpu[Category::gathered_parameters];
  };
  EXPECT_EQ(held("construction=zero_init"), 0);
  EXPECT_EQ(held("construction=gpu"), 0);
  EXPECT_EQ(held("construction=cpu"), 0);
  EXPECT_EQ(held("zero.memory_efficient_linear=false"), 2 * (64 + 32 + 32 + 64 + 3 * 128 + 256));
}

TEST(Stage3Pins, RecomputationKeepsWeightsByTheirStorageUntilTheirBackward) {
  const RankProgram program = build({"recompute=full", "construction=zero_init"});
  // In the first step every module drops its weights behind it, and backward gathers them again: q exists twice then.
  std::int64_t alive = 0, most = 0;
  const auto ops = phase(program, "first_step_backward");
  for (OpId id = ops.first; id < ops.second; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!alloc && !free) continue;
    const BufferDecl& buffer = program.buffers[alloc ? alloc->buffer : free->buffer];
    if (!std::string_view(buffer.name).ends_with("q_proj.weight") || buffer.category != Category::gathered_parameters)
      continue;
    alive += alloc ? 1 : -1;
    most = std::max(most, alive);
  }
  EXPECT_EQ(most, 2);
}

TEST(Stage3, StepsAreSoundUnderEveryOption) {
  for (const char* option :
       {"zero.overlap_comm=false", "zero.reduce_scatter=false", "zero.contiguous_gradients=false", "world_size=1",
        "zero.stage3_allgather_sequential=true", "zero.stage3_use_all_reduce_for_fetch_params=true", "world_size=7",
        "gradient_accumulation=3", "recompute=full", "zero.memory_efficient_linear=false", "communication_dtype=fp32",
        "zero.stage3_module_granularity_threshold=100", "precision=fp16", "zero.stage3_prefetch_bucket_size=0"}) {
    const Scenario scenario = make_scenario(tiny, {"world_size=2", "sequence=4", "zero.stage=3", option});
    EXPECT_THAT(verify_step(build_step(scenario, 0)), IsEmpty()) << option;
  }
}

}  // namespace
}  // namespace plimsoll
