// DistributedDataParallel, rule by rule, on the model of fsdp2_test.cpp, all in fp32 under autocast.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/engines/ddp_reducer.hpp"
#include "planner/step/engines/engines.hpp"
#include "planner/step/groups.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr std::int64_t model = 264 + 2 * 592;

/// 2 layers of h = 512, I = 1024: wide enough for several buckets.  Layer: q, o 2^18, k, v 2^17, gate, up, down 2^19.
constexpr const char* wide = R"({"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2,
  "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 16384,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";

RankProgram build(const char* config, std::vector<std::string> sets = {}) {
  std::vector<std::string> all{"engine=ddp", "precision=bf16_autocast", "world_size=2", "sequence=4"};
  all.insert(all.end(), sets.begin(), sets.end());
  const Scenario scenario = make_scenario(config, all);
  RankProgram program;
  build_ddp(scenario, 0, program);
  return program;
}

std::vector<std::int64_t> reduced(const RankProgram& program, const char* in) {
  std::vector<std::int64_t> elements;
  for (const Sent& sent : collectives(program, phase(program, in))) {
    EXPECT_EQ(sent.kind, CollectiveKind::all_reduce);
    EXPECT_EQ(sent.group, group_id::data_parallel);
    elements.push_back(sent.elements);
  }
  return elements;
}

TEST(Ddp, OneRankReducesNothing) {
  const RankProgram program = build(tiny, {"world_size=1"});
  EXPECT_THAT(collectives(program, {0, static_cast<OpId>(program.ops.size())}), IsEmpty());
}

TEST(Ddp, KeepsGradientsTwice) {
  const RankProgram program = build(tiny);
  const Live after = live(program, phase(program, "steady_backward")).at_end;
  EXPECT_EQ(after.gpu.at(Category::gradients), 4 * model);
  EXPECT_EQ(after.gpu.at(Category::communication_buckets), 4 * model);
  EXPECT_EQ(live(program, steady(program)).at_end.gpu.at(Category::communication_buckets), 4 * model);
}

TEST(Ddp, SendsParametersFromTheFirstRankInFlatBuffers) {
  const RankProgram program = build(tiny);
  const auto init = phase(program, "initialized");
  EXPECT_THAT(collectives(program, init),
              ElementsAre(Sent{CollectiveKind::broadcast, DType::fp32, group_id::data_parallel, model}));
  EXPECT_THAT(sizes_of(program, init, "broadcast buffer"), ElementsAre(4 * model));
}

TEST(Ddp, ReducesTheFirstBackwardInOneBucket) {
  EXPECT_THAT(reduced(build(wide), "first_step_backward"), ElementsAre(16384 * 512 + 2 * 2360320 + 512));
}

TEST(Ddp, RebuildsBucketsInTheOrderInWhichGradientsCame) {
  // The order of a layer: down, up, gate, second norm, o, v, k, q, first norm; 2^20 bytes are 2^18 elements, 25 MiB are
  // 6,553,600.  Final norm 512 and down 524,288 close the first bucket; then come all the rest of both layers,
  // 2 * 2,360,320 - 524,288 = 4,196,352, and the embedding of 8,388,608, which ends the bucket that it finds open.
  EXPECT_THAT(reduced(build(wide), "steady_backward"), ElementsAre(512 + 524288, 4196352 + 8388608));
}

TEST(Ddp, ReducesABucketAsSoonAsItIsFull) {
  const RankProgram program = build(wide);
  const auto backward = phase(program, "steady_backward");
  OpId sum = 0, last_copy = 0;
  for (OpId id = backward.first; id < backward.second; ++id) {
    const Op& op = program.ops[id];
    if (std::holds_alternative<Collective>(op.action) && sum == 0) sum = id;
    if (std::string_view(op.role) == "gradient into bucket") last_copy = id;
  }
  EXPECT_LT(sum, last_copy);
  EXPECT_EQ(program.ops[sum].lane, Lane::reduce);
}

TEST(Ddp, ReducesTheLastMicroBatchOnly) {
  const RankProgram program = build(tiny, {"gradient_accumulation=3"});
  EXPECT_THAT(collectives(program, phase(program, "steady_accumulation")), IsEmpty());
  EXPECT_THAT(reduced(program, "steady_backward"), ElementsAre(model));
}

TEST(Ddp, ABucketClosesWithTheParameterThatReachesItsLimit) {
  std::deque<Parameter> parameters;
  for (const std::int64_t elements : {10, 30, 5, 40, 100, 1}) {
    Parameter& parameter = parameters.emplace_back();
    parameter.shape = {{elements}};
    parameter.dtype = DType::fp32;
  }
  std::vector<Parameter*> order;
  for (Parameter& parameter : parameters) order.push_back(&parameter);
  std::vector<std::size_t> sizes;
  for (const auto& bucket : assign_buckets(order, {100, 160})) sizes.push_back(bucket.size());
  EXPECT_THAT(sizes, ElementsAre(2u, 2u, 1u, 1u));  // 160 >= 100; 180 >= 160; 400; the rest
}

TEST(Ddp, BucketsHoldOneType) {
  std::deque<Parameter> parameters(3);
  for (Parameter& parameter : parameters) parameter.shape = {{10}};
  parameters[0].dtype = parameters[2].dtype = DType::bf16;
  parameters[1].dtype = DType::fp32;
  const auto buckets = assign_buckets({&parameters[0], &parameters[1], &parameters[2]}, {1000});
  ASSERT_EQ(buckets.size(), 2u);
  for (const auto& bucket : buckets) {
    for (const Parameter* parameter : bucket) EXPECT_EQ(parameter->dtype, bucket.front()->dtype);
  }
}

}  // namespace
}  // namespace plimsoll
