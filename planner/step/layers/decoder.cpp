// The decoder layer, the loop over layers, the head and the loss (planner/step/layers/layers.hpp).
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/attention.hpp"
#include "planner/step/layers/compiled.hpp"
#include "planner/step/layers/layers.hpp"

#include <algorithm>

#include "planner/base/give_up.hpp"

namespace plimsoll {

namespace {

/// Implementations with the scores in memory add a mask to them.
bool needs_masks(const Scenario& scenario) {
  const auto& layers = scenario.model.layers;
  return scenario.plan.attention == AttentionImplementation::eager ||
         std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) { return layer.attention.sinks; });
}

/// Qwen2-MoE makes the mask of its sliding windows whether a layer has one or not: [S, S] booleans that live as long as the
/// model's forward.  (Its configuration sets the window to 0 where none is used, so that no length is below it.)
Tensor window_mask(LayerContext& c) {
  if (c.scenario.model.family != "qwen2_moe" || needs_masks(c.scenario)) return {};
  const Dim s{c.sequence(), Symbol::sequence};
  const auto make = [&](const Tensor& from, const char* name) {
    Tensor mask = c.trace.empty({s, s}, DType::boolean, name);
    ops::launch(c.trace, KernelKind::vectorized, {&from}, mask, "window mask");
    return mask;
  };
  Tensor window;
  {
    const Tensor after = make({}, "after the window's begin");
    window = make(after, "window mask");
  }
  const Tensor causal = make({}, "not ahead");
  return make(window, "window mask");
}

bool is_recomputed(const Recompute& recompute, int layer) {
  return recompute.every > 0 && layer % recompute.every == 0;
}

/// 0, 1, 2, ... and, since no mask is given, the question whether they restart anywhere (packed sequences): the host waits
/// for the answer before it goes on.
Tensor position_ids(LayerContext& c) {
  const std::int64_t s = c.sequence(), b = c.batch();
  const auto make = [&](std::int64_t elements, DType dtype, const char* name, const Tensor& from) {
    Tensor tensor = c.trace.empty({{elements, Symbol::sequence}}, dtype, name);
    ops::launch(c.trace, KernelKind::small, {&from}, tensor, "packed sequences");
    return tensor;
  };
  Tensor positions;
  {
    const Tensor range = make(s, DType::int64, "position range", {});
    positions = make(s, DType::int64, "position ids", range);
  }
  Tensor sums, steps;
  const Tensor first = make(b, DType::int64, "position before the first", positions);
  {
    const Tensor joined = make(b * (s + 1), DType::int64, "positions with one before", positions);
    steps = make(b * s, DType::int64, "steps between positions", joined);
  }
  const Tensor restarts = make(b * s, DType::boolean, "restarts", steps);
  sums = make(b * s, DType::int64, "sums of restarts", restarts);
  make(b * s, DType::int64, "restarts in 64 bits", restarts);
  const Tensor none = make(b, DType::boolean, "no restart", sums);
  c.trace.record(HostSync{Lane::compute}, Lane::host, {&none}, {}, "packed sequences");
  return positions;
}

}  // namespace

namespace {

Variable feed_forward(LayerContext& c, DecoderLayerModule& module, const Variable& x,
                      std::vector<Variable>* router_logits) {
  return module.is_moe ? mixture_of_experts(c, module.moe, x, router_logits)
                       : mlp(c, module.mlp, x, {module.mlp.gate.weight->shape.dim(0).size, Symbol::intermediate});
}

/// MiniMax-Text-01: the residual is the norm's output, and both branches are weighted by constants.
Variable weighted_layer(LayerContext& c, DecoderLayerModule& module, const Variable& x, const RotaryTables& tables,
                        std::vector<Variable>* router_logits) {
  const auto weighted_sum = [&](const Variable& residual, const Variable& branch) {
    Variable right;
    const Variable left = ops::scale(c.g, residual, "weighted residual");
    right = ops::scale(c.g, branch, "weighted branch");
    return ops::add(c.g, left, right, "weighted sum");
  };
  Variable hidden = norm(c, module.input_norm, x);
  {
    const Variable attended = attention(c, module.attention, hidden, tables);
    hidden = weighted_sum(hidden, attended);
  }
  hidden = norm(c, module.post_attention_norm, hidden);
  const Variable mixed = feed_forward(c, module, hidden, router_logits);
  return weighted_sum(hidden, mixed);
}

}  // namespace

Variable decoder_layer(LayerContext& c, DecoderLayerModule& module, Variable input, const RotaryTables& tables,
                       std::vector<Variable>* router_logits) {
  return call_module(c, module, std::move(input), [&](const Variable& x) {
    Scoped weights(c.attention_weights, Tensor{});
    if (c.scenario.model.family == "minimax" || c.scenario.model.family == "minimax_text_01") {
      return weighted_layer(c, module, x, tables, router_logits);
    }
    if (compiles_modules(c.scenario)) return layer_of_pieces(c, module, x, tables, router_logits);
    if (c.scenario.plan.compile) return compiled_decoder_layer(c, module, x, tables, router_logits);
    Variable hidden;
    {
      Variable normed = norm(c, module.input_norm, x);
      normed = attention(c, module.attention, normed, tables);
      hidden = ops::add(c.g, x, normed, "residual after attention");
    }
    Variable out = norm(c, module.post_attention_norm, hidden);
    out = feed_forward(c, module, out, router_logits);
    return ops::add(c.g, hidden, out, "residual after mlp");
  });
}

namespace {

/// Adapters with recomputation: a hook makes the frozen embedding's output need a gradient, so that checkpoints of either kind
/// find a graph (enable_input_require_grads of Hugging Face, which its trainer calls).  An engine's hooks come after it.
Variable with_gradient(LayerContext& c, const TorchModel& model, const Variable& embedded) {
  const bool hooked = c.scenario.plan.lora && c.scenario.plan.recompute.every > 0 && !model.embedding->trainable;
  return hooked ? c.g.require_gradient(embedded.data()) : embedded;
}

/// @param depth how many of the model's wrappers have been entered
Variable loss_within(LayerContext& c, TorchModel& model, const Variable& ids, std::size_t depth) {
  if (depth < model.wrappers.size()) {
    return call_module(c, model.wrappers[depth], ids,
                       [&](const Variable& input) { return loss_within(c, model, input, depth + 1); });
  }
  Autograd& g = c.g;
  std::vector<Variable> router_logits;
  std::vector<Variable>* wanted = c.scenario.model.router_logits_in_loss ? &router_logits : nullptr;
  return call_module(c, model, ids, [&](const Variable& input) {
    Variable hidden = call_module(c, model.body, input, [&](const Variable& tokens) {
      Scoped masks(c.masks, {});  // they outlive the embedding's output
      // Traces of four frameworks: 0.6 ms pass between the batch and the first kernel of the model, whatever the framework.
      c.trace.host_work(HostWorkKind::python, 20, "enter the model");
      const Variable embedded = call_module(c, model.embed_tokens, tokens, [&](const Variable& indices) {
        return with_gradient(c, model, ops::embedding(g, indices, *model.embedding, "embedding output"));
      });
      const Tensor positions = position_ids(c);
      const Tensor unread = window_mask(c);
      if (needs_masks(c.scenario)) c.masks = attention_masks(c, embedded.dtype);
      RotaryTables tables;
      call_module(c, model.rotary, embedded, [&](const Variable& in) {
        tables = rotary_tables(c, in);
        return tables.cos;
      });
      Variable x = embedded;
      for (DecoderLayerModule& layer : model.layers) {
        give_up_if_unwanted();
        Scoped where(c.trace.layer, static_cast<std::int16_t>(layer.layer));
        if (is_recomputed(c.scenario.plan.recompute, layer.layer)) {
          const auto block = [&c, &layer, x, tables, wanted, masks = c.masks] {
            Scoped current(c.masks, masks);
            return decoder_layer(c, layer, x, tables, wanted);
          };
          x = g.checkpoint(block, c.scenario.plan.compile && !compiles_modules(c.scenario));
        } else {
          x = decoder_layer(c, layer, x, tables, wanted);
        }
      }
      return norm(c, model.norm, x);
    });
    return language_loss(c, model.head, hidden, std::move(router_logits));
  });
}

}  // namespace

Variable causal_lm_loss(LayerContext& c, TorchModel& model, const Variable& ids) {
  return loss_within(c, model, ids, 0);
}

}  // namespace plimsoll
