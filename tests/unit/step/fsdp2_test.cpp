// fully_shard, rule by rule, on a model small enough to count by hand:
//
//   parameter   embedding   q    k    v    o   gate   up   down   2 norms   final norm   (the head is the embedding)
//   rows               32   8    4    4    8     16   16      8   8 + 8              8
//   elements          256   64  32   32   64    128  128    128   8 + 8              8
//
// On two ranks: a layer has G = 296 of 592 elements, the root 132 of 264.
#include "planner/step/engines/fsdp_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "planner/step/groups.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr std::int64_t layer = 592, root = 264, model = root + 2 * layer;
constexpr std::int64_t frequencies = 2 * 4 * 2;  // the rotary embedding's, twice two in fp32

RankProgram build(std::vector<std::string> sets = {}, int rank = 0) {
  std::vector<std::string> all{"engine=fsdp2", "world_size=2", "sequence=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  const Scenario scenario = make_scenario(tiny, all);
  RankProgram program;
  build_fsdp2(scenario, rank, program);
  return program;
}

struct Event {
  bool alloc = false;
  OpId at = 0;
  const BufferDecl* buffer = nullptr;
};

/// Allocations and frees of buffers of that name.
std::vector<Event> events(const RankProgram& program, std::pair<OpId, OpId> ops, std::string_view name) {
  std::vector<Event> result;
  for (OpId id = ops.first; id < ops.second; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!alloc && !free) continue;
    const BufferDecl& buffer = program.buffers[alloc ? alloc->buffer : free->buffer];
    if (buffer.name == name) result.push_back({alloc != nullptr, id, &buffer});
  }
  return result;
}

int most_alive(const std::vector<Event>& of) {
  int alive = 0, most = 0;
  for (const Event& event : of) most = std::max(most, alive += event.alloc ? 1 : -1);
  return most;
}

OpId first_op(const RankProgram& program, std::pair<OpId, OpId> ops, std::string_view role, int layer_index) {
  for (OpId id = ops.first; id < ops.second; ++id) {
    const Op& op = program.ops[id];
    const bool bookkeeping = std::holds_alternative<Alloc>(op.action) || std::holds_alternative<Free>(op.action);
    if (!bookkeeping && op.lane != Lane::host && op.role == role && op.layer == layer_index) return id;
  }
  throw std::runtime_error("no op " + std::string(role));
}

bool waits(const RankProgram& program, OpId op, OpId on) {
  const auto list = program.waits(program.ops[op]);
  return std::find(list.begin(), list.end(), on) != list.end();
}

constexpr Sent gather(std::int64_t elements) {
  return {CollectiveKind::all_gather, DType::bf16, group_id::data_parallel, elements};
}
constexpr Sent reduction(std::int64_t elements, DType type = DType::fp32) {
  return {CollectiveKind::reduce_scatter, type, group_id::data_parallel, elements};
}

TEST(Fsdp2, GathersEveryGroupTwiceAndOneAheadInBackward) {
  const RankProgram program = build();
  EXPECT_THAT(collectives(program, phase(program, "steady_forward")),
              ElementsAre(gather(root), gather(layer), gather(layer)));
  // The root and the last layer's gather come before anything is reduced, each further gather before its layer's turn.
  EXPECT_THAT(
      collectives(program, phase(program, "steady_backward")),
      ElementsAre(gather(root), gather(layer), gather(layer), reduction(layer), reduction(layer), reduction(root)));
}

TEST(Fsdp2, KeepsAGatheredBufferInForwardUntilTheNextIsCopiedOut) {
  const RankProgram program = build();
  const auto forward = phase(program, "steady_forward");
  const auto outputs = events(program, forward, "gather output");
  ASSERT_EQ(outputs.size(), 6u);
  EXPECT_EQ(most_alive(outputs), 2);
  EXPECT_TRUE(outputs[1].alloc) << "the first layer's beside the root's";
  EXPECT_FALSE(outputs[2].alloc);
  EXPECT_GT(outputs[2].at, first_op(program, forward, "fsdp copy-out", 0));
  const auto loss = events(program, forward, "log-softmax");
  ASSERT_FALSE(loss.empty());
  EXPECT_GT(outputs.back().at, loss.front().at) << "the last layer's outlives the loss";
}

TEST(Fsdp2, DropsAGatheredBufferInBackwardAtItsCopyOut) {
  const RankProgram program = build();
  const auto backward = phase(program, "steady_backward");
  const auto outputs = events(program, backward, "gather output");
  EXPECT_EQ(most_alive(outputs), 1);
}

TEST(Fsdp2, KeepsAReduceInputUntilTheNextReductionBegins) {
  const RankProgram program = build();
  const auto backward = phase(program, "steady_backward");
  const auto inputs = events(program, backward, "reduce input");
  ASSERT_EQ(inputs.size(), 6u);
  EXPECT_EQ(most_alive(inputs), 1);
  EXPECT_EQ(inputs[0].buffer->size, Bytes(4 * layer));
  EXPECT_EQ(inputs[1].at + 1, inputs[2].at) << "freed just before the next one is allocated";
  EXPECT_GT(inputs[1].at, first_op(program, backward, "fsdp copy-out", 0));
}

TEST(Fsdp2, KeepsOneBufferOfShardedGradientsAGroupUntilTheStepEnds) {
  const RankProgram program = build();
  const Live after = live(program, phase(program, "steady_backward")).at_end;
  EXPECT_EQ(after.gpu.at(Category::gradients), 4 * model / 2);
  EXPECT_EQ(after.gpu.at(Category::gathered_parameters), 0);
  EXPECT_EQ(after.gpu.at(Category::communication_buckets), 0);
  const Live end = live(program, steady(program)).at_end;
  EXPECT_EQ(end.gpu.at(Category::gradients), 0);
  EXPECT_EQ(end.gpu.at(Category::parameters), 4 * model / 2 + frequencies);
}

TEST(Fsdp2, WithoutReshardingKeepsParametersUntilTheirBackward) {
  const RankProgram program = build({"fsdp.reshard_after_forward=false"});
  EXPECT_THAT(collectives(program, phase(program, "steady_backward")),
              ElementsAre(reduction(layer), reduction(layer), reduction(root)));
  const Live between = live(program, phase(program, "steady_forward")).at_end;
  EXPECT_EQ(between.gpu.at(Category::gathered_parameters), 2 * model);
}

TEST(Fsdp2, AddsLaterMicroBatchesIntoTheFirstOnesGradients) {
  const RankProgram program = build({"gradient_accumulation=3"});
  const auto range = steady(program);
  EXPECT_EQ(sizes_of(program, range, "sharded gradient").size(), 9u) << "each micro-batch reduces";
  const Live after = live(program, phase(program, "steady_backward")).at_end;
  EXPECT_EQ(after.gpu.at(Category::gradients), 4 * model / 2);
  EXPECT_NO_THROW(first_op(program, range, "fsdp accumulate gradient", 0));
}

TEST(Fsdp2, CastsTheGradientsOfABf16Reduction) {
  const RankProgram program = build({"fsdp.reduce_dtype=bf16"});
  const auto backward = phase(program, "steady_backward");
  EXPECT_THAT(sizes_of(program, backward, "sharded gradient"),
              ElementsAre(2 * 296, 4 * 296, 2 * 296, 4 * 296, 2 * 132, 4 * 132));
  EXPECT_THAT(collectives(program, backward, 2 * layer), IsEmpty());
  EXPECT_EQ(collectives(program, backward).back(), reduction(root, DType::bf16));
  EXPECT_EQ(live(program, backward).at_end.gpu.at(Category::gradients), 4 * model / 2);
}

TEST(Fsdp2, ShardsOf16BitsAreGatheredWithoutACast) {
  const RankProgram program = build({"master_weights=none", "optimizer.moments=bf16"});
  EXPECT_THAT(sizes_of(program, steady(program), "gather input"), IsEmpty());
  const Live end = live(program, steady(program)).at_end;
  EXPECT_EQ(end.gpu.at(Category::parameters), 2 * model / 2 + frequencies);
}

// Nothing to gather on one rank: each parameter is copied from a cast of its shard, which the loop names until it has made the
// next one's, or from the shard itself.
TEST(Fsdp2, OneRankCastsAShardBesideTheOneBefore) {
  const RankProgram program = build({"world_size=1"});
  const auto forward = phase(program, "steady_forward");
  EXPECT_THAT(collectives(program, forward), IsEmpty());
  const auto casts = events(program, forward, "gather input");
  ASSERT_EQ(casts.size(), 2u * (2 + 2 * 9));
  EXPECT_EQ(most_alive(casts), 2);
  EXPECT_EQ(casts[0].buffer->size.count, 2 * 256);
  EXPECT_FALSE(casts.back().alloc);
  const RankProgram pure = build({"world_size=1", "master_weights=none", "optimizer.moments=bf16"});
  EXPECT_THAT(events(pure, steady(pure), "gather input"), IsEmpty());
}

TEST(Fsdp2, PadsRowsThatTheRanksDoNotDivide) {
  // On three ranks: embedding 11 of 32 rows, q, o, down, norms 3 of 8, k, v 2 of 4, gate, up 6 of 16.
  const std::int64_t shard = 3 * 8 + 2 * 2 * 8 + 3 * 8 + 2 * 6 * 8 + 3 * 16 + 3 + 3;
  const RankProgram first = build({"world_size=3"});
  const auto forward = phase(first, "steady_forward");
  EXPECT_THAT(collectives(first, forward), ElementsAre(gather(3 * (88 + 3)), gather(3 * shard), gather(3 * shard)));
  EXPECT_EQ(live(first, steady(first)).at_end.gpu.at(Category::parameters), 4 * (88 + 3 + 2 * shard) + frequencies);
  // The last rank has 10 rows of the embedding and pads one; its moments have no padding.
  const RankProgram last = build({"world_size=3"}, 2);
  EXPECT_EQ(live(last, steady(last)).at_end.gpu.at(Category::parameters), 4 * (88 + 3 + 2 * shard) + frequencies);
  EXPECT_EQ(sizes_of(last, phase(last, "first_step_step"), "adam first moment").front(), 4 * 80);
  EXPECT_EQ(sizes_of(first, phase(first, "first_step_step"), "adam first moment").front(), 4 * 88);
}

TEST(Fsdp2, LeavesARankWithoutRowsOut) {
  // Twelve ranks: a norm of 8 rows has one on each of the first eight ranks, k and v of 4 rows on the first four.
  const RankProgram program = build({"world_size=12"}, 11);
  EXPECT_THAT(sizes_of(program, phase(program, "first_step_step"), "adam first moment"), IsEmpty())
      << "embedding: 11 ranks of 3 rows have all 32; gate and up: 8 of 2";
}

TEST(Fsdp2, SumsShardedGradientsOverReplicas) {
  const RankProgram program = build({"world_size=8", "fsdp.replicate=4"});
  const auto all = collectives(program, phase(program, "steady_backward"));
  const Sent sum{CollectiveKind::all_reduce, DType::fp32, group_id::replicate, layer / 2};
  EXPECT_EQ(all[0], (Sent{CollectiveKind::all_gather, DType::bf16, group_id::shard, root}));
  EXPECT_EQ(all[3], (Sent{CollectiveKind::reduce_scatter, DType::fp32, group_id::shard, layer}));
  EXPECT_EQ(all[4], sum);
}

TEST(Fsdp2, HoldsReducedGradientsOfReplicasToTheEndOfBackward) {
  const RankProgram program = build({"world_size=4", "fsdp.replicate=2", "fsdp.reduce_dtype=bf16"});
  const auto reduced = events(program, phase(program, "steady_backward"), "sharded gradient");
  int narrow = 0, most = 0;
  for (const Event& event : reduced) {
    if (event.buffer->dtype == DType::bf16) most = std::max(most, narrow += event.alloc ? 1 : -1);
  }
  EXPECT_EQ(most, 3) << "one a group";
  EXPECT_EQ(narrow, 0);
}

TEST(Fsdp2, RecomputesWithTheWeightsThatAreThere) {
  const RankProgram plain = build(), recomputed = build({"recompute=full"});
  EXPECT_EQ(collectives(plain, steady(plain)), collectives(recomputed, steady(recomputed)));
}

TEST(Fsdp2, SumsTheTwoGradientsOfATiedHeadInAThirdTensor) {
  const RankProgram program = build();
  const auto backward = phase(program, "steady_backward");
  const auto sums = events(program, backward, "sum of gradients");
  ASSERT_FALSE(sums.empty());
  EXPECT_EQ(sums.back().buffer->size, Bytes(2 * 256)) << "the head's is a transposed view: nothing is added in place";
}

TEST(Fsdp2, OrdersItsStreams) {
  const RankProgram program = build();
  const auto backward = phase(program, "steady_backward");
  const OpId first_concatenation = first_op(program, backward, "fsdp chunk-cat", 1);
  const OpId first_scatter = first_op(program, backward, "fsdp reduce-scatter", 1);
  EXPECT_TRUE(waits(program, first_scatter, first_concatenation));
  EXPECT_EQ(program.ops[first_scatter].lane, Lane::reduce);
  const OpId table = first_op(program, backward, "fsdp chunk-cat table", 0);
  EXPECT_TRUE(waits(program, table, first_scatter)) << "the next copy-in waits for the last reduction";
  const OpId gathered = first_op(program, backward, "fsdp all-gather", 1);
  EXPECT_TRUE(waits(program, gathered, first_op(program, backward, "fsdp copy-in", 1)));
  EXPECT_TRUE(waits(program, first_op(program, backward, "fsdp copy-out", 1), gathered));
  EXPECT_TRUE(waits(program, first_op(program, backward, "fsdp copy-in cast", 0),
                    first_op(program, backward, "fsdp copy-out", 1)));
  const auto step = phase(program, "steady_step");
  const OpId adam = first_op(program, step, "adamw", -1);
  const OpId last_scatter = first_op(program, backward, "fsdp reduce-scatter", -1);
  bool waited = false;
  for (OpId id = last_scatter; id <= adam; ++id) {
    if (program.ops[id].lane == Lane::compute) waited = waited || waits(program, id, last_scatter);
  }
  EXPECT_TRUE(waited) << "the optimizer comes after the last reduction";
}

TEST(Fsdp2, ClipsByTheNormOverAllShards) {
  const RankProgram program = build({"gradient_clipping=1.0"});
  const auto sums = collectives(program, phase(program, "steady_step"), 1);
  EXPECT_THAT(sums, ElementsAre(Sent{CollectiveKind::all_reduce, DType::fp32, group_id::data_parallel, 1}));
}

TEST(Fsdp2, DrawsWeightsShardByShardAfterMeta) {
  const RankProgram program = build();
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.gpu_peak, 4 * model / 2 + 2 * (4 * 128)) << "two temporaries of the embedding's shard";
  EXPECT_EQ(init.at_end.gpu_total(), 4 * model / 2 + frequencies);
}

TEST(Fsdp2, HoldsTheWholeModelWhereItIsBuiltOnTheGpu) {
  const RankProgram program = build({"construction=gpu"});
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.gpu_peak, 4 * model + 4 * layer / 2) << "and the first layer's shards";
  EXPECT_EQ(init.at_end.gpu_total(), 4 * model / 2 + frequencies);
}

TEST(Fsdp2, MovesAGroupAtATimeWhereTheModelIsBuiltOnTheHost) {
  const RankProgram program = build({"construction=cpu"});
  const LiveRange init = live(program, phase(program, "initialized"));
  EXPECT_EQ(init.pageable_peak, 4 * model);
  EXPECT_EQ(init.at_end.pageable, 0);
  EXPECT_EQ(init.gpu_peak, 4 * (layer / 2 + layer + layer / 2)) << "one layer sharded, one whole and its shards";
}

TEST(Fsdp2, ForeachAdamKeepsOneListOfTheShardsSize) {
  const RankProgram program = build({"optimizer.implementation=foreach"});
  const auto step = phase(program, "steady_step");
  const LiveRange range = live(program, step);
  const LiveRange before = live(program, phase(program, "steady_backward"));
  EXPECT_EQ(range.gpu_peak - before.at_end.gpu_total(), 4 * model / 2);
}

// The tables of the two copy kernels, as a traced step of Llama 1B on two ranks shows them (bytes of each rank's part).
TEST(Fsdp2, ReadsTablesAsLargeAsMeasured) {
  const std::vector<std::int64_t> decoder{4194304, 1048576, 1048576, 4194304, 16777216, 16777216, 16777216, 2048, 2048};
  EXPECT_EQ(copy_out_table(decoder, 2, 132), Bytes(30008));
  EXPECT_EQ(copy_out_table({262668288, 2048}, 2, 132), Bytes(33184));
  std::vector<std::int64_t> wide = decoder;
  for (std::int64_t& bytes : wide) bytes *= 2;
  EXPECT_EQ(concatenation_table(wide), Bytes(475616));
  EXPECT_EQ(concatenation_table({2 * 262668288LL, 4096}), Bytes(2052224));
}

}  // namespace
}  // namespace plimsoll
