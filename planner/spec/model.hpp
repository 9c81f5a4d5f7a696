// What is the model?  Its dimensions in one vocabulary for all families, layer by layer, as read from a Hugging Face
// config.json (planner/spec/read_model.hpp), and the list of its parameters in the order in which the framework builds them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

struct AttentionSpec {
  enum class Kind : std::uint8_t { grouped_query, latent, lightning };
  enum class QkNorm : std::uint8_t { none, per_head, whole_width };
  Kind kind = Kind::grouped_query;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  ///< of q and k; latent: qk_nope_head_dim + qk_rope_head_dim
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::none;  ///< norms with weights only
  bool sinks = false;             ///< one learnt logit per query head (gpt-oss)
  std::int64_t rotary_dim = 0;    ///< elements of a head that rotary embedding turns; 0: all of them
  // latent attention (MLA) only
  std::int64_t q_lora_rank = 0;  ///< 0: the query is projected at once
  std::int64_t kv_lora_rank = 0;
  std::int64_t rope_head_dim = 0;
  std::int64_t value_head_dim = 0;
  // sparse-attention indexer (DeepSeek-V3.2, GLM-5); index_heads 0: none
  std::int64_t index_heads = 0;
  std::int64_t index_head_dim = 0;
  std::int64_t index_top_k = 0;  ///< keys that it leaves to a query

  std::int64_t q_width() const { return q_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  bool operator==(const AttentionSpec&) const = default;
};

/// A gated MLP (gate, up, down), the only kind in the families read.
struct MlpSpec {
  std::int64_t intermediate = 0;
  bool bias = false;
  bool operator==(const MlpSpec&) const = default;
};

struct MoeSpec {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t expert_intermediate = 0;
  std::int64_t shared_intermediate = 0;  ///< summed over the shared experts; 0: none
  bool shared_gate = false;              ///< a sigmoid gate of h weights on the shared expert (Qwen2-MoE)
  bool router_bias = false;              ///< a bias in the router's projection (gpt-oss)
  bool score_correction_bias = false;    ///< e_score_correction_bias of E entries (DeepSeek-V3 and its like)
  bool expert_bias = false;
  bool scores_fp32 = false;  ///< routing weights stay fp32 in a bf16 model (Mixtral); else cast to the model's type
  bool operator==(const MoeSpec&) const = default;
};

/// A decoder layer: attention, then a dense MLP or a mixture of experts.
struct LayerSpec {
  AttentionSpec attention;
  std::optional<MlpSpec> mlp;
  std::optional<MoeSpec> moe;
  bool operator==(const LayerSpec&) const = default;
};

/// Which weight of its layer (or of the model) a parameter is.
// clang-format off
enum class Role : std::uint8_t {
  embedding, final_norm, final_norm_bias, head, head_bias,
  input_norm, input_norm_bias, post_attention_norm, post_attention_norm_bias,
  q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, sinks, output_gate, attention_norm,
  q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, index_q, index_k, index_k_norm, index_k_norm_bias, index_weights,
  gate, up, down, gate_bias, up_bias, down_bias,
  router, router_bias, score_correction_bias,
  experts_gate_up, experts_down, experts_gate_up_bias, experts_down_bias,  ///< fused 3-D parameters of all experts
  shared_gate, shared_up, shared_down, shared_expert_gate,
  other,  ///< a sketch's lump of parameters
};
// clang-format on

/// One parameter of the whole, unsharded model.
struct ParameterDecl {
  std::string name;  ///< as named_parameters() prints it
  Role role = Role::other;
  int layer = -1;  ///< decoder layer, -1 outside the layers
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  bool expert = false;  ///< belongs to routed experts, so it lives on the expert mesh under expert parallelism
  bool trainable = true;
};

/// What the layers compute with beyond their sizes; only the reference runtime reads it.
struct Numerics {
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  double rope_factor = 1;  ///< > 1: frequencies stretched as Llama 3.1 does, between rope_low and rope_high turns
  double rope_low = 1, rope_high = 4, rope_original_positions = 8192;
  std::string rope_unknown;         ///< a kind of scaling that is not computed, by its name
  double initializer_range = 0.02;  ///< standard deviation of initial weights
  bool renormalise_top_k = true;    ///< the weights of a token's experts sum to 1
  double balance_loss = 0;          ///< coefficient of the load-balancing loss, mean over the mixtures
  double z_loss = 0;                ///< of the mean squared log-sum-exp of the router's logits
};

struct ModelSpec {
  std::string name;    ///< preset or file name
  std::string family;  ///< model_type: "llama", "mixtral", "qwen3_moe", ...
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  bool tied_embeddings = false;
  bool layer_norm = false;  ///< LayerNorm with bias instead of RMSNorm (Phi-3.5-MoE)
  bool head_bias = false;
  bool router_logits_in_loss = false;  ///< output_router_logits: an auxiliary loss over all layers' router logits
  Numerics numerics;
  std::vector<LayerSpec> layers;
  std::int64_t max_positions = 0;  ///< max_position_embeddings; 0: not stated
  bool sketch = false;             ///< from "sketch:...": sizes only, what was missing is assumed (see assumptions)
  std::vector<std::string> assumptions;  ///< what the reader had to assume, in words
  /// Parameters in construction order (also the order of named_parameters()); a tied head is not listed twice.
  std::vector<ParameterDecl> parameters;
  /// Where the file states a dimension: "hidden", "layers", "q_heads", "kv_heads", "vocab", "intermediate", "experts",
  /// "top_k", "expert_intermediate", "max_positions".
  std::map<std::string, Place> places;
};

struct ParameterCounts {
  std::int64_t total = 0;
  std::int64_t active = 0;  ///< what one token passes: everything but the experts it is not routed to
  std::int64_t active_without_embedding = 0;
  std::int64_t active_without_embedding_and_head = 0;
  std::int64_t dense = 0;   ///< total minus routed experts
  std::int64_t expert = 0;  ///< routed experts
};

ParameterCounts count_parameters(const ModelSpec& model);

}  // namespace plimsoll
