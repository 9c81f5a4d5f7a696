// What do low-rank adapters keep, and what do frozen weights leave out?  Counted by hand on two layers, from PEFT's forward and
// autograd's rules; the rows of tests/data/measured/h200_adapters.json say the same of real steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// h = 64, q 64, kv 32, I 128, V 96; N = 2 x 8 tokens.
constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96,
  "tie_word_embeddings": false, "max_position_embeddings": 64})";
constexpr std::int64_t n = 16, h = 64, kv = 32, rank = 4;

RankProgram build(std::vector<std::string> sets, void (*engine)(const Scenario&, int, RankProgram&) = build_ddp) {
  std::vector<std::string> all{"world_size=1", "micro_batch=2", "sequence=8"};
  all.insert(all.end(), sets.begin(), sets.end());
  RankProgram program;
  engine(make_scenario(tiny, all, "1xh200"), 0, program);
  return program;
}

const std::string q_and_v = R"(trainable={"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}})";

TEST(Adapters, AreTheOnlyParametersWithGradientsAndMoments) {
  const RankProgram program = build({"engine=ddp", "precision=bf16", q_and_v});
  const std::vector<std::int64_t> of_a_layer = {4 * rank * h, 4 * h * rank, 4 * rank * h, 4 * kv * rank};
  std::vector<std::int64_t> expected = of_a_layer;
  expected.insert(expected.end(), of_a_layer.begin(), of_a_layer.end());
  EXPECT_EQ(sizes_of(program, phase(program, "first_step_step"), "adam first moment"), expected)
      << "fp32, as PEFT casts";
  const Live at_end = live(program, phase(program, "steady_backward")).at_end;
  std::int64_t sum = 0;
  for (const std::int64_t bytes : expected) sum += bytes;
  EXPECT_EQ(at_end.gpu.at(Category::gradients), sum);
}

// The adapter's input is kept once a target, in fp32: x of q and x of v are two copies.
TEST(Adapters, KeepTheirInputInTheirOwnType) {
  const RankProgram program = build({"engine=ddp", "precision=bf16", q_and_v});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_forward"), "adapter input"),
              ElementsAre(4 * n * h, 4 * n * h, 4 * n * h, 4 * n * h));
  EXPECT_THAT(sizes_of(program, phase(program, "steady_forward"), "adapter's low rank"), Each(4 * n * rank));
}

TEST(Adapters, InOneTypeWithTheirLayerNeedNoCopies) {
  const RankProgram program = build({"engine=deepspeed", "zero.stage=2", q_and_v}, build_deepspeed);
  EXPECT_THAT(sizes_of(program, phase(program, "steady_forward"), "adapter input"), IsEmpty());
}

// zero.Init has sharded the layers when PEFT adds adapters in fp32, and the engine casts what is not sharded yet only: they
// stay in fp32.  Their master is a clone all the same, as large as they are (measured: 2 x 6.98 MB live after initialisation).
TEST(Adapters, StayInFp32AtStage3UnderZeroInit) {
  const RankProgram wide = build({"engine=deepspeed", "zero.stage=3", q_and_v}, build_deepspeed);
  EXPECT_THAT(sizes_of(wide, phase(wide, "steady_forward"), "adapter input"),
              ElementsAre(4 * n * h, 4 * n * h, 4 * n * h, 4 * n * h));
  const auto masters = sizes_of(wide, phase(wide, "initialized"), "master weights");
  EXPECT_EQ(masters, sizes_of(wide, phase(wide, "initialized"), "flat parameters"));
  EXPECT_EQ(masters.size(), 1u);
  const std::string narrow = R"(trainable={"lora": {"rank": 4, "targets": ["q_proj", "v_proj"], "dtype": "16bit"}})";
  for (const std::vector<std::string>& sets : {std::vector<std::string>{"engine=deepspeed", "zero.stage=3", narrow},
                                               {"engine=deepspeed", "zero.stage=3", "construction=gpu", q_and_v}}) {
    const RankProgram program = build(sets, build_deepspeed);
    EXPECT_THAT(sizes_of(program, phase(program, "steady_forward"), "adapter input"), IsEmpty());
    EXPECT_EQ(sizes_of(program, phase(program, "initialized"), "master weights").size(), 1u);
  }
}

// A dropout leaves a mask of a byte an element; A keeps its result, and the cast input dies with PEFT's forward.
TEST(Adapters, KeepTheMaskOfADropout) {
  const RankProgram program = build(
      {"engine=ddp", "precision=bf16", R"(trainable={"lora": {"rank": 4, "targets": ["q_proj"], "dropout": 0.1}})"});
  const std::pair<OpId, OpId> forward = phase(program, "steady_forward");
  EXPECT_THAT(sizes_of(program, forward, "dropout mask"), ElementsAre(n * h, n * h));
  EXPECT_THAT(sizes_of(program, forward, "adapter input after dropout"), ElementsAre(4 * n * h, 4 * n * h));
  // The first layer's input needs no gradient: nothing asks for its mask.
  EXPECT_EQ(sizes_of(program, phase(program, "steady_backward"), "gradient of a dropout").size(), 1u);
}

// Scores in memory: the first layer's keys have no gradient where queries alone are adapted, so its queries are not kept for
// them; where values are frozen too, its weights in 16 bits are not kept either.  What has no gradient is not computed.
TEST(Adapters, AttentionKeepsAnOperandForTheOthersGradientOnly) {
  const auto products = [](const char* trainable) {
    const RankProgram program = build({"engine=ddp", "precision=bf16", "attention=eager", trainable});
    return sizes_of(program, phase(program, "steady_backward"), "gradient of an attention product").size();
  };
  EXPECT_EQ(products("trainable=all"), 8u);
  EXPECT_EQ(products(R"(trainable={"lora": {"rank": 4, "targets": ["q_proj"]}})"), 6u);
  EXPECT_EQ(products(R"(trainable={"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}})"), 7u);
  const auto kept = [](const char* trainable) {
    const RankProgram program = build({"engine=ddp", "precision=bf16", "attention=eager", trainable});
    return live(program, phase(program, "steady_forward")).at_end.gpu.at(Category::activations);
  };
  const std::int64_t weights = 2 * 2 * 4 * 8 * 8;               // 16 bits, 2 sequences, 4 heads, 8 x 8
  const std::int64_t of_an_adapter = 4 * n * h + 4 * n * rank;  // the input of v's, and what B takes
  EXPECT_EQ(kept(R"(trainable={"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}})") -
                kept(R"(trainable={"lora": {"rank": 4, "targets": ["q_proj"]}})"),
            weights + 2 * of_an_adapter);
}

// DeepSpeed releases what a recomputation fetched of frozen weights when the module in whose backward it ran is left: the
// others of the layer are gathered once more for their own backward.
TEST(Adapters, FrozenWeightsOfARecomputationAreGatheredAgain) {
  const auto gathered = [](const char* trainable) {
    RankProgram program;
    build_deepspeed(make_scenario(tiny,
                                  {"world_size=2", "micro_batch=2", "sequence=8", "engine=deepspeed", "zero.stage=3",
                                   "zero.stage3_param_persistence_threshold=0", "recompute=full", trainable},
                                  "2xh200"),
                    0, program);
    return sizes_of(program, phase(program, "steady_backward"), "model.layers.0.mlp.gate_proj.weight").size();
  };
  EXPECT_EQ(gathered("trainable=all"), 0u) << "kept from forward, for it is used again soon";
  EXPECT_EQ(gathered(R"(trainable={"lora": {"rank": 4, "targets": ["down_proj"]}})"), 1u);
}

// A frozen linear layer keeps its weight's name only: no input.  Of the first layer's MLP nothing but silu and the product's
// factors is kept for the branch's own gradient.
TEST(FrozenLayers, KeepNoInputs) {
  const auto kept = [](const std::vector<std::string>& sets) {
    const RankProgram program = build(sets);
    const std::pair<OpId, OpId> forward = phase(program, "steady_forward");
    return live(program, forward).at_end.gpu.at(Category::activations);
  };
  const std::int64_t all = kept({"engine=ddp", "precision=bf16"});
  const std::int64_t attention_only = kept({"engine=ddp", "precision=bf16", R"(trainable=["self_attn"])"});
  // Frozen MLPs and norms: per layer the second norm's output (2 N h, the input of gate and up) and the product (2 N I, the
  // input of down) are not kept; the normalised rows are, for no weight's gradient, no more: 2 N h twice.  At the end the last
  // norm's normalised rows and the head's input go, too.  The first layer's input norm is not in the graph at all: its output
  // stays (the input of q, k and v), its fp32 input (4 N h), root (4 N) and normalised rows (2 N h) do not.
  const std::int64_t per_layer = 2 * n * h + 2 * n * 128 + 2 * n * h;
  EXPECT_EQ(all - attention_only, 2 * per_layer + 2 * n * h /* input norm of layer 1 */ + 2 * n * h /* last norm */ +
                                      2 * n * h /* head */ + (4 * n * h + 4 * n + 2 * n * h) /* layer 0's norm */);
}

TEST(FrozenLayers, GetNoGradients) {
  const RankProgram program = build({"engine=ddp", "precision=bf16", R"(trainable=["layers.1.mlp.down"])"});
  EXPECT_THAT(sizes_of(program, phase(program, "steady_backward"), "weight gradient"), ElementsAre(2 * 64 * 128));
  EXPECT_THAT(sizes_of(program, phase(program, "steady_backward"), "input gradient"), ElementsAre(2 * n * h))
      << "of the head's input: nothing below the trained layer needs one";
}

// NF4: half a byte an element, a byte of scale for each 64 and four for each 16,384; one 16-bit copy at a time.
TEST(FrozenLayers, InFourBitsAreWidenedForEachProduct) {
  const RankProgram program = build(
      {"engine=ddp", "precision=bf16", R"(trainable={"lora": {"rank": 4, "targets": ["q_proj"], "base": "nf4"}})"});
  std::vector<std::int64_t> packed;
  for (const BufferDecl* buffer : allocated(program, phase(program, "initialized"))) {
    if (std::string_view(buffer->name).ends_with("k_proj.weight")) packed.push_back(buffer->size.count);
  }
  EXPECT_THAT(packed, Each(kv * h / 2 + kv * h / 64 + 4));
  EXPECT_EQ(sizes_of(program, phase(program, "steady_forward"), "weight out of 4 bits").size(), 14u);
  // Backward needs a copy for each product with an input that needs a gradient: not for q, k and v of the first layer.
  EXPECT_EQ(sizes_of(program, phase(program, "steady_backward"), "weight out of 4 bits").size(), 11u);
}

TEST(Moments, InEightBitsHaveAScaleForEach256Elements) {
  const RankProgram program = build({"engine=ddp", "precision=fp32", "optimizer.moments=int8"});
  const std::pair<OpId, OpId> step = phase(program, "first_step_step");
  std::vector<std::int64_t> first = sizes_of(program, step, "adam first moment");
  ASSERT_GE(first.size(), 3u);
  EXPECT_EQ(first[0], 96 * h) << "the embedding: a byte an element";
  EXPECT_EQ(first[1], h * h);
  EXPECT_EQ(first[2], 4 * kv * h) << "fewer than 4096 elements stay in fp32";
  EXPECT_EQ(sizes_of(program, step, "scales of the first moment")[0], 4 * 96 * h / 256);
}

}  // namespace
}  // namespace plimsoll
