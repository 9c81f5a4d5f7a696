// Do the layers allocate and free what real ones do, in the same order?  Steps of small models and of models of two to four
// billion parameters, against the records in tests/data/allocator_traces.
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/account/allocator_trace.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

/// Three layers of width 640 with 8 query heads of 64.
std::string small(const std::string& type, const std::string& kv_heads, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 640, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": )" +
         kv_heads + R"(, "head_dim": 64, "intermediate_size": 1408, "vocab_size": 8192,
    "max_position_embeddings": 4096, "tie_word_embeddings": false)" +
         more + "}";
}

const std::string qwen3_moe = small("qwen3_moe", "2", R"(, "num_experts": 8, "num_experts_per_tok": 2,
  "moe_intermediate_size": 896, "output_router_logits": false, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [])");

constexpr const char* mixtral = R"({"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3584, "vocab_size": 32000,
  "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false, "output_router_logits": true,
  "max_position_embeddings": 8192})";
constexpr const char* llama_1b = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
  "max_position_embeddings": 8192, "tie_word_embeddings": true})";
constexpr const char* llama_of_experts = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 2048, "vocab_size": 128256,
  "max_position_embeddings": 8192, "tie_word_embeddings": true})";

struct Case {
  const char* trace;
  std::string config;
  std::vector<std::string> sets;
  std::int64_t least;  ///< smaller requests are not recorded
  std::size_t events;  ///< that the record has, so that an empty one is no success
  bool frees = true;   ///< false: frees are logged late in the record (a block that another stream used), and left out
};

/// Allocations as sizes, frees as negative sizes, of what was allocated in the step.
std::vector<std::int64_t> measured(const Case& one) {
  const AllocatorTrace trace = load_trace(PLIMSOLL_SOURCE_DIR, one.trace);
  std::vector<std::int64_t> sizes(trace.ids), events;
  for (const AllocatorTrace::Event& event : trace.events) {
    if (event.size > 0) sizes[event.id] = event.size;
    if (sizes[event.id] < one.least || (event.size == 0 && !one.frees)) continue;
    events.push_back(event.size > 0 ? event.size : -sizes[event.id]);
  }
  return events;
}

std::vector<std::int64_t> traced(const Case& one) {
  const bool one_rank = std::find(one.sets.begin(), one.sets.end(), "world_size=1") != one.sets.end();
  const Scenario scenario = make_scenario(one.config, one.sets, one_rank ? "1xh200" : "2xh200");
  RankProgram program;
  (scenario.plan.engine == Engine::ddp ? build_ddp : build_deepspeed)(scenario, 0, program);
  std::vector<bool> of_this_step(program.buffers.size(), false);
  std::vector<std::int64_t> events;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!alloc && !free) continue;
    const BufferId buffer = alloc ? alloc->buffer : free->buffer;
    if (alloc) of_this_step[buffer] = true;
    const BufferDecl& declared = program.buffers[buffer];
    if (!of_this_step[buffer] || declared.pool == Lane::host || declared.size.count < one.least) continue;
    if (alloc || one.frees) events.push_back(alloc ? declared.size.count : -declared.size.count);
  }
  return events;
}

class LayerEvents : public ::testing::TestWithParam<Case> {};

TEST_P(LayerEvents, AreTheMeasuredOnes) {
  const std::vector<std::int64_t> real = measured(GetParam()), mine = traced(GetParam());
  EXPECT_EQ(real.size(), GetParam().events);
  ASSERT_EQ(mine.size(), real.size());
  for (std::size_t i = 0; i < real.size(); ++i) ASSERT_EQ(mine[i], real[i]) << "event " << i << " of " << real.size();
}

/// One process; micro-batches of two sequences of 1024 unless stated.
std::vector<std::string> alone(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"world_size=1", "micro_batch=2", "sequence=1024"});
  return sets;
}
std::vector<std::string> bf16(std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), {"engine=ddp", "precision=bf16", "optimizer.moments=bf16", "gradient_clipping=0"});
  return alone(std::move(sets));
}
std::vector<std::string> autocast(std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), {"engine=ddp", "precision=bf16_autocast", "gradient_clipping=0"});
  return alone(std::move(sets));
}
std::vector<std::string> native(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"engine=deepspeed", "zero.stage=2", "gradient_clipping=1", "moe.implementation=native"});
  return sets;
}

INSTANTIATE_TEST_SUITE_P(
    Layers, LayerEvents,
    ::testing::Values(
        Case{"small-llama-mha-bf16", small("llama", "8"), bf16(), 20'000, 608},
        Case{"small-llama-eager-bf16", small("llama", "2"), bf16({"attention=eager"}), 20'000, 720},
        Case{"small-llama-eager-amp", small("llama", "2"), autocast({"attention=eager"}), 20'000, 854},
        Case{"small-qwen3moe-bf16", qwen3_moe, bf16({"moe.implementation=grouped"}), 20'000, 1142},
        Case{"small-qwen3moe-amp", qwen3_moe, autocast({"moe.implementation=grouped"}), 20'000, 1192},
        Case{"amp-mixtral-s-mb2-s2048", mixtral, autocast({"moe.implementation=grouped", "sequence=2048"}), 300'000,
             2872},
        Case{"lora-bf16-qv", llama_1b,
             alone({"engine=ddp", "precision=bf16", "sequence=2048",
                    R"(trainable={"lora": {"rank": 16, "targets": ["q_proj", "v_proj"]}})"}),
             300'000, 3142},
        Case{"lora-amp-linear", llama_1b,
             autocast({"sequence=2048", R"(trainable={"lora": {"rank": 16, "targets": ["all-linear"]}})"}), 300'000,
             4878},
        Case{"small-native-k1", small("llama", "2"),
             alone(native({"moe.num_experts=4", "moe.top_k=1", "moe.capacity_factor=1.25"})), 20'000, 1228},
        Case{"small-native-k2-residual", small("llama", "2"),
             alone(native({"moe.num_experts=8", "moe.top_k=2", "moe.use_residual=true"})), 20'000, 1948},
        Case{"small-native-k3", small("llama", "2"), alone(native({"moe.num_experts=8", "moe.top_k=3"})), 20'000, 1816},
        Case{"ds-native-z2-ep2-k2-mb4", llama_of_experts,
             native({"world_size=2", "micro_batch=4", "sequence=2048", "expert_parallel=2", "moe.num_experts=8",
                     "moe.top_k=2"}),
             300'000, 3108, false}),
    [](const auto& info) {
      std::string name = info.param.trace;
      for (char& letter : name) letter = letter == '-' ? '_' : letter;
      return name;
    });

}  // namespace
}  // namespace plimsoll
