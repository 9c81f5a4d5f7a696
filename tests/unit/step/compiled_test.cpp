// What does a compiled layer keep, and what does its second run compute?  On a model small enough to count by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

// h = 64, A = 4, K = 2, d = 16: q = 64, kv = 32; I = 128; N = 2 * 8 tokens.
std::string dense(int layers) {
  return R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 256, "tie_word_embeddings": true, "max_position_embeddings": 64,
    "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}
// E = 4, k = 2, I = 32; scores stay fp32.
std::string mixtral(int layers) {
  return R"({"model_type": "mixtral", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 32, "vocab_size": 256, "tie_word_embeddings": false, "max_position_embeddings": 64,
    "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}
constexpr std::int64_t h = 64, q = 64, kv = 32, heads = 4, tokens = 16;

RankProgram build(const std::string& config, std::vector<std::string> sets = {}) {
  std::vector<std::string> all{"engine=fsdp2", "world_size=2", "micro_batch=2", "sequence=8"};
  all.insert(all.end(), sets.begin(), sets.end());
  RankProgram program;
  build_fsdp2(make_scenario(config, all, "2xh200"), 0, program);
  return program;
}

/// Bytes that one more layer leaves behind when forward ends, besides the two 8-byte seeds of attention.
std::int64_t kept_by_a_layer(std::string (*config)(int), std::vector<std::string> sets) {
  const auto left = [&](int layers) {
    const RankProgram program = build(config(layers), sets);
    const Live end = live(program, phase(program, "steady_forward")).at_end;
    const auto experts = end.gpu.find(Category::expert_buffers);
    return end.gpu.at(Category::activations) + (experts == end.gpu.end() ? 0 : experts->second);
  };
  return left(2) - left(1) - 16;
}

TEST(Compiled, ADenseLayerKeepsWhatProductsMade) {
  const std::int64_t i = 128;
  const auto left = [](int layers) {
    RankProgram program;
    build_deepspeed(
        make_scenario(dense(layers), {"zero.stage=2", "compile=true", "micro_batch=2", "sequence=8"}, "2xh200"), 0,
        program);
    return live(program, phase(program, "steady_forward")).at_end.gpu.at(Category::activations);
  };
  EXPECT_EQ(left(2) - left(1) - 16, tokens * (8 * h + 8 + 4 * q + 4 * kv + 4 * heads + 6 * i));
  EXPECT_EQ(kept_by_a_layer(dense, {"compile=true"}), tokens * (8 * h + 8 + 4 * q + 4 * kv + 4 * heads + 6 * i));
  EXPECT_EQ(kept_by_a_layer(dense, {}), tokens * (16 * h + 8 + 4 * q + 4 * kv + 4 * heads + 8 * i));
}

TEST(Compiled, ModulesByThemselvesKeepWhatTheEagerOnesDoButForTheirNorms) {
  const std::int64_t i = 128;
  const auto left = [](int layers) {
    RankProgram program;
    build_deepspeed(
        make_scenario(dense(layers), {"zero.stage=3", "compile=true", "micro_batch=2", "sequence=8"}, "2xh200"), 0,
        program);
    return live(program, phase(program, "steady_forward")).at_end.gpu.at(Category::activations);
  };
  EXPECT_EQ(left(2) - left(1) - 16, tokens * (8 * h + 8 + 4 * q + 4 * kv + 4 * heads + 8 * i));
}

// Rows of more than 1024 elements are padded to 128 bytes: 1100 become 1152.
TEST(Compiled, LongRowsOfAProgramArePadded) {
  const auto wide = [](int layers) {
    std::string config = dense(layers);
    return config.replace(config.find("128"), 3, "1100");
  };
  EXPECT_EQ(kept_by_a_layer(wide, {"compile=true"}), tokens * (8 * h + 8 + 4 * q + 4 * kv + 4 * heads + 6 * 1152));
}

TEST(Compiled, AMixtureKeepsLogitsForProbabilities) {
  const std::int64_t i = 32, k = 2, e = 4;
  const std::int64_t attention = 8 * h + 8 + 4 * q + 4 * kv + 4 * heads;
  // The experts' offsets, four bytes each, are there once a layer.
  EXPECT_EQ(kept_by_a_layer(mixtral, {"compile=true"}),
            tokens * (attention + k * (4 * h + 6 * i) + 2 * e + 41 * k + 4) + 4 * e);
}

TEST(Compiled, ARecomputedLayerKeepsItsInputAlone) {
  EXPECT_EQ(kept_by_a_layer(dense, {"compile=true", "recompute=full"}) + 16, tokens * 2 * h);
}

int launches(const RankProgram& program, std::string_view role) {
  int count = 0;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const Op& op = program.ops[id];
    if (std::holds_alternative<Compute>(op.action) && op.role == role) ++count;
  }
  return count;
}

TEST(Compiled, TheSecondRunIsWhole) {
  // Forward, weight and input gradient; the second run of eager code stops before the last product, compiled code does not.
  EXPECT_EQ(launches(build(dense(1), {"recompute=full"}), "mlp.down_proj"), 3);
  EXPECT_EQ(launches(build(dense(1), {"recompute=full", "compile=true"}), "mlp.down_proj"), 4);
}

TEST(Compiled, LaunchesAreMarked) {
  const RankProgram program = build(dense(1), {"compile=true"});
  bool in_layer = true, outside = false;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const Op& op = program.ops[id];
    const auto* compute = std::get_if<Compute>(&op.action);
    if (!compute) continue;
    const bool compiled = program.kernels[compute->kernel].compiled;
    const std::string_view role = op.role;
    if (role.starts_with("mlp.") || role == "attention" || role == "attention backward")
      in_layer = in_layer && compiled;
    if (role == "lm_head" || role.starts_with("fsdp")) outside = outside || compiled;
  }
  EXPECT_TRUE(in_layer);
  EXPECT_FALSE(outside);
}

// While attention's backward runs, the weight gradients of the whole MLP are there, and none of attention's.
TEST(Compiled, ALayersGradientsComeTogether) {
  const RankProgram program = build(dense(1), {"compile=true"});
  std::int64_t products = 0, before_attention = -1, after = 0;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const Op& op = program.ops[id];
    const auto* compute = std::get_if<Compute>(&op.action);
    if (!compute) continue;
    const std::string_view role = op.role;
    const Kernel& kernel = program.kernels[compute->kernel];
    const bool of_weight = kernel.kind == KernelKind::gemm && kernel.k == tokens && role != "lm_head";
    products += of_weight;
    if (role == "attention backward") before_attention = products;
    if (role == "norms backward") after = products;
  }
  EXPECT_EQ(before_attention, 3);  // down, up, gate
  EXPECT_EQ(after, 3);
  EXPECT_EQ(products, 7);  // and at last o, v, k, q
}

TEST(Compiled, TheGatesGradientTakesUpsPlace) {
  // gate, up, gradient of the product, gradient of up: 8 N I at the highest point of the MLP's backward.
  const RankProgram program = build(dense(1), {"compile=true"});
  const auto backward = phase(program, "steady_backward");
  EXPECT_EQ(sizes_of(program, backward, "gradient of up").size(), 1u);
  EXPECT_TRUE(sizes_of(program, backward, "gradient of an activation").empty());
}

}  // namespace
}  // namespace plimsoll
