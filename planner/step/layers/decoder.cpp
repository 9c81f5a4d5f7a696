// The decoder layer, the loop over layers, the head and the loss (planner/step/layers/layers.hpp).
#include "planner/step/autograd/ops.hpp"
#include "planner/step/layers/layers.hpp"

namespace plimsoll {

Variable decoder_layer(LayerContext& c, DecoderLayerModule& module, Variable input, const RotaryTables& tables,
                       std::vector<Variable>* router_logits) {
  return call_module(c, module, std::move(input), [&](const Variable& x) {
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

namespace {

bool is_recomputed(const Recompute& recompute, int layer) {
  return recompute.every > 0 && layer % recompute.every == 0;
}

// logits -> mean cross-entropy, labels padded by one instead of shifting the logits.
Variable cross_entropy(LayerContext& c, const Variable& bf16_logits) {
  Autograd& g = c.g;
  const Dim n = c.tokens();
  const Variable logits = ops::cast(g, bf16_logits, DType::fp32, "logits in fp32");
  Tensor labels = c.trace.empty({{n.size + c.batch()}}, DType::int64, "padded labels");
  if (c.batch() > 1) labels = c.trace.empty({n}, DType::int64, "shifted labels");
  NodeRef softmax_node = g.make_node({&logits}, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(kept.shape, DType::fp32, "log-softmax gradient");
    ops::launch(call.trace, KernelKind::log_softmax_backward, {&call.grads[0], &kept}, call.out[0],
                "log-softmax backward");
  });
  Tensor probabilities = c.trace.empty(logits.shape, DType::fp32, "log-softmax");
  ops::launch(c.trace, KernelKind::log_softmax, {&logits}, probabilities, "log-softmax");
  g.save(softmax_node, probabilities);
  Variable log_softmax{std::move(probabilities)};
  log_softmax.grad_fn = std::move(softmax_node);

  const Shape shape = log_softmax.shape;
  NodeRef loss_node = g.make_node({&log_softmax}, [shape](BackwardCall& call) {
    call.out[0] = call.trace.empty(shape, DType::fp32, "nll gradient");
    ops::launch(call.trace, KernelKind::fill, {}, call.out[0], "nll backward");
  });
  Tensor loss = c.trace.empty({}, DType::fp32, "loss");
  const Tensor weight = c.trace.empty({}, DType::fp32, "loss weight");
  c.trace.compute(Kernel::pointwise(KernelKind::small, DType::fp32, n.size, Bytes(n.size * 4)), {&log_softmax, &labels},
                  {&loss}, "nll loss");
  g.save(loss_node, labels);
  g.save(loss_node, weight);
  g.save(loss_node, log_softmax.data());
  Variable result{std::move(loss)};
  result.grad_fn = std::move(loss_node);
  return result;
}

// All layers' router logits joined; softmax, top-k and their product (load_balancing_loss_func).
Variable auxiliary_loss(LayerContext& c, const std::vector<Variable>& router_logits) {
  Variable total;
  for (const Variable& logits : router_logits) {
    const Variable probabilities = ops::softmax(c.g, logits, logits.dtype, "auxiliary loss softmax");
    NodeRef node = c.g.make_node({&probabilities}, [shape = probabilities.shape](BackwardCall& call) {
      call.out[0] = call.trace.empty(shape, DType::fp32, "auxiliary loss gradient");
      ops::launch(call.trace, KernelKind::expanded_divide, {}, call.out[0], "auxiliary loss backward");
    });
    Tensor mean = c.trace.empty({logits.shape.last()}, DType::fp32, "mean router probability");
    ops::launch(c.trace, KernelKind::reduce_rows, {&probabilities}, mean, "auxiliary loss");
    Variable term{std::move(mean)};
    term.grad_fn = std::move(node);
    total = total ? ops::add(c.g, total, term, "auxiliary loss") : term;
  }
  return total;
}

}  // namespace

Variable causal_lm_loss(LayerContext& c, TorchModel& model, const Variable& ids) {
  Autograd& g = c.g;
  std::vector<Variable> router_logits;
  std::vector<Variable>* wanted = c.scenario.model.router_logits_in_loss ? &router_logits : nullptr;
  return call_module(c, model, ids, [&](const Variable& input) {
    Variable hidden = call_module(c, model.body, input, [&](const Variable& tokens) {
      const Variable embedded = call_module(c, model.embed_tokens, tokens, [&](const Variable& indices) {
        return ops::embedding(g, indices, *model.embedding, "embedding output");
      });
      const Tensor positions = c.trace.empty({{c.sequence(), Symbol::sequence}}, DType::int64, "position ids");
      RotaryTables tables;
      call_module(c, model.rotary, embedded, [&](const Variable& in) {
        tables = rotary_tables(c, in);
        return tables.cos;
      });
      Variable x = embedded;
      for (DecoderLayerModule& layer : model.layers) {
        Scoped where(c.trace.layer, static_cast<std::int16_t>(layer.layer));
        if (is_recomputed(c.scenario.plan.recompute, layer.layer)) {
          x = g.checkpoint([&c, &layer, x, tables, wanted] { return decoder_layer(c, layer, x, tables, wanted); });
        } else {
          x = decoder_layer(c, layer, x, tables, wanted);
        }
      }
      return norm(c, model.norm, x);
    });
    Scoped category(c.trace.category, Category::logits_and_loss);
    const Variable logits = linear(c, model.head, hidden, "logits");
    Variable loss = cross_entropy(c, logits);
    if (!router_logits.empty()) {
      const Variable balance = auxiliary_loss(c, router_logits);
      loss = ops::add(g, loss, balance, "loss");
    }
    c.outputs = std::move(router_logits);
    c.outputs.push_back(logits);
    return loss;
  });
}

}  // namespace plimsoll
