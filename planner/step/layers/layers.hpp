// How does a Hugging Face model run under PyTorch, op by op?  One function per block, written as the Python is: a C++ local
// lives as long as the Python name it stands for, so that transients die where they do in a real step.
// Shapes: tokens N = b S in rows, features in columns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "planner/step/layers/module.hpp"

namespace plimsoll {

/// Rows of routed experts on one rank, for one MoE layer.
struct RoutedRows {
  std::int64_t sent = 0;                ///< rows this rank's tokens make: N k
  std::int64_t received = 0;            ///< rows that its local experts get (equal to sent without expert parallelism)
  std::int64_t capacity = 0;            ///< slots per expert of native MoE; fused: per expert and source, 0 if dropless
  std::int64_t bound = 0;               ///< fused: rows for which the buffers of received rows have room
  std::vector<std::int64_t> by_expert;  ///< `received`, by local expert
  bool counted = false;                 ///< as a step routed them, not as expected
};

struct LayerContext {
  Autograd& g;
  Trace& trace;
  const Scenario& scenario;
  ModuleHooks* hooks = nullptr;
  bool zero3_linear = false;        ///< DeepSpeed stage 3 replaces F.linear
  std::vector<RoutedRows> routing;  ///< by MoE layer
  GroupId expert_group = 0;         ///< all-to-all group of the experts
  std::vector<Variable> outputs;    ///< what the model's output object holds until the caller has taken the loss
  bool flat_tokens = false;         ///< modules are called with all tokens in one dimension
  bool pieces = false;              ///< inside a layer of which each module is a compiled program
  std::vector<Tensor> masks = {};   ///< additive attention masks, where scores are in memory
  /// Where scores are in memory, attention hands them back beside its output, and the layer names them until it returns.
  Tensor attention_weights = {};

  std::int64_t batch() const { return scenario.plan.micro_batch; }
  std::int64_t sequence() const { return scenario.plan.sequence; }
  Dim tokens() const { return {scenario.plan.tokens(), Symbol::tokens}; }
  Dim hidden() const { return {scenario.model.hidden, Symbol::hidden}; }
};

/// Calls a module: hooks before and after, `forward` between.
template <class Forward>
Variable call_module(LayerContext& c, Module& module, Variable input, Forward forward) {
  if (c.hooks) c.hooks->before_forward(module, input);
  Variable output = forward(input);
  if (c.hooks) c.hooks->after_forward(module, output);
  return output;
}

/// cos and sin for one batch row, shared by all layers.
struct RotaryTables {
  Variable cos, sin;
};

Variable linear(LayerContext& c, LinearModule& module, const Variable& x, const char* output_name);
/// RMSNorm or LayerNorm over the last dimension.
Variable norm(LayerContext& c, NormModule& module, const Variable& x);
RotaryTables rotary_tables(LayerContext& c, const Variable& hidden);
/// Rotary position embedding of q or k [N, width].
Variable rotate(LayerContext& c, const Variable& x, const RotaryTables& tables, Dim width);
Variable attention(LayerContext& c, AttentionModule& module, const Variable& input, const RotaryTables& tables);
Variable mlp(LayerContext& c, MlpModule& module, const Variable& input, Dim width);
/// A mixture of experts; adds its router logits to `router_logits` when the loss needs them.
Variable mixture_of_experts(LayerContext& c, MoeModule& module, const Variable& x,
                            std::vector<Variable>* router_logits);
Variable decoder_layer(LayerContext& c, DecoderLayerModule& module, Variable input, const RotaryTables& tables,
                       std::vector<Variable>* router_logits);
/// Final hidden states -> loss: head, cross-entropy, and the auxiliary loss over all layers' router logits, if there are any.
/// What the model's output holds goes to c.outputs.
Variable language_loss(LayerContext& c, LinearModule& head, const Variable& hidden,
                       std::vector<Variable> router_logits);
/// ids -> loss of one micro-batch (model.forward with labels; only the loss is kept).
Variable causal_lm_loss(LayerContext& c, TorchModel& model, const Variable& ids);

}  // namespace plimsoll
