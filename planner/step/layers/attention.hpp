// What do the kinds of attention have in common?  Queries, keys and values of all heads, their rotation, and the product
// softmax(q k^T) v in one of its implementations; planner/step/layers/layers.hpp has the attention module that uses them.
#pragma once

#include <array>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// Queries, keys and values [N, heads x head size].  They lie by token, as projections leave them, or by head, as joining
/// parts makes them.
struct Heads {
  bool q_by_head = false;
  Tensor bias = {};  ///< an additive mask that the fused kernel reads and keeps
  Variable v, k, q;  ///< they die from q to v, as names in Python do
};

/// The sizes of an attention product.
struct AttentionSizes {
  std::int64_t q_heads = 1, kv_heads = 1, head_dim = 1, value_dim = 1;
};

/// How rotary embedding pairs the elements of a head, and how much of it is turned.
enum class RotaryForm : std::uint8_t {
  halves,   ///< x cos + rotate_half(x) sin, with tables of the full width (Llama)
  partial,  ///< the same on the first elements, joined with the rest (GLM-4.5, MiniMax-M2)
  chunks,   ///< two halves turned and joined, tables of half the width (gpt-oss)
  pairs,    ///< even and odd elements turned and joined (DeepSeek-V3)
  complex,  ///< fp32 complex products (DeepSeek-V2, Llama-4)
};
RotaryForm rotary_form(const Scenario& scenario);

/// Rotates q and k, whose rotary parts are `q_width` and `k_width` wide.
std::array<Variable, 2> rotate_both(LayerContext& c, const Variable& q, const Variable& k, const RotaryTables& tables,
                                    std::int64_t q_width, std::int64_t k_width);

/// x / sqrt(mean(x^2) + eps) without a weight, in fp32, cast back.
Variable unweighted_norm(LayerContext& c, const Variable& x);

/// softmax(q k^T / sqrt(d)) v [N, q heads x value dim], as the plan's implementation computes it.
Variable attend(LayerContext& c, const Heads& heads, const AttentionSizes& sizes, Parameter* sinks);
/// The same with the scores in memory (planner/step/layers/attention_eager.cpp).
Variable eager_attention(LayerContext& c, const Heads& heads, const AttentionSizes& sizes, Parameter* sinks);

Variable latent_attention(LayerContext& c, AttentionModule& module, const Variable& x, const RotaryTables& tables);
Variable lightning_attention(LayerContext& c, AttentionModule& module, const Variable& x);

/// Additive masks that implementations with scores in memory read; they live as long as the model's forward.
std::vector<Tensor> attention_masks(LayerContext& c, DType dtype);

}  // namespace plimsoll
