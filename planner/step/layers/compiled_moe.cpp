// The mixture of experts of a compiled layer (planner/step/layers/compiled.hpp).
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/compiled.hpp"
#include "planner/step/layers/moe.hpp"
#include "planner/step/layers/routers.hpp"

namespace plimsoll {

namespace {

/// Softmax, top k and normalisation; the probabilities are computed again from the logits in backward.
RouterOutput fused_router(LayerContext& c, MoeModule& module, const Variable& x, bool normalise) {
  Autograd& g = c.g;
  Trace& trace = c.trace;
  const Dim n = c.tokens(), k{module.spec->top_k, Symbol::top_k}, e{module.spec->experts, Symbol::experts};
  RouterOutput out;
  out.logits = linear(c, module.router, x, "router logits");
  NodeRef node = g.make_node({&out.logits}, [](BackwardCall& call) {
    const Tensor &logits = call.saved(0), &values = call.saved(1), &indices = call.saved(2);
    call.out[0] = call.trace.empty(logits.shape, logits.dtype, "gradient of router logits");
    launch_fused(call.trace, {&call.grads[0], &logits, &values, &indices}, {&call.out[0]}, "router backward");
  });
  Tensor values = trace.empty({n, k}, DType::fp32, "chosen probabilities");
  out.experts = trace.empty({n, k}, DType::int64, "chosen experts");
  {
    const Tensor probabilities = trace.empty({n, e}, DType::fp32, "router probabilities", Category::temporaries);
    launch_fused(trace, {&out.logits}, {&probabilities}, "router softmax");
    trace.compute(Kernel::pointwise(KernelKind::topk, DType::fp32, probabilities.numel(), probabilities.bytes()),
                  {&probabilities}, {&values, &out.experts}, "top k");
  }
  Tensor total;
  if (normalise) total = trace.empty({n, {1}}, DType::fp32, "sum of chosen scores");
  const DType type = module.spec->scores_fp32 ? DType::fp32 : out.logits.dtype;
  Tensor weights = trace.empty({n, k}, type, "routing weights");
  launch_fused(trace, {&values}, {&weights}, "routing weights");
  g.save(node, out.logits.data());
  g.save(node, values);
  g.save(node, out.experts);
  if (normalise) g.save(node, total);
  out.weights = ops::output_of(std::move(weights), std::move(node));
  return out;
}

/// silu(gate) up of both halves at once; keeps them, and backward writes the gradient of both into one tensor.
Variable expert_activation(LayerContext& c, const Variable& gate_up) {
  NodeRef node = c.g.make_node({&gate_up}, [](BackwardCall& call) {
    const Tensor& kept = call.saved(0);
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "gradient of expert gate and up");
    launch_fused(call.trace, {&call.grads[0], &kept}, {&call.out[0]}, "expert swiglu backward");
  });
  c.g.save(node, gate_up.data());
  const Dim both = gate_up.shape.last();
  Tensor product =
      c.trace.empty({gate_up.shape.dim(0), {both.size / 2, both.symbol}}, gate_up.dtype, "expert silu(gate) up");
  launch_fused(c.trace, {&gate_up}, {&product}, "expert swiglu");
  return ops::output_of(std::move(product), std::move(node));
}

/// Each token's experts' outputs, weighted and summed, in one kernel.
Variable combine(LayerContext& c, const Variable& rows, const Variable& weights, const Tensor& inverse,
                 const Tensor& mask) {
  NodeRef node = c.g.make_node({&rows, &weights}, [](BackwardCall& call) {
    const Tensor &kept = call.saved(0), &scores = call.saved(1), &position = call.saved(2), &none = call.saved(3);
    call.out[1] = call.trace.empty(scores.shape, scores.dtype, "gradient of routing weights");
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "gradient of expert output");
    launch_fused(call.trace, {&call.grads[0], &kept, &scores, &position, &none}, {&call.out[0], &call.out[1]},
                 "combine backward");
  });
  c.g.save(node, rows.data());
  c.g.save(node, weights.data());
  c.g.save(node, inverse);
  c.g.save(node, mask);
  Tensor result = c.trace.empty({c.tokens(), c.hidden()}, rows.dtype, "mixture output");
  launch_fused(c.trace, {&rows, &weights, &inverse, &mask}, {&result}, "combine");
  return ops::output_of(std::move(result), std::move(node));
}

Variable fused_experts(LayerContext& c, MoeModule& module, const Variable& x, const RouterOutput& routed) {
  Autograd& g = c.g;
  Trace& trace = c.trace;
  const Dim r{c.tokens().size * module.spec->top_k, Symbol::rows}, e{module.spec->experts, Symbol::experts};
  const bool input_major = is_input_major(module, c.scenario.model.hidden);
  const RoutedRows& rows_of = c.routing[static_cast<std::size_t>(module.index)];
  const GroupRows by_expert{rows_of.by_expert, rows_of.counted};
  const auto index = [&](Dim size, DType dtype, const char* name, const Tensor& from) {
    Tensor tensor = trace.empty({size}, dtype, name);
    launch_fused(trace, {&from}, {&tensor}, name);
    return tensor;
  };
  Variable rows, weights;
  Tensor order, offsets, mask;
  {
    const ops::Sorted sorted = ops::sort(trace, routed.experts.view_as({r}), "sorted expert ids");
    order = sorted.order;
    const Tensor token = index(r, DType::int64, "token of each row", order);
    rows = ops::index_rows(g, x, token, r, "expert input rows");
    weights = ops::index_rows(g, ops::view(g, routed.weights, {r}), order, r, "sorted routing weights");
    const Tensor histogram = index(e, DType::int32, "rows per expert", sorted.values);
    offsets = index(e, DType::int32, "expert offsets", histogram);
    mask = index(r, DType::boolean, "rows of no expert", sorted.values);
  }
  Variable out;
  {
    Variable product;
    {
      const Variable gate_up = ops::grouped_mm(g, rows, *module.gate_up, offsets,
                                               {input_major, "expert gate and up", "mlp.experts", by_expert});
      product = expert_activation(c, gate_up);
    }
    out = ops::grouped_mm(g, product, *module.down, offsets, {input_major, "expert output", "mlp.experts", by_expert});
  }
  const Tensor inverse = index(r, DType::int64, "inverse permutation", order);
  return combine(c, out, weights, inverse, mask);
}

}  // namespace

Variable compiled_mixture(LayerContext& c, MoeModule& module, const std::array<Variable, 3>& x,
                          std::vector<Variable>* router_logits) {
  const MoeSpec& spec = *module.spec;
  const RouterKind kind = router_kind(c.scenario, spec);
  const bool plain = kind.scores == RouterKind::Scores::softmax && !kind.fp32_product && !kind.scale && !kind.groups;
  const bool grouped = c.scenario.plan.moe.implementation == MoeImplementation::grouped;
  if (!plain || !grouped || spec.shared_intermediate > 0 || spec.expert_bias)
    return mixture_of_experts(c, module, x[0], router_logits);
  Scoped category(c.trace.category, Category::expert_buffers);
  const RouterOutput routed = fused_router(c, module, x[0], kind.normalise);
  if (router_logits && !c.g.recomputing) router_logits->push_back(routed.logits);
  return fused_experts(c, module, x[1], routed);
}

}  // namespace plimsoll
