// The decoder layer, the loop over layers, the head and the loss (planner/step/layers/layers.hpp).
#include "planner/step/autograd/ops.hpp"
#include "planner/step/layers/compiled.hpp"
#include "planner/step/layers/layers.hpp"

namespace plimsoll {

namespace {

/// Under DeepSpeed the hooks of submodules break the graph at every module: its layers run as eager ones do.
bool is_compiled(const Plan& plan) {
  return plan.compile && (plan.engine == Engine::fsdp2 || plan.engine == Engine::ddp);
}

bool is_recomputed(const Recompute& recompute, int layer) {
  return recompute.every > 0 && layer % recompute.every == 0;
}

/// 0, 1, 2, ... and, since no mask is given, the question whether they restart anywhere (packed sequences): the host waits
/// for the answer before it goes on.
Tensor position_ids(LayerContext& c) {
  const std::int64_t s = c.sequence();
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
  const Tensor first = make(1, DType::int64, "position before the first", positions);
  {
    const Tensor joined = make(s + 1, DType::int64, "positions with one before", positions);
    steps = make(s, DType::int64, "steps between positions", joined);
  }
  const Tensor restarts = make(s, DType::boolean, "restarts", steps);
  sums = make(s, DType::int64, "sums of restarts", restarts);
  const Tensor none = make(1, DType::boolean, "no restart", sums);
  c.trace.record(HostSync{Lane::compute}, Lane::host, {&none}, {}, "packed sequences");
  return positions;
}

}  // namespace

Variable decoder_layer(LayerContext& c, DecoderLayerModule& module, Variable input, const RotaryTables& tables,
                       std::vector<Variable>* router_logits) {
  return call_module(c, module, std::move(input), [&](const Variable& x) {
    if (is_compiled(c.scenario.plan)) return compiled_decoder_layer(c, module, x, tables, router_logits);
    Variable hidden;
    {
      Variable normed = norm(c, module.input_norm, x);
      normed = attention(c, module.attention, normed, tables);
      hidden = ops::add(c.g, x, normed, "residual after attention");
    }
    Variable out = norm(c, module.post_attention_norm, hidden);
    out = module.is_moe ? mixture_of_experts(c, module.moe, out, router_logits)
                        : mlp(c, module.mlp, out, {module.mlp.gate.weight->shape.dim(0).size, Symbol::intermediate});
    return ops::add(c.g, hidden, out, "residual after mlp");
  });
}

Variable causal_lm_loss(LayerContext& c, TorchModel& model, const Variable& ids) {
  Autograd& g = c.g;
  std::vector<Variable> router_logits;
  std::vector<Variable>* wanted = c.scenario.model.router_logits_in_loss ? &router_logits : nullptr;
  return call_module(c, model, ids, [&](const Variable& input) {
    Variable hidden = call_module(c, model.body, input, [&](const Variable& tokens) {
      const Variable embedded = call_module(c, model.embed_tokens, tokens, [&](const Variable& indices) {
        return ops::embedding(g, indices, *model.embedding, "embedding output");
      });
      const Tensor positions = position_ids(c);
      RotaryTables tables;
      call_module(c, model.rotary, embedded, [&](const Variable& in) {
        tables = rotary_tables(c, in);
        return tables.cos;
      });
      Variable x = embedded;
      for (DecoderLayerModule& layer : model.layers) {
        Scoped where(c.trace.layer, static_cast<std::int16_t>(layer.layer));
        if (is_recomputed(c.scenario.plan.recompute, layer.layer)) {
          x = g.checkpoint([&c, &layer, x, tables, wanted] { return decoder_layer(c, layer, x, tables, wanted); },
                           is_compiled(c.scenario.plan));
        } else {
          x = decoder_layer(c, layer, x, tables, wanted);
        }
      }
      return norm(c, model.norm, x);
    });
    return language_loss(c, model.head, hidden, std::move(router_logits));
  });
}

}  // namespace plimsoll
