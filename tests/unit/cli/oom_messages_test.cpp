// Does a message decode to the tensor that asked?  Messages as frameworks print them, with the last lines of their
// tracebacks; each right answer and its bytes are derived by hand beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

using test::run_json;
using test::TemporaryFile;
using testing::StartsWith;

struct Case {
  const char* traceback;
  const char* size;  ///< as PyTorch prints it: of the segment, whole 2 MiB
  std::vector<std::string> inputs;
  const char* tensor;
  std::int64_t bytes;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.size << ", " << one.traceback; }

class OomOf : public testing::TestWithParam<Case> {};

TEST_P(OomOf, TheTensorThatAskedIsFirst) {
  const Case& one = GetParam();
  std::vector<std::string> arguments = {
      "oom", std::string(one.traceback) + "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate " +
                 one.size + ". GPU 0 has a total capacity of 79.15 GiB of which 11.19 MiB is free."};
  arguments.insert(arguments.end(), one.inputs.begin(), one.inputs.end());
  const auto json = run_json(arguments);
  ASSERT_FALSE(json["candidates"].empty());
  EXPECT_THAT(json["candidates"][0]["tensor"].get<std::string>(), StartsWith(one.tensor)) << json["candidates"].dump(1);
  EXPECT_EQ(json["candidates"][0]["bytes"].get<std::int64_t>(), one.bytes);
}

/// --model and --gpus: sizes alone.
std::vector<std::string> sizes_of(const char* model, std::initializer_list<const char*> sets) {
  std::vector<std::string> all = {"--model", model, "--gpus", "8"};
  for (const char* set : sets) all.insert(all.end(), {"--set", set});
  return all;
}

/// A whole scenario: the program is built.
std::vector<std::string> scenario(const char* model, const char* cluster, std::initializer_list<const char*> sets) {
  std::vector<std::string> all = {"--model", model, "--cluster", cluster};
  for (const char* set : sets) all.insert(all.end(), {"--set", set});
  return all;
}

constexpr const char* backward = "  File \"torch/autograd/graph.py\", line 825, in _engine_run_backward";
constexpr const char* grouped = "  File \"transformers/integrations/moe.py\", in grouped_mm_experts_forward";
constexpr const char* moments =
    "  File \"torch/optim/adam.py\", in _init_group\n    state[\"exp_avg\"] = torch.zeros_like(p)";
constexpr const char* fsdp_gather =
    "  File \"torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py\", in foreach_all_gather";
constexpr const char* swiglu = "    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))";

INSTANTIATE_TEST_SUITE_P(
    Weights, OomOf,
    testing::Values(
        // Copies of one weight: 4096 x 4096 in fp32; 4096 x 1024 in fp32.
        Case{"    state_dict[name] = p.detach().float().clone()  # model.layers.3.self_attn.q_proj.weight", "64.00 MiB",
             sizes_of("llama-3.1-8b", {"sequence=2048"}), "FP32 query or output projection", 4LL * 4096 * 4096},
        Case{"    state_dict[name] = p.detach().float().clone()  # model.layers.3.self_attn.k_proj.weight", "16.00 MiB",
             sizes_of("llama-3.1-8b", {}), "FP32 key or value projection", 4LL * 4096 * 1024},
        Case{"    state_dict[name] = param.float().clone()  # model.layers.0.mlp.down_proj.weight", "896.00 MiB",
             sizes_of("llama-3.1-70b", {}), "FP32 MLP weight", 4LL * 8192 * 28672},
        Case{"in fetch_sub_module\n  in _allgather_params_coalesced", "112.00 MiB",
             scenario("llama-3.1-8b", "8xh100", {"zero.stage=3", "sequence=2048"}), "one MLP weight in 16 bit",
             2LL * 4096 * 14336},
        // Autocast casts a weight where its linear runs.
        Case{swiglu, "86.00 MiB",
             scenario("llama-2-7b", "2xh200", {"engine=ddp", "precision=bf16_autocast", "sequence=2048"}),
             "one MLP weight in 16 bit", 2LL * 4096 * 11008},
        // A layer's 218,112,000 parameters, gathered in one buffer and reduced from one in fp32.
        Case{fsdp_gather, "418.00 MiB", scenario("llama-3.1-8b", "8xh100", {"engine=fsdp2"}),
             "one decoder layer, gathered", 2LL * 218112000},
        Case{"in foreach_reduce\n    reduce_scatter_input = torch.empty(", "834.00 MiB",
             scenario("llama-3.1-8b", "8xh100", {"engine=fsdp2"}), "reduce input", 4LL * 218112000},
        // The root: embedding, head and the last norm.
        Case{fsdp_gather, "1.96 GiB", scenario("llama-3.1-8b", "8xh100", {"engine=fsdp2"}), "gather output",
             2LL * (2 * 128256 * 4096LL + 4096)},
        Case{"in fetch_sub_module", "14.00 GiB", sizes_of("deepseek-v3", {"zero.stage=3"}),
             "one layer's fused gate+up expert tensor, gathered", 4LL * 256 * 2048 * 7168}));

INSTANTIATE_TEST_SUITE_P(
    States, OomOf,
    testing::Values(
        // 8,030,261,248 parameters over 8 ranks, 4 bytes each; whole, 2 bytes each.
        Case{"    weights_partition = "
             "self.parallel_partitioned_bit16_groups[i][partition_id].to(device).clone().float()",
             "3.74 GiB", sizes_of("llama-3.1-8b", {"zero.stage=2"}), "FP32 optimizer shard", 4LL * 8030261248 / 8},
        Case{"    flattened_buffer = self.flatten_dense_tensors_aligned(", "14.96 GiB",
             sizes_of("llama-3.1-8b", {"zero.stage=2"}), "flattened 16-bit weights", 2LL * 8030261248},
        Case{"    buf_0 = torch.empty(int(self.reduce_bucket_size))  # ipg_buckets", "954.00 MiB",
             sizes_of("llama-3.1-8b", {"zero.stage=2"}), "16-bit reduction bucket", 2LL * 500000000},
        Case{"in average_tensor\n    tensor_to_reduce = tensor", "1.02 GiB", sizes_of("qwen2.5-7b", {"zero.stage=2"}),
             "16-bit gradient of the embedding", 2LL * 152064 * 3584},
        // Each parameter has its own moments under DDP; the reducer's bucket of the same size does not come from Adam.
        Case{moments, "1002.00 MiB", scenario("llama-3.2-1b", "2xh100", {"engine=ddp", "precision=fp32"}),
             "FP32 embedding or output head (its gradient, master copy or moment)", 4LL * 128256 * 2048},
        // Below autograd's engine no bucket is made: the head's gradient.
        Case{backward, "1.96 GiB",
             scenario("llama-3.1-8b", "8xh200", {"engine=ddp", "precision=fp32", "micro_batch=1", "sequence=512"}),
             "FP32 embedding or output head (its gradient, master copy or moment)", 4LL * 128256 * 4096},
        Case{"    self._prepare_fp32_grad_for_sub_group(sub_group_id)", "3.73 GiB",
             sizes_of("llama-3.1-70b", {"zero.stage=3"}), "FP32 sub-group", 4LL * 1000000000}));

INSTANTIATE_TEST_SUITE_P(
    Activations, OomOf,
    testing::Values(
        Case{"in ForCausalLMLoss\n    logits = logits.float()", "9.28 GiB",
             scenario("qwen2.5-7b", "8xh100", {"zero.stage=2", "micro_batch=4", "sequence=4096"}), "FP32 logits",
             4LL * 4 * 4096 * 152064},
        // lm_head multiplies in 16 bit: 16384 tokens, not 8192 in fp32.
        Case{"    logits = self.lm_head(hidden_states[:, slice_indices, :])", "3.91 GiB", sizes_of("llama-3.1-8b", {}),
             "16-bit logits", 2LL * 16384 * 128256},
        // 4096 tokens are as many as the model is wide: the head's gradient has the same size, but is not asked for there.
        Case{"    shift_logits = logits[..., :-1, :].contiguous()", "1002.00 MiB",
             sizes_of("llama-3.1-8b", {"micro_batch=1", "sequence=4096"}), "16-bit logits", 2LL * 4096 * 128256},
        // 8192 tokens go to 2 of 8 experts each; the down projections of all experts have the same size.
        Case{grouped, "896.00 MiB",
             scenario("mixtral-8x7b", "8xh200", {"zero.stage=3", "micro_batch=2", "sequence=4096"}),
             "fused gate+up output of one MoE layer's experts", 4LL * 8192 * 2 * 14336},
        Case{grouped, "256.00 MiB",
             scenario("qwen3-30b-a3b", "8xh200", {"zero.stage=3", "micro_batch=2", "sequence=4096"}),
             "routed rows of one MoE layer", 2LL * 8192 * 8 * 2048},
        Case{"in eager_attention_forward\n    attn_weights = nn.functional.softmax(attn_weights, dtype=torch.float32)",
             "8.00 GiB", scenario("llama-3.1-8b", "8xh100", {"zero.stage=3", "attention=eager", "sequence=8192"}),
             "FP32 attention scores", 4LL * 32 * 8192 * 8192},
        Case{"    mask = eager_mask(", "2.00 GiB", sizes_of("llama-3.1-8b", {"micro_batch=1", "sequence=32768"}),
             "attention mask, 16-bit", 2LL * 32768 * 32768},
        // Rotated queries; the mask of two sequences has the same size.
        Case{"in apply_rotary_pos_emb\n    q_embed = (q * cos) + (rotate_half(q) * sin)", "64.00 MiB",
             sizes_of("llama-3.1-8b", {"micro_batch=2", "sequence=4096"}), "queries of one layer", 2LL * 8192 * 4096},
        Case{swiglu, "448.00 MiB",
             scenario("llama-3.1-8b", "8xh100", {"zero.stage=3", "micro_batch=4", "sequence=4096"}),
             "MLP activation of one layer", 2LL * 16384 * 14336},
        Case{"in LlamaRMSNorm.forward", "256.00 MiB",
             scenario("llama-3.1-8b", "1xh100", {"engine=ddp", "micro_batch=4", "sequence=4096"}),
             "hidden states, FP32", 4LL * 16384 * 4096}));

// Families that no engine builds still give their sizes: GPT-NeoX-20B's fused projection is 6144 x 3 * 6144, and GPT-2 XL's
// 1600 x 4800 in fp32 stands in a segment of its own, 29.3 MiB rounded to 30.
TEST(Oom, FusedProjectionsOfFamiliesThatAreNotBuiltAreKnownByTheirSizes) {
  const TemporaryFile neox(R"({"hidden_size": 6144, "num_attention_heads": 64, "vocab_size": 50432})");
  const TemporaryFile gpt2(R"({"n_embd": 1600, "n_head": 25, "vocab_size": 50257})");
  const auto first = [](const char* text, const TemporaryFile& model) {
    return run_json({"oom", text, "--model", model.path()})["candidates"][0];
  };
  const auto gathered = first("self.query_key_value\nin fetch_sub_module\nTried to allocate 216.00 MiB", neox);
  EXPECT_THAT(gathered["tensor"].get<std::string>(), StartsWith("fused query, key and value projection in 16 bit"));
  EXPECT_EQ(gathered["bytes"], 2LL * 6144 * 3 * 6144);
  const auto copy = first("attn.c_attn.weight\nTried to allocate 30.00 MiB", gpt2);
  EXPECT_THAT(copy["tensor"].get<std::string>(), StartsWith("FP32 fused query, key and value projection"));
  EXPECT_EQ(copy["bytes"], 4LL * 1600 * 3 * 1600);
}

// Low-rank projections have no matrix of hidden x heads x head size: 7168 x 128 x 192 in fp32 would be 672 MiB.
TEST(Oom, LatentAttentionHasNoQueryProjection) {
  const auto json = run_json({"oom", "q_proj\nTried to allocate 672.00 MiB", "--model", "deepseek-v3", "--gpus", "8"});
  for (const auto& candidate : json["candidates"])
    EXPECT_EQ(candidate["tensor"].get<std::string>().find("query or output projection"), std::string::npos);
}

TEST(Oom, WhatOnlyBeginsLikeAUnitOrANumberIsNone) {
  for (const char* message : {"5 GiBlah", "CUDA out of memory. Tried to allocate 12.94 GiBs of it",
                              "Tried to allocate 1e400 GiB", "Tried to allocate 12,94 GiB"}) {
    const test::ProgramRun run = test::run({"oom", message});
    EXPECT_EQ(run.code, 1) << message;
    EXPECT_NE(run.err.find("oom.none"), std::string::npos) << run.err;
  }
  EXPECT_EQ(test::run({"oom", "you tried to allocate 1024 because"}).code, 0);
}

TEST(Oom, AdvisesNoInputThatWasGiven) {
  const TemporaryFile file(test::small_model);
  const std::vector<std::string> message = {"oom", "Tried to allocate 7.77 GiB", "--model", file.path()};
  const std::string model = test::run(message).out;
  EXPECT_NE(model.find("this size. With --cluster and --plan more are known."), std::string::npos) << model;
  std::vector<std::string> both = message;
  both.insert(both.end(), {"--cluster", "1xh200"});
  EXPECT_NE(test::run(both).out.find("No tensor of the step has this size.\n"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll
