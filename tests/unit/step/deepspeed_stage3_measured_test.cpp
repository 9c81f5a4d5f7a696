// ZeRO stage 3 against what was measured on two H200: allocations of steady steps, event by event, and the number and size of
// their gathers.
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/account/allocator_trace.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

constexpr const char* llama_1b = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
  "tie_word_embeddings": true, "max_position_embeddings": 8192})";
constexpr const char* llama_7b = R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
  "tie_word_embeddings": false, "max_position_embeddings": 8192})";
constexpr const char* mixtral = R"({"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3584, "vocab_size": 32000,
  "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false, "output_router_logits": true,
  "max_position_embeddings": 8192})";
constexpr const char* qwen3_moe = R"({"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 3072,
  "moe_intermediate_size": 512, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 151936,
  "tie_word_embeddings": false, "output_router_logits": true, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "max_position_embeddings": 8192})";

RankProgram build(const char* config, std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"zero.stage=3", "sequence=2048", "gradient_clipping=1.0", "construction=zero_init"});
  RankProgram program;
  build_deepspeed(make_scenario(config, sets, "2xh200"), 0, program);
  return program;
}

/// Smaller ones are counters, norms and small activations, which are not all recorded.
constexpr std::int64_t least = 300'000;

/// Frees of weights and gradients are logged when their stream is done with them: only allocations compare.
std::vector<std::int64_t> measured(const std::string& name) {
  std::vector<std::int64_t> sizes;
  for (const AllocatorTrace::Event& event : load_trace(PLIMSOLL_SOURCE_DIR, name).events) {
    if (event.size >= least) sizes.push_back(event.size);
  }
  return sizes;
}

std::vector<std::int64_t> recorded(const RankProgram& program) {
  std::vector<std::int64_t> sizes;
  for (const BufferDecl* buffer : allocated(program, steady(program))) {
    if (buffer->pool != Lane::host && buffer->size.count >= least) sizes.push_back(buffer->size.count);
  }
  return sizes;
}

TEST(Stage3Measured, EveryAllocationOfADenseStepAgrees) {
  const std::vector<std::int64_t> expected = measured("ds-z3-llama1b-mb2");
  EXPECT_EQ(expected.size(), 1718u);
  EXPECT_EQ(recorded(build(llama_1b, {"micro_batch=2"})), expected);
}

TEST(Stage3Measured, EveryAllocationOfAStepWithLeafModulesAgrees) {
  const std::vector<std::int64_t> expected = measured("ds-z3-mixtral-leaf-mb4");
  EXPECT_EQ(expected.size(), 1451u);
  EXPECT_EQ(recorded(build(mixtral, {"micro_batch=4", "moe.implementation=grouped", "moe.leaf=true"})), expected);
}

struct Gathers {
  std::int64_t calls = 0, elements = 0;
  bool operator==(const Gathers&) const = default;
};

/// Gathers of forward and backward in the steady step, without those at the end of the optimizer's step.
Gathers gathers_of(const RankProgram& program) {
  Gathers result;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const auto* collective = std::get_if<Collective>(&program.ops[id].action);
    if (!collective || collective->kind != CollectiveKind::all_gather) continue;
    if (program.ops[id].issuer == Issuer::optimizer) continue;
    ++result.calls;
    result.elements += collective->full_size.count / size_of(collective->dtype);
  }
  return result;
}

// Calls and elements as counted in profiles and traces (elements are those of the whole calls).
TEST(Stage3Measured, GathersAgreeInNumberAndSize) {
  EXPECT_EQ(gathers_of(build(llama_1b, {"micro_batch=2"})), (Gathers{44, 1'479'016'448}));
  EXPECT_EQ(gathers_of(build(llama_1b,
                             {"micro_batch=2", "zero.reduce_bucket_size=50000000",
                              "zero.stage3_prefetch_bucket_size=20000000", "zero.stage3_max_live_parameters=300000000",
                              "zero.stage3_max_reuse_distance=0", "zero.stage3_param_persistence_threshold=0"})),
            (Gathers{131, 2'700'740'608}));
  EXPECT_EQ(gathers_of(build(llama_7b, {"micro_batch=1", "sequence=4096"})), (Gathers{395, 12'490'637'312}));
  EXPECT_EQ(gathers_of(build(mixtral, {"micro_batch=4", "moe.implementation=grouped", "moe.leaf=true"})),
            (Gathers{16, 1'336'410'112}));
  EXPECT_EQ(gathers_of(build(qwen3_moe, {"micro_batch=4", "moe.implementation=grouped", "moe.leaf=true"})),
            (Gathers{21, 2'154'561'536}));
}

// One call gathers for one communicator: at ep = 2 the experts are not sharded at all.
TEST(Stage3Measured, GathersOfAutoEpAgree) {
  EXPECT_EQ(gathers_of(build(mixtral, {"micro_batch=4", "moe.implementation=autoep", "expert_parallel=2"})),
            (Gathers{11, 138'149'888}));
  EXPECT_EQ(gathers_of(build(mixtral, {"micro_batch=4", "moe.implementation=autoep", "expert_parallel=1"})),
            (Gathers{39, 1'375'469'568}));
}

TEST(Stage3Measured, ReductionsOfA7BModelAgree) {
  const RankProgram program = build(llama_7b, {"micro_batch=1", "sequence=4096"});
  std::int64_t calls = 0, elements = 0;
  for (const Sent& sent : collectives(program, steady(program))) {
    if (sent.kind != CollectiveKind::reduce_scatter) continue;
    ++calls;
    elements += sent.elements;
  }
  EXPECT_EQ(calls, 14);
  EXPECT_EQ(elements, 6'738'415'616);
}

}  // namespace
}  // namespace plimsoll
