// Of which modules is the model made?  The tree of torch modules with their parameters, as frameworks see it: engines hang
// their hooks on modules and flatten parameters in the tree's order.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "planner/spec/scenario.hpp"
#include "planner/step/autograd/autograd.hpp"

namespace plimsoll {

struct Module {
  const char* name = "";  ///< "self_attn.q_proj"
  int id = 0;             ///< in construction order
  int layer = -1;
  std::vector<Parameter*> parameters;  ///< its own, not its children's
  std::vector<Module*> children;       ///< in the order of named_children()
  bool keyword_input = false;          ///< called with its input by keyword: backward hooks on its inputs do not fire
  bool zero3_leaf = false;             ///< ZeRO-3 fetches and reduces it as a whole

  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
};

struct AdapterModules;
struct LinearModule : Module {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  AdapterModules* adapter = nullptr;  ///< low-rank: this module is then what wraps the linear layer itself
};
/// PEFT's lora.Linear: the frozen layer, a dropout or nothing in its place, A [r, in] and B [out, r].
struct AdapterModules {
  LinearModule base, a, b;
  Module dropout;
};
struct NormModule : Module {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  ///< LayerNorm only
};
struct AttentionModule : Module {
  const AttentionSpec* spec = nullptr;
  LinearModule q, k, v, o;
  NormModule q_norm, k_norm;          ///< per head or over the whole width
  LinearModule q_a, q_b, kv_a, kv_b;  ///< latent attention
  NormModule q_a_norm, kv_a_norm;
  LinearModule index_q, index_k, index_weights;  ///< indexer
  NormModule index_k_norm;
  NormModule output_norm;  ///< lightning attention
  LinearModule output_gate;
  Parameter* sinks = nullptr;
};
struct MlpModule : Module {
  LinearModule gate, up, down;
  Module activation;
};
struct MoeModule : Module {
  const MoeSpec* spec = nullptr;
  int index = 0;  ///< among the MoE layers
  LinearModule router;
  Module experts;
  Parameter* gate_up = nullptr;  ///< fused [E, 2I, h]
  Parameter* down = nullptr;     ///< fused [E, h, I]
  Parameter* gate_up_bias = nullptr;
  Parameter* down_bias = nullptr;
  Parameter* score_correction_bias = nullptr;
  MlpModule shared;
  LinearModule shared_gate;
  std::deque<MlpModule> local_experts;  ///< experts as modules of their own: those of a loop, this rank's of native MoE
  /// Native DeepSpeed MoE: the layer around them, and with a residual the dense expert beside them and the weight that
  /// mixes both.
  Module native_layer;
  Variable balance_loss;  ///< of the last call, which keeps it and its graph until the next
  Tensor expert_counts;
  bool has_residual = false;
  MlpModule residual;
  LinearModule coefficient;
  Module autoep_router;  ///< AutoEP: what holds the router's product
  /// AutoEP's repacked local weights: w1 and w3 [El, I, h], w2 [El, h, I].
  Parameter* w1 = nullptr;
  Parameter* w2 = nullptr;
  Parameter* w3 = nullptr;
};
struct DecoderLayerModule : Module {
  NormModule input_norm, post_attention_norm;
  AttentionModule attention;
  MlpModule mlp;
  MoeModule moe;
  bool is_moe = false;
};

/// The model as a tree of modules, for one rank.
struct TorchModel : Module {
  Module body;
  Module embed_tokens;
  Module rotary;
  std::deque<DecoderLayerModule> layers;
  NormModule norm;
  LinearModule head;
  Parameter* embedding = nullptr;
  std::deque<Parameter> parameters_in_order;  ///< construction order; a tied head is not repeated
  std::deque<ParameterDecl> replaced;         ///< declarations of parameters that only this rank's model has
  std::deque<MoeSpec> mixtures;               ///< of the MoE layers, in order
  std::deque<AdapterModules> adapters;        ///< of the linear layers that have one
  std::deque<Module> wrappers;                ///< of PEFT around the model, outermost first; none without adapters
  std::vector<Module*> modules;               ///< by id

  const Module& outermost() const { return wrappers.empty() ? *this : wrappers.front(); }
};

/// Builds the tree.  Under expert parallelism (native, AutoEP) expert parameters are this rank's local ones.
std::unique_ptr<TorchModel> build_modules(const Scenario& scenario);

/// What an engine does around the call of a module; the default does nothing.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  /// May replace the input by a variable with a node of its own.
  virtual void before_forward(Module&, Variable& /*input*/) {}
  virtual void after_forward(Module&, Variable& /*output*/) {}
};

}  // namespace plimsoll
