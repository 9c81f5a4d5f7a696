// How many parameters has each weight?  The formulas stand beside the functions; h hidden, V vocabulary, nq and nkv heads,
// hd head dimension, I width of an MLP or expert, E experts.
#include "planner/spec/model_parameters.hpp"

#include <fmt/core.h>

#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

class ParameterList {
 public:
  ParameterList(const ModelSpec& model, const ModelFamily& family) : model_(model), family_(family) {}

  std::vector<ParameterDecl> list() {
    prefix_ = "model.";
    add("embed_tokens.weight", Role::embedding, {model_.vocab, model_.hidden});
    for (layer_ = 0; layer_ < static_cast<int>(model_.layers.size()) && within_limit(); ++layer_) add_layer();
    layer_ = -1;
    prefix_ = "model.";
    add_norm("norm", Role::final_norm, Role::final_norm_bias);
    prefix_.clear();
    if (!model_.tied_embeddings) add("lm_head.weight", Role::head, {model_.vocab, model_.hidden});
    if (model_.head_bias) add("lm_head.bias", Role::head_bias, {model_.vocab});
    return std::move(parameters_);
  }

 private:
  bool within_limit() const { return total_ <= limits::parameters; }

  void add(std::string_view name, Role role, std::vector<std::int64_t> shape) {
    if (!within_limit()) return;
    ParameterDecl& parameter = parameters_.emplace_back();
    parameter.name = fmt::format("{}{}", prefix_, name);
    parameter.role = role;
    parameter.layer = layer_;
    parameter.numel = 1;
    for (const std::int64_t extent : shape) parameter.numel *= extent;
    parameter.shape = std::move(shape);
    total_ += parameter.numel;
  }

  void add_linear(std::string_view name, Role weight, Role bias, std::int64_t out, std::int64_t in, bool has_bias) {
    add(fmt::format("{}.weight", name), weight, {out, in});
    if (has_bias) add(fmt::format("{}.bias", name), bias, {out});
  }

  void add_norm(std::string_view name, Role weight, Role bias) {
    add(fmt::format("{}.weight", name), weight, {model_.hidden});
    if (model_.layer_norm) add(fmt::format("{}.bias", name), bias, {model_.hidden});
  }

  void add_layer() {
    const LayerSpec& layer = model_.layers[static_cast<std::size_t>(layer_)];
    const std::string of_layer = fmt::format("model.layers.{}.", layer_);
    prefix_ = of_layer + "self_attn.";
    switch (layer.attention.kind) {
      case AttentionSpec::Kind::grouped_query: add_grouped_query(layer.attention); break;
      case AttentionSpec::Kind::latent: add_latent(layer.attention); break;
      case AttentionSpec::Kind::lightning: add_lightning(layer.attention); break;
    }
    prefix_ = fmt::format("{}{}.", of_layer, family_.block);
    if (layer.moe) add_moe(*layer.moe);
    if (layer.mlp) add_mlp("", layer.mlp->intermediate, layer.mlp->bias, {Role::gate, Role::up, Role::down});
    prefix_ = of_layer;
    add_norm("input_layernorm", Role::input_norm, Role::input_norm_bias);
    add_norm("post_attention_layernorm", Role::post_attention_norm, Role::post_attention_norm_bias);
  }

  /// h*hd*(nq + 2*nkv) + nq*hd*h, biases, norms of q and k.  A module's own parameters (the sinks) come before those of
  /// its children in named_parameters(), wherever they were made.
  void add_grouped_query(const AttentionSpec& a) {
    if (a.sinks) add("sinks", Role::sinks, {a.q_heads});
    add_linear("q_proj", Role::q, Role::q_bias, a.q_width(), model_.hidden, a.qkv_bias);
    add_linear("k_proj", Role::k, Role::k_bias, a.kv_width(), model_.hidden, a.qkv_bias);
    add_linear("v_proj", Role::v, Role::v_bias, a.kv_width(), model_.hidden, a.qkv_bias);
    add_linear("o_proj", Role::o, Role::o_bias, model_.hidden, a.q_width(), a.output_bias);
    if (a.qk_norm == AttentionSpec::QkNorm::none) return;
    const bool whole = a.qk_norm == AttentionSpec::QkNorm::whole_width;
    add(fmt::format("{}.weight", family_.q_norm), Role::q_norm, {whole ? a.q_width() : a.head_dim});
    add(fmt::format("{}.weight", family_.k_norm), Role::k_norm, {whole ? a.kv_width() : a.head_dim});
  }

  /// Query h*rq + rq + rq*nh*(dn+dr), or h*nh*(dn+dr); keys and values h*(rkv+dr) + rkv + rkv*nh*(dn+dv); out nh*dv*h;
  /// indexer rq*ni*di + h*di + 2*di + h*ni.
  void add_latent(const AttentionSpec& a) {
    const std::int64_t h = model_.hidden;
    if (a.q_lora_rank > 0) {
      add("q_a_proj.weight", Role::q_a, {a.q_lora_rank, h});
      add("q_a_layernorm.weight", Role::q_a_norm, {a.q_lora_rank});
      add("q_b_proj.weight", Role::q_b, {a.q_width(), a.q_lora_rank});
    } else {
      add("q_proj.weight", Role::q, {a.q_width(), h});
    }
    const std::int64_t nope = a.head_dim - a.rope_head_dim;
    add("kv_a_proj_with_mqa.weight", Role::kv_a, {a.kv_lora_rank + a.rope_head_dim, h});
    add("kv_a_layernorm.weight", Role::kv_a_norm, {a.kv_lora_rank});
    add("kv_b_proj.weight", Role::kv_b, {a.q_heads * (nope + a.value_head_dim), a.kv_lora_rank});
    add("o_proj.weight", Role::o, {h, a.q_heads * a.value_head_dim});
    if (a.index_heads == 0) return;
    add("indexer.wq_b.weight", Role::index_q, {a.index_heads * a.index_head_dim, a.q_lora_rank});
    add("indexer.wk.weight", Role::index_k, {a.index_head_dim, h});
    add("indexer.k_norm.weight", Role::index_k_norm, {a.index_head_dim});
    add("indexer.k_norm.bias", Role::index_k_norm_bias, {a.index_head_dim});
    add("indexer.weights_proj.weight", Role::index_weights, {a.index_heads, h});
  }

  /// qkv 3*h*nh*hd, gate h*nh*hd, out nh*hd*h, norm nh*hd.
  void add_lightning(const AttentionSpec& a) {
    add("norm.weight", Role::attention_norm, {a.q_width()});
    add("q_proj.weight", Role::q, {a.q_width(), model_.hidden});
    add("k_proj.weight", Role::k, {a.kv_width(), model_.hidden});
    add("v_proj.weight", Role::v, {a.kv_width(), model_.hidden});
    add("out_proj.weight", Role::o, {model_.hidden, a.q_width()});
    add("output_gate.weight", Role::output_gate, {a.q_width(), model_.hidden});
  }

  struct MlpRoles {
    Role gate, up, down;
  };

  /// 3*h*I.
  void add_mlp(std::string_view name, std::int64_t width, bool bias, MlpRoles roles) {
    const std::string dot = name.empty() ? "" : fmt::format("{}.", name);
    add_linear(dot + "gate_proj", roles.gate, Role::gate_bias, width, model_.hidden, bias);
    add_linear(dot + "up_proj", roles.up, Role::up_bias, width, model_.hidden, bias);
    add_linear(dot + "down_proj", roles.down, Role::down_bias, model_.hidden, width, bias);
  }

  void add_moe(const MoeSpec& moe) {
    if (family_.experts_first) add_experts(moe);
    add_router(moe);
    if (!family_.experts_first) add_experts(moe);
    if (moe.shared_intermediate > 0) {
      add_mlp(family_.shared_name, moe.shared_intermediate, false,
              {Role::shared_gate, Role::shared_up, Role::shared_down});
    }
    if (moe.shared_gate) add("shared_expert_gate.weight", Role::shared_expert_gate, {1, model_.hidden});
  }

  void add_router(const MoeSpec& moe) {
    add_linear(family_.router, Role::router, Role::router_bias, moe.experts, model_.hidden, moe.router_bias);
    if (!moe.score_correction_bias) return;
    add(fmt::format("{}.e_score_correction_bias", family_.router), Role::score_correction_bias, {moe.experts});
    parameters_.back().trainable = false;  // it decides the choice of experts only, so no gradient reaches it
  }

  /// 3*h*I an expert; with biases 2*I + h more.
  void add_experts(const MoeSpec& moe) {
    const std::int64_t h = model_.hidden, width = moe.expert_intermediate, e = moe.experts;
    const std::size_t first = parameters_.size();
    const bool input_major = family_.experts_input_major;
    add("experts.gate_up_proj", Role::experts_gate_up,
        input_major ? std::vector<std::int64_t>{e, h, 2 * width} : std::vector<std::int64_t>{e, 2 * width, h});
    if (moe.expert_bias) add("experts.gate_up_proj_bias", Role::experts_gate_up_bias, {e, 2 * width});
    add("experts.down_proj", Role::experts_down,
        input_major ? std::vector<std::int64_t>{e, width, h} : std::vector<std::int64_t>{e, h, width});
    if (moe.expert_bias) add("experts.down_proj_bias", Role::experts_down_bias, {e, h});
    for (std::size_t i = first; i < parameters_.size(); ++i) parameters_[i].expert = true;
  }

  const ModelSpec& model_;
  const ModelFamily& family_;
  std::vector<ParameterDecl> parameters_;
  std::string prefix_;
  int layer_ = -1;
  std::int64_t total_ = 0;
};

/// What one token passes of a parameter of `moe`'s experts.
std::int64_t active_share(const ParameterDecl& parameter, const MoeSpec& moe) {
  // A sketch's lump need not divide by the number of experts.
  return parameter.numel / moe.experts * moe.top_k + parameter.numel % moe.experts * moe.top_k / moe.experts;
}

const MoeSpec* moe_of(const ModelSpec& model, const ParameterDecl& parameter) {
  if (parameter.layer >= 0) return &*model.layers[static_cast<std::size_t>(parameter.layer)].moe;
  for (const LayerSpec& layer : model.layers) {
    if (layer.moe) return &*layer.moe;
  }
  CHECK(false, "a model with expert parameters has a layer of experts");
}

}  // namespace

std::int64_t active_numel(const ModelSpec& model, const ParameterDecl& parameter) {
  return parameter.expert ? active_share(parameter, *moe_of(model, parameter)) : parameter.numel;
}

std::vector<ParameterDecl> list_parameters(const ModelSpec& model, const ModelFamily& family) {
  return ParameterList(model, family).list();
}

ParameterCounts count_parameters(const ModelSpec& model) {
  ParameterCounts counts;
  std::int64_t embedding = 0, head = 0;
  for (const ParameterDecl& parameter : model.parameters) {
    counts.total += parameter.numel;
    counts.active += active_numel(model, parameter);
    (parameter.expert ? counts.expert : counts.dense) += parameter.numel;
    if (parameter.role == Role::embedding) embedding += parameter.numel;
    if (parameter.role == Role::head || parameter.role == Role::head_bias) head += parameter.numel;
  }
  // A tied embedding is the head too, so a token passes it.
  counts.active_without_embedding = counts.active - (model.tied_embeddings ? 0 : embedding);
  counts.active_without_embedding_and_head = counts.active - embedding - head;
  return counts;
}

}  // namespace plimsoll
