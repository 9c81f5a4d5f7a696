// What does one decoder layer keep for its backward?  Each block's table, counted by hand from what autograd keeps of each
// operation (storages once), against the difference that one more layer makes at the end of forward.  bf16, no recomputation.
//   attention part   two norms: input in fp32 4 h, root 4, normalised 2 h, output 2 h (kept by the products that read it);
//                    q, k (turned), v, output: 4 q + 4 kappa; log-sum-exp 4 A; two seeds of 8 bytes a layer
//   dense MLP        gate, silu, up, product: 8 I
#include <gtest/gtest.h>

#include <functional>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t batch = 2, s = 32, n = batch * s;
constexpr std::int64_t h = 64, heads = 4, kv_heads = 2, head_dim = 16, q = heads * head_dim, kv = kv_heads * head_dim;
constexpr std::int64_t seeds = 16;
constexpr std::int64_t attention_part = n * (16 * h + 8 + 4 * q + 4 * kv + 4 * heads) + seeds;

std::string config(const std::string& type, int layers, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 256, "max_position_embeddings": 512,
    "tie_word_embeddings": false, "num_hidden_layers": )" +
         std::to_string(layers) + more + "}";
}

using Engine = void (*)(const Scenario&, int, RankProgram&);

std::int64_t kept_by(const std::string& text, const std::vector<std::string>& sets, Engine engine) {
  std::vector<std::string> all{"micro_batch=2", "sequence=32"};
  all.insert(all.end(), sets.begin(), sets.end());
  RankProgram program;
  engine(make_scenario(text, all), 0, program);
  const Live live_now = live(program, phase(program, "steady_forward")).at_end;
  std::int64_t sum = 0;
  for (const Category category : {Category::activations, Category::expert_buffers, Category::temporaries}) {
    const auto found = live_now.gpu.find(category);
    if (found != live_now.gpu.end()) sum += found->second;
  }
  return sum;
}

/// Bytes that the third layer keeps.
std::int64_t kept(const std::function<std::string(int)>& model, const std::vector<std::string>& sets,
                  Engine engine = build_ddp) {
  return kept_by(model(3), sets, engine) - kept_by(model(2), sets, engine);
}

const std::vector<std::string> plain = {"engine=ddp", "world_size=1", "precision=bf16"};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

TEST(KeptBytes, OfADenseLayer) {
  EXPECT_EQ(kept([](int layers) { return config("llama", layers); }, plain), attention_part + n * 8 * 96);
}

TEST(KeptBytes, OfARecomputedLayerAreItsInput) {
  EXPECT_EQ(kept([](int layers) { return config("llama", layers); }, with(plain, {"recompute=full"})), n * 2 * h);
}

// Heads of q and k normed before they are turned: each norm keeps its input in fp32, the root, and the normalised rows; its
// output is turned, not kept.
TEST(KeptBytes, OfQueryAndKeyNorms) {
  EXPECT_EQ(kept([](int layers) { return config("qwen3", layers); }, plain),
            attention_part + n * 8 * 96 + n * (6 * (q + kv) + 4 * (heads + kv_heads)));
}

// Scores in memory: keys and values repeated to the queries' width (2 q each, beside q and the output), the softmax in fp32
// and its 16-bit copy.  The unrepeated k is not kept, nor v, nor a log-sum-exp.
TEST(KeptBytes, OfEagerAttention) {
  EXPECT_EQ(kept([](int layers) { return config("llama", layers); }, with(plain, {"attention=eager"})),
            n * (16 * h + 8 + 8 * q + 8 * 96) + 6 * batch * heads * s * s);
}

// A column of sinks beside the scores (gpt-oss): the softmax of S + 1 columns in 16 bits, 2 b A S (S + 1), and nothing of S^2
// beside it.  As many tokens in one sequence as in two: all that goes with the tokens stays (q, repeated k and v, the output,
// the place of each row's maximum), and so do the experts.  Counted on transformers 5.17's module, too: 8 q N + 2 b A S (S + 1)
// + 8 b A S.
TEST(KeptBytes, OfAttentionWithSinks) {
  const auto model = [](int layers) {
    std::string types = "\"full_attention\"";
    for (int i = 1; i < layers; ++i) types += ", \"full_attention\"";
    return config("gpt_oss", layers,
                  R"(, "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": true, "layer_types": [)" +
                      types + "]");
  };
  const std::int64_t two = kept(model, plain);
  const std::int64_t one = kept(model, with(plain, {"micro_batch=1", "sequence=64"}));
  EXPECT_EQ(one - two, 2 * heads * (n * (n + 1) - batch * s * (s + 1)));
}

// Lightning attention (MiniMax), one block of r = S rows: what the silus of q, k and v read 6 q; q, k and v in block order
// 6 q; the decayed scores 2 b A r^2; the first state, zeros, 2 b A d^2 (what would make the next is not kept, nor the decayed
// q, since the state needs no gradient); a norm's 4 q + 4 + 2 q and its output 2 q, the gate 2 q, and what the projection
// reads 2 q.  The same bytes were counted on transformers 5.17's module.
TEST(KeptBytes, OfLightningAttention) {
  constexpr std::int64_t e = 8, k = 2, width = 96;
  const auto model = [](int layers) {
    std::string types = "0";
    for (int i = 1; i < layers; ++i) types += ", 0";
    return config("minimax_text_01", layers,
                  R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "attn_type_list": [)" + types + "]");
  };
  const std::int64_t attention = n * (24 * q + 4) + 2 * batch * heads * s * s + 2 * batch * heads * head_dim * head_dim;
  EXPECT_EQ(kept(model, plain),
            n * (16 * h + 8) + attention + n * (k * (4 * h + 8 * width) + 4 * e + 41 * k + 4) + 4 * e);
}

// E experts, k of them a token, R = N k rows.  Router: probabilities 4 E, their top k and sum 12 k + 4 (values in a copy, for
// the division in place; indices); rows: permutation, token, inverse 8 each, sorted score 4, mask of no expert 1; input 2 h,
// gate and up 4 I, silu and product 4 I, output 2 h; the offsets of the groups 4 E a layer.
TEST(KeptBytes, OfGroupedExperts) {
  constexpr std::int64_t e = 8, k = 2, width = 96;
  const auto model = [](int layers) {
    return config("mixtral", layers,
                  R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": false)");
  };
  EXPECT_EQ(kept(model, plain), attention_part + n * (k * (4 * h + 8 * width) + 4 * e + 41 * k + 4) + 4 * e);
}

// Expert by expert: a row's input 2 h, 8 I inside the expert, its output 2 h and its weight 2 for the product of both, and
// the route and token of each row, 16.  Router: probabilities 4 E, top k and their sum 12 k + 4.
TEST(KeptBytes, OfExpertsInALoop) {
  constexpr std::int64_t e = 8, k = 2, width = 96;
  const auto model = [](int layers) {
    return config("mixtral", layers,
                  R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": false)");
  };
  EXPECT_EQ(kept(model, with(plain, {"moe.implementation=loop"})),
            attention_part + n * (k * (4 * h + 8 * width + 18) + 4 * e + 12 * k + 4));
}

// Latent attention: query through a latent r_q, keys and values through r_kv (a latent's norm keeps 4 + 2 + 2 a value and a
// root); joined queries and keys 2 A (d_n + d_r) each, the projection that holds v 2 A (d_n + d_v), the output 2 A d_v twice:
// the kernel writes it by head, as the joined queries lie, and the projection reads a copy by token.
TEST(KeptBytes, OfLatentAttention) {
  constexpr std::int64_t r_q = 24, r_kv = 32, nope = 16, rope = 8, value = 16;
  const auto model = [](int layers) {
    return config("deepseek_v3", layers, R"(, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
      "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "moe_intermediate_size": 32, "first_k_dense_replace": 100, "n_group": 1, "topk_group": 1)");
  };
  const std::int64_t norms = 16 * h + 8 + 8 * (r_q + r_kv) + 8;
  const std::int64_t product =
      4 * heads * (nope + rope) + 2 * heads * (nope + value) + 2 * 2 * heads * value + 4 * heads;
  EXPECT_EQ(kept(model, plain), n * (norms + product + 8 * 96) + seeds);
}

// DeepSpeed's own layer at ep = 1, S = N tokens, C slots an expert: what its gate and its dispatch keep; and what the layer
// itself holds until its next call: the balance loss 4, the operand of its product 4 E, the tokens of each expert 8 E.
TEST(KeptBytes, OfNativeExperts) {
  constexpr std::int64_t e = 4, k = 2, width = 96, c = n * k / e, slots = e * c;
  const auto model = [](int layers) { return config("llama", layers); };
  const std::vector<std::string> sets = {"world_size=1", "zero.stage=1", "moe.implementation=native",
                                         "moe.num_experts=4", "moe.top_k=2"};
  const std::int64_t gate =
      4 * h + 3 * 4 * e + 8 * k + 4 * k + 2 * k * 4;  // input in fp32, softmax and masks, slots, weights, sums
  EXPECT_EQ(kept(model, sets, build_deepspeed), attention_part - n * 2 * h + n * gate + 4 * h * e + 8 * (slots + 1) +
                                                    slots * (2 * h + 8 * width) + n * 2 * k * h + 4 + 4 * e + 8 * e);
}

// AutoEP over two ranks, R rows received, R' = roundup8(R + 8 El) with the padding of each local expert; the ends of the
// local experts' rows 4 El, and the layer's counter of tokens 4 E.
TEST(KeptBytes, OfAutoEpExperts) {
  constexpr std::int64_t e = 8, k = 2, width = 96, local = 4, r = n * k, padded = (r + 8 * local + 7) / 8 * 8;
  const auto model = [](int layers) {
    return config("mixtral", layers,
                  R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "output_router_logits": false)");
  };
  const std::vector<std::string> sets = {"world_size=2", "zero.stage=1", "moe.implementation=autoep",
                                         "expert_parallel=2"};
  const std::int64_t router = 4 * e + 3 * 8 * k + 2 * 4 * k + 4;
  EXPECT_EQ(kept(model, sets, build_deepspeed), attention_part + n * router + padded * (2 * h + 6 * width) +
                                                    2 * 8 * (r + padded) + 4 * padded + n * k * 2 * h + 4 * local +
                                                    4 * e);
}

// Not by a layer, but to the end of the model's forward: Qwen2-MoE's mask of windows that nothing reads.
TEST(KeptBytes, OfAnUnreadWindowMask) {
  const std::string model = config("qwen2_moe", 2, R"(, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1)");
  RankProgram program;
  build_ddp(make_scenario(model, with(plain, {"micro_batch=2", "sequence=32"})), 0, program);
  const std::pair<OpId, OpId> forward = phase(program, "steady_forward");
  EXPECT_EQ(sizes_of(program, forward, "window mask"), (std::vector<std::int64_t>{s * s, s * s}));
  BufferId mask = 0;
  OpId freed = 0, head = 0;
  for (OpId id = forward.first; id < forward.second; ++id) {
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) {
      const std::string_view name = program.buffers[alloc->buffer].name;
      if (name == "window mask") mask = alloc->buffer;
      if (name == "logits") head = id;
    } else if (const auto* free = std::get_if<Free>(&program.ops[id].action); free && free->buffer == mask) {
      freed = id;
    }
  }
  EXPECT_GT(freed, forward.first);
  EXPECT_LT(freed, head) << "after the last layer, before the head";
}

// A loss in chunks keeps the final hidden states (2 h, the input of every chunk) and the padded labels, no logits.
TEST(KeptBytes, OfAChunkedLoss) {
  const auto loss = [](const std::string& chunks) {
    RankProgram program;
    build_ddp(make_scenario(config("llama", 2),
                            {"engine=ddp", "world_size=1", "precision=bf16", "micro_batch=2", "sequence=32", chunks}),
              0, program);
    return live(program, phase(program, "steady_forward")).at_end.gpu.at(Category::logits_and_loss);
  };
  EXPECT_EQ(loss("loss=full") - loss(R"(loss={"chunked": 16})"), n * 4 * 256 + 4)
      << "log-softmax, 4 N V, and the sum of the loss weights";
}

}  // namespace
}  // namespace plimsoll
