// Builds the tree of modules and their parameters (planner/step/layers/module.hpp).
#include <utility>

#include "planner/step/layers/module.hpp"
#include "planner/step/layers/rank_parameters.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {

namespace {

class Builder {
 public:
  explicit Builder(const Scenario& scenario)
      : scenario_(scenario),
        model_(std::make_unique<TorchModel>()),
        parameters_(list_rank_parameters(scenario, *model_)) {}

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
    if (scenario_.plan.lora) {  // PeftModelForCausalLM(LoraModel(model))
      for (const char* name : {"peft", "lora"}) add(top.wrappers.emplace_back(), name, nullptr);
      top.wrappers.front().children = {&top.wrappers.back()};
      top.wrappers.back().children = {&top};
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

  Parameter* find(Role role, int layer) const { return parameters_.find(role, layer); }

  Parameter* own(Module& module, Role role, int layer) {
    Parameter* parameter = find(role, layer);
    if (parameter) module.parameters.push_back(parameter);
    return parameter;
  }

  void linear(LinearModule& module, const char* name, Module* parent, Role weight, Role bias, int layer) {
    add(module, name, parent, layer);
    module.weight = own(module, weight, layer);
    module.bias = own(module, bias, layer);
    adapt(module, layer);
  }

  /// PEFT puts itself in the layer's place: the layer becomes a child, and the parameters the children's.
  void adapt(LinearModule& module, int layer) {
    const auto found = parameters_.adapters.find(module.weight);
    if (found == parameters_.adapters.end()) return;
    AdapterModules& adapter = model_->adapters.emplace_back();
    module.adapter = &adapter;
    add(adapter.base, "base_layer", &module, layer);
    adapter.base.weight = module.weight;
    adapter.base.bias = module.bias;
    adapter.base.parameters = std::exchange(module.parameters, {});
    add(adapter.dropout, "lora_dropout", &module, layer);
    const auto matrix = [&](LinearModule& of, const char* name, Parameter* weight) {
      add(of, name, &module, layer);
      of.weight = weight;
      of.parameters = {weight};
    };
    matrix(adapter.a, "lora_A", found->second.a);
    matrix(adapter.b, "lora_B", found->second.b);
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
    optional_norm(module.output_norm, "self_attn.norm", &module, Role::attention_norm, layer);
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
    module.spec = &model_->mixtures.emplace_back(*moe_of_layer(scenario_, static_cast<std::size_t>(layer)));
    module.index = static_cast<int>(model_->mixtures.size()) - 1;
    module.zero3_leaf = scenario_.plan.moe.leaf;
    if (const auto native = parameters_.native.find(layer); native != parameters_.native.end()) {
      native_mixture(module, native->second, layer);
      return;
    }
    const Parameter* router = find(Role::router, layer);
    const auto looped = parameters_.looped.find(layer);
    const Parameter* experts =
        looped != parameters_.looped.end() ? looped->second.front().gate : find(Role::experts_gate_up, layer);
    const bool experts_first = router && experts && experts->index < router->index;
    if (experts_first) fused_experts(module, layer);
    if (parameters_.autoep.count(layer) != 0) {
      add(module.autoep_router, "mlp.router", &module, layer);
      linear(module.router, "mlp.router.gate", &module.autoep_router, Role::router, Role::router_bias, layer);
    } else {
      linear(module.router, "mlp.gate", &module, Role::router, Role::router_bias, layer);
    }
    module.score_correction_bias = own(module.router, Role::score_correction_bias, layer);
    if (!experts_first) fused_experts(module, layer);
    if (find(Role::shared_gate, layer)) {
      mlp(module.shared, &module, layer, true);
      optional_linear(module.shared_gate, "mlp.shared_expert_gate", &module, Role::shared_expert_gate, layer);
    }
  }

  void fused_experts(MoeModule& module, int layer) {
    add(module.experts, "mlp.experts", &module, layer);
    if (const auto autoep = parameters_.autoep.find(layer); autoep != parameters_.autoep.end()) {
      module.w1 = autoep->second.w1;
      module.w2 = autoep->second.w2;
      module.w3 = autoep->second.w3;
      module.experts.parameters = {module.w1, module.w2, module.w3};
      return;
    }
    if (const auto looped = parameters_.looped.find(layer); looped != parameters_.looped.end()) {
      for (const MlpParameters& expert : looped->second) {
        expert_mlp(module.local_experts.emplace_back(), expert, &module.experts, layer);
      }
      return;
    }
    module.gate_up = own(module.experts, Role::experts_gate_up, layer);
    module.gate_up_bias = own(module.experts, Role::experts_gate_up_bias, layer);
    module.down = own(module.experts, Role::experts_down, layer);
    module.down_bias = own(module.experts, Role::experts_down_bias, layer);
  }

  void own_linear(LinearModule& module, const char* name, Module* parent, Parameter* weight, Parameter* bias,
                  int layer) {
    add(module, name, parent, layer);
    module.weight = weight;
    module.bias = bias;
    if (weight) module.parameters.push_back(weight);
    if (bias) module.parameters.push_back(bias);
    adapt(module, layer);
  }

  void expert_mlp(MlpModule& module, const MlpParameters& own, Module* parent, int layer) {
    add(module, "mlp.expert", parent, layer);
    own_linear(module.gate, "mlp.expert.gate_proj", &module, own.gate, own.gate_bias, layer);
    own_linear(module.up, "mlp.expert.up_proj", &module, own.up, own.up_bias, layer);
    own_linear(module.down, "mlp.expert.down_proj", &module, own.down, own.down_bias, layer);
    add(module.activation, "mlp.expert.act_fn", &module, layer);
  }

  void native_mixture(MoeModule& module, const NativeMoeParameters& native, int layer) {
    add(module.native_layer, "mlp.deepspeed_moe", &module, layer);
    own_linear(module.router, "mlp.deepspeed_moe.gate", &module.native_layer, native.gate, nullptr, layer);
    add(module.experts, "mlp.deepspeed_moe.experts", &module.native_layer, layer);
    for (const MlpParameters& expert : native.experts) {
      expert_mlp(module.local_experts.emplace_back(), expert, &module.experts, layer);
    }
    module.has_residual = native.coefficient != nullptr;
    if (!module.has_residual) return;
    expert_mlp(module.residual, native.residual, &module, layer);
    own_linear(module.coefficient, "mlp.coefficient", &module, native.coefficient, native.coefficient_bias, layer);
  }

  void decoder_layer(int index) {
    DecoderLayerModule& layer = model_->layers.emplace_back();
    add(layer, "layer", &model_->body, index);
    attention(layer.attention, &layer, index);
    layer.is_moe = moe_of_layer(scenario_, static_cast<std::size_t>(index)).has_value();
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
  RankParameters parameters_;
};

}  // namespace

std::unique_ptr<TorchModel> build_modules(const Scenario& scenario) { return Builder(scenario).build(); }

}  // namespace plimsoll
