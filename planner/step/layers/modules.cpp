// Builds the tree of modules and their parameters (planner/step/layers/module.hpp).
#include <map>
#include <utility>

#include "planner/step/layers/module.hpp"

namespace plimsoll {

namespace {

Symbol symbol_of(Role role, std::size_t dim) {
  const bool first = dim == 0;
  switch (role) {
    case Role::embedding:
    case Role::head: return first ? Symbol::vocab : Symbol::hidden;
    case Role::q: return first ? Symbol::q_width : Symbol::hidden;
    case Role::k:
    case Role::v: return first ? Symbol::kv_width : Symbol::hidden;
    case Role::o: return first ? Symbol::hidden : Symbol::q_width;
    case Role::gate:
    case Role::up:
    case Role::shared_gate:
    case Role::shared_up: return first ? Symbol::intermediate : Symbol::hidden;
    case Role::down:
    case Role::shared_down: return first ? Symbol::hidden : Symbol::intermediate;
    case Role::router: return first ? Symbol::experts : Symbol::hidden;
    case Role::experts_gate_up: return first ? Symbol::experts : dim == 1 ? Symbol::intermediate : Symbol::hidden;
    case Role::experts_down: return first ? Symbol::experts : dim == 1 ? Symbol::hidden : Symbol::intermediate;
    default: return Symbol::number;
  }
}

class Builder {
 public:
  explicit Builder(const Scenario& scenario) : scenario_(scenario), model_(std::make_unique<TorchModel>()) {
    const DType dtype =
        scenario.plan.precision == Precision::bf16_autocast ? DType::fp32 : scenario.plan.compute_dtype();
    for (const ParameterDecl& decl : scenario.model.parameters) {
      Parameter& parameter = model_->parameters_in_order.emplace_back();
      parameter.decl = &decl;
      parameter.name = decl.name.c_str();
      parameter.index = static_cast<int>(model_->parameters_in_order.size()) - 1;
      parameter.group = decl.expert ? 1 : 0;
      parameter.dtype = dtype;
      parameter.trainable = decl.trainable;
      for (std::size_t i = 0; i < decl.shape.size(); ++i)
        parameter.shape.push({decl.shape[i], symbol_of(decl.role, i)});
      by_role_[{decl.layer, decl.role}] = &parameter;
    }
  }

  std::unique_ptr<TorchModel> build() {
    TorchModel& top = *model_;
    add(top, "model", nullptr);
    add(top.body, "model.body", &top);
    add(top.embed_tokens, "embed_tokens", &top.body);
    top.embedding = own(top.embed_tokens, Role::embedding, -1);
    for (std::size_t i = 0; i < scenario_.model.layers.size(); ++i) decoder_layer(static_cast<int>(i));
    norm(top.norm, "norm", &top.body, Role::final_norm, Role::final_norm_bias, -1);
    add(top.rotary, "rotary_emb", &top.body);
    linear(top.head, "lm_head", &top, Role::head, Role::head_bias, -1);
    if (!top.head.weight) {  // tied: the same parameter, named by both modules
      top.head.weight = top.embedding;
      top.head.parameters.insert(top.head.parameters.begin(), top.embedding);
    }
    return std::move(model_);
  }

 private:
  void add(Module& module, const char* name, Module* parent, int layer = -1) {
    module.name = name;
    module.layer = layer;
    module.id = static_cast<int>(model_->modules.size());
    model_->modules.push_back(&module);
    if (parent) parent->children.push_back(&module);
  }

  Parameter* find(Role role, int layer) const {
    const auto found = by_role_.find({layer, role});
    return found == by_role_.end() ? nullptr : found->second;
  }

  Parameter* own(Module& module, Role role, int layer) {
    Parameter* parameter = find(role, layer);
    if (parameter) module.parameters.push_back(parameter);
    return parameter;
  }

  void linear(LinearModule& module, const char* name, Module* parent, Role weight, Role bias, int layer) {
    add(module, name, parent, layer);
    module.weight = own(module, weight, layer);
    module.bias = own(module, bias, layer);
  }

  void norm(NormModule& module, const char* name, Module* parent, Role weight, Role bias, int layer) {
    add(module, name, parent, layer);
    module.weight = own(module, weight, layer);
    module.bias = own(module, bias, layer);
  }

  void optional_norm(NormModule& module, const char* name, Module* parent, Role weight, int layer) {
    if (find(weight, layer)) norm(module, name, parent, weight, Role::other, layer);
  }

  void optional_linear(LinearModule& module, const char* name, Module* parent, Role weight, int layer) {
    if (find(weight, layer)) linear(module, name, parent, weight, Role::other, layer);
  }

  void attention(AttentionModule& module, Module* parent, int layer) {
    add(module, "self_attn", parent, layer);
    module.keyword_input = true;
    module.spec = &scenario_.model.layers[static_cast<std::size_t>(layer)].attention;
    if (module.spec->kind == AttentionSpec::Kind::latent) {
      if (find(Role::q_a, layer)) {
        linear(module.q_a, "self_attn.q_a_proj", &module, Role::q_a, Role::other, layer);
        norm(module.q_a_norm, "self_attn.q_a_layernorm", &module, Role::q_a_norm, Role::other, layer);
        linear(module.q_b, "self_attn.q_b_proj", &module, Role::q_b, Role::other, layer);
      } else {
        linear(module.q, "self_attn.q_proj", &module, Role::q, Role::q_bias, layer);
      }
      linear(module.kv_a, "self_attn.kv_a_proj_with_mqa", &module, Role::kv_a, Role::other, layer);
      norm(module.kv_a_norm, "self_attn.kv_a_layernorm", &module, Role::kv_a_norm, Role::other, layer);
      linear(module.kv_b, "self_attn.kv_b_proj", &module, Role::kv_b, Role::other, layer);
    } else {
      linear(module.q, "self_attn.q_proj", &module, Role::q, Role::q_bias, layer);
      linear(module.k, "self_attn.k_proj", &module, Role::k, Role::k_bias, layer);
      linear(module.v, "self_attn.v_proj", &module, Role::v, Role::v_bias, layer);
    }
    linear(module.o, "self_attn.o_proj", &module, Role::o, Role::o_bias, layer);
    module.sinks = own(module, Role::sinks, layer);
    optional_norm(module.q_norm, "self_attn.q_norm", &module, Role::q_norm, layer);
    optional_norm(module.k_norm, "self_attn.k_norm", &module, Role::k_norm, layer);
    optional_linear(module.output_gate, "self_attn.output_gate", &module, Role::output_gate, layer);
    optional_linear(module.index_q, "self_attn.indexer.wq_b", &module, Role::index_q, layer);
    optional_linear(module.index_k, "self_attn.indexer.wk", &module, Role::index_k, layer);
    if (find(Role::index_k_norm, layer)) {
      norm(module.index_k_norm, "self_attn.indexer.k_norm", &module, Role::index_k_norm, Role::index_k_norm_bias,
           layer);
    }
    optional_linear(module.index_weights, "self_attn.indexer.weights_proj", &module, Role::index_weights, layer);
  }

  void mlp(MlpModule& module, Module* parent, int layer, bool shared) {
    add(module, shared ? "mlp.shared_experts" : "mlp", parent, layer);
    linear(module.gate, shared ? "mlp.shared_experts.gate_proj" : "mlp.gate_proj", &module,
           shared ? Role::shared_gate : Role::gate, shared ? Role::other : Role::gate_bias, layer);
    linear(module.up, shared ? "mlp.shared_experts.up_proj" : "mlp.up_proj", &module,
           shared ? Role::shared_up : Role::up, shared ? Role::other : Role::up_bias, layer);
    linear(module.down, shared ? "mlp.shared_experts.down_proj" : "mlp.down_proj", &module,
           shared ? Role::shared_down : Role::down, shared ? Role::other : Role::down_bias, layer);
    add(module.activation, "mlp.act_fn", &module, layer);
  }

  void mixture(MoeModule& module, Module* parent, int layer) {
    add(module, "mlp", parent, layer);
    module.spec = &*scenario_.model.layers[static_cast<std::size_t>(layer)].moe;
    module.index = moe_layers_++;
    module.zero3_leaf = scenario_.plan.moe.leaf;
    linear(module.router, "mlp.gate", &module, Role::router, Role::router_bias, layer);
    module.score_correction_bias = own(module.router, Role::score_correction_bias, layer);
    add(module.experts, "mlp.experts", &module, layer);
    module.gate_up = own(module.experts, Role::experts_gate_up, layer);
    module.gate_up_bias = own(module.experts, Role::experts_gate_up_bias, layer);
    module.down = own(module.experts, Role::experts_down, layer);
    module.down_bias = own(module.experts, Role::experts_down_bias, layer);
    if (find(Role::shared_gate, layer)) {
      mlp(module.shared, &module, layer, true);
      optional_linear(module.shared_gate, "mlp.shared_expert_gate", &module, Role::shared_expert_gate, layer);
    }
  }

  void decoder_layer(int index) {
    DecoderLayerModule& layer = model_->layers.emplace_back();
    add(layer, "layer", &model_->body, index);
    attention(layer.attention, &layer, index);
    layer.is_moe = scenario_.model.layers[static_cast<std::size_t>(index)].moe.has_value();
    if (layer.is_moe) {
      mixture(layer.moe, &layer, index);
    } else {
      mlp(layer.mlp, &layer, index, false);
    }
    norm(layer.input_norm, "input_layernorm", &layer, Role::input_norm, Role::input_norm_bias, index);
    norm(layer.post_attention_norm, "post_attention_layernorm", &layer, Role::post_attention_norm,
         Role::post_attention_norm_bias, index);
  }

  const Scenario& scenario_;
  std::unique_ptr<TorchModel> model_;
  std::map<std::pair<int, Role>, Parameter*> by_role_;
  int moe_layers_ = 0;
};

}  // namespace

std::unique_ptr<TorchModel> build_modules(const Scenario& scenario) { return Builder(scenario).build(); }

}  // namespace plimsoll
