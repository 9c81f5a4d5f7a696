// Are the programs of FSDP2 and DDP sound with every option?  Buffers, hazards between lanes, waits.
#include <gtest/gtest.h>

#include "planner/step/build_step.hpp"
#include "planner/step/verify_step.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

constexpr const char* llama = R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 96,
  "tie_word_embeddings": true, "max_position_embeddings": 64})";
constexpr const char* qwen3_moe = R"({"model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "moe_intermediate_size": 16,
  "num_experts": 6, "num_experts_per_tok": 2, "vocab_size": 96, "tie_word_embeddings": false,
  "output_router_logits": true, "norm_topk_prob": true, "max_position_embeddings": 64})";

void expect_sound(std::vector<std::string> sets) {
  std::string all;
  for (const std::string& set : sets) all += set + " ";
  for (const char* model : {llama, qwen3_moe}) {
    for (const int rank : {0, 1}) {
      const StepProgram program = build_step(make_scenario(model, sets), rank);
      for (const std::string& fault : verify_step(program)) ADD_FAILURE() << all << "rank " << rank << ": " << fault;
    }
  }
}

std::vector<std::string> with(std::vector<std::string> sets, std::initializer_list<const char*> more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(TorchEngines, Fsdp2IsSoundWithEveryOption) {
  const std::vector<std::string> base{"engine=fsdp2", "world_size=4", "micro_batch=2", "sequence=8"};
  expect_sound(base);
  expect_sound(with(base, {"fsdp.reshard_after_forward=false", "gradient_accumulation=5"}));
  expect_sound(with(base, {"fsdp.reduce_dtype=bf16", "gradient_clipping=1.0", "recompute=full"}));
  expect_sound(with(base, {"fsdp.replicate=2", "fsdp.reduce_dtype=bf16", "gradient_accumulation=2"}));
  expect_sound(with(base, {"fsdp.replicate=4"}));
  expect_sound(with(base, {"world_size=7", "construction=cpu", "optimizer.implementation=foreach"}));
  expect_sound(with(base, {"world_size=1", "construction=gpu", "optimizer.implementation=single"}));
  expect_sound(with(base, {"precision=fp32"}));
  expect_sound(with(base, {"master_weights=none", "optimizer.moments=bf16", "attention=eager"}));
  expect_sound(with(base, {"compile=true"}));
  expect_sound(with(base, {"compile=true", "recompute=full", "gradient_accumulation=2"}));
}

TEST(TorchEngines, DdpIsSoundWithEveryOption) {
  const std::vector<std::string> base{"engine=ddp", "world_size=4", "micro_batch=2", "sequence=8"};
  expect_sound(with(base, {"precision=bf16_autocast"}));
  expect_sound(with(base, {"precision=bf16_autocast", "gradient_accumulation=5", "gradient_clipping=1.0"}));
  expect_sound(with(base, {"precision=bf16_autocast", "recompute=full", "construction=cpu"}));
  expect_sound(with(base, {"precision=fp32"}));
  expect_sound(with(base, {"precision=fp16", "master_weights=none", "optimizer.moments=bf16"}));
  expect_sound(with(base, {"precision=bf16", "master_weights=none", "optimizer.moments=bf16", "compile=true"}));
}

/// Bytes of a tensor of that name that are alive when the last tensor called `then` is allocated in forward.
std::int64_t alive_at(const RankProgram& program, std::string_view name, std::string_view then) {
  const auto [first, end] = phase(program, "steady_forward");
  std::int64_t now = 0, result = 0;
  for (OpId id = first; id < end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!alloc && !free) continue;
    const BufferDecl& buffer = program.buffers[alloc ? alloc->buffer : free->buffer];
    if (buffer.name == name) now += alloc ? buffer.size.count : -buffer.size.count;
    if (alloc && buffer.name == then) result = now;
  }
  return result;
}

// softmax(...) comes back beside attention's output, and Python's name for it, "_", lives until the layer returns.
TEST(TorchEngines, RecomputedLayersHoldTheScoresThatAttentionHandsBack) {
  const std::vector<std::string> base{"engine=ddp", "world_size=1", "sequence=8", "recompute=full"};
  const StepProgram program = build_step(make_scenario(llama, with(base, {"attention=eager"})), 0);
  const RankProgram& rank = program.classes.front().program;
  EXPECT_EQ(alive_at(rank, "attention weights", "mlp output"), 2 * 4 * 8 * 8) << "2 b A S^2";
  EXPECT_EQ(alive_at(rank, "attention weights in fp32", "mlp output"), 0);
}

// A compiled layer keeps an fp32 stream and its branch in 16 bits, and adds them wherever it needs the sum: the difference was
// 2 N h bytes a layer, 533 MB in a measured step of 15 layers.
TEST(TorchEngines, CompiledLayersUnderAutocastStoreNoSumOfStreamAndBranch) {
  const std::vector<std::string> base{"engine=ddp", "world_size=1", "sequence=8", "compile=true"};
  const auto sums = [&](const char* precision) {
    const StepProgram program = build_step(make_scenario(llama, with(base, {precision})), 0);
    const RankProgram& rank = program.classes.front().program;
    const auto forward = phase(rank, "steady_forward");
    return sizes_of(rank, forward, "residual stream").size();
  };
  EXPECT_EQ(sums("precision=bf16_autocast"), 0u);
  EXPECT_EQ(sums("precision=bf16"), 0u) << "there the branch is written over";
  const StepProgram program = build_step(make_scenario(llama, with(base, {"precision=bf16_autocast"})), 0);
  EXPECT_EQ(alive_at(program.classes.front().program, "attention projection", "loss"), 3 * 2 * 8 * 32)
      << "of every layer, 2 N h";
}

// torch.optim.AdamW(foreach=False): (v.sqrt() / c).add_(eps) holds the roots and their quotient, of one tensor at a time.
TEST(TorchEngines, AdamOneTensorAtATimeHoldsTwoTemporariesOfTheLargest) {
  const auto temporaries = [](const char* implementation) {
    const StepProgram program = build_step(
        make_scenario(llama, {"engine=ddp", "world_size=1", "sequence=8", "precision=bf16_autocast", implementation}),
        0);
    const RankProgram& rank = program.classes.front().program;
    const auto [first, end] = phase(rank, "steady_step");
    std::int64_t now = 0, most = 0;
    for (OpId id = first; id < end; ++id) {
      const auto* alloc = std::get_if<Alloc>(&rank.ops[id].action);
      const auto* free = std::get_if<Free>(&rank.ops[id].action);
      if (!alloc && !free) continue;
      const BufferDecl& buffer = rank.buffers[alloc ? alloc->buffer : free->buffer];
      const std::string_view name = buffer.name;
      if (name != "square roots of second moments" && name != "denominator") continue;
      now += alloc ? buffer.size.count : -buffer.size.count;
      most = std::max(most, now);
    }
    return most;
  };
  EXPECT_EQ(temporaries("optimizer.implementation=fused"), 0);
  EXPECT_EQ(temporaries("optimizer.implementation=single"), 2 * 4 * 96 * 32) << "the embedding's";
}

// Grouped products in fp32 (experts under autocast) are a loop over the experts, whose ends the host reads first: two products
// forward, four backward a layer.
TEST(TorchEngines, GroupedProductsInFp32WaitForTheHost) {
  const auto syncs = [](const char* precision) {
    const StepProgram program =
        build_step(make_scenario(qwen3_moe, {"engine=ddp", "world_size=1", "sequence=8", precision}), 0);
    const RankProgram& rank = program.classes.front().program;
    int count = 0;
    for (OpId id = rank.steady_first; id < rank.steady_end; ++id)
      count += std::holds_alternative<HostSync>(rank.ops[id].action) &&
               rank.ops[id].role == std::string_view("ends of the groups");
    return count;
  };
  EXPECT_EQ(syncs("precision=bf16_autocast"), 2 * (2 + 4));
  EXPECT_EQ(syncs("precision=bf16"), 0);
}

// The heads of a single key or value head are a view of it, until the product reads them.
TEST(TorchEngines, ASingleKeyHeadIsCopiedByTheProductThatReadsIt) {
  constexpr const char* single = R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 96,
    "tie_word_embeddings": true, "max_position_embeddings": 64})";
  const auto copies = [&](const char* batch, const char* name) {
    const StepProgram program =
        build_step(make_scenario(single, {"engine=ddp", "world_size=1", "sequence=8", "attention=eager", batch}), 0);
    const RankProgram& rank = program.classes.front().program;
    return sizes_of(rank, phase(rank, "steady_forward"), name).size();
  };
  EXPECT_EQ(copies("micro_batch=2", "repeated k"), 0u);
  EXPECT_EQ(copies("micro_batch=2", "k by head"), 1u);
  EXPECT_EQ(copies("micro_batch=2", "v by head"), 1u);
  EXPECT_EQ(copies("micro_batch=1", "k by head"), 0u);
}

// Above 3072 tokens the embedding's backward stages a row of h fp32 sums for each index that may occur and for every ten
// tokens: 96 of the vocabulary, 400 of 4000 tokens (read off a trace of 4608 tokens and 2048 words: 2508 rows).
TEST(TorchEngines, EmbeddingsBackwardStagesNoMoreRowsThanThereAreWords) {
  const StepProgram program =
      build_step(make_scenario(llama, {"engine=ddp", "world_size=1", "micro_batch=1", "sequence=4000"}), 0);
  const RankProgram& rank = program.classes.front().program;
  EXPECT_EQ(sizes_of(rank, phase(rank, "steady_backward"), "embedding partial sums"),
            (std::vector<std::int64_t>{4 * 32 * (96 + 400)}));
}

}  // namespace
}  // namespace plimsoll
