// A mixture of experts of which torch.compile makes two programs: the router, and the experts behind it
// (planner/step/layers/compiled.hpp).  Where transformers captures router logits for the loss (a hook that asks a context
// variable, which the compiler cannot trace), or where DeepSpeed's hooks lie, the graph ends between them.
// Source: the compiler's programs for Mixtral's and Qwen3's grouped experts, on an H200 (PyTorch 2.11).
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/compiled.hpp"
#include "planner/step/layers/moe.hpp"
#include "planner/step/layers/routers.hpp"

namespace plimsoll {

namespace {

Tensor fused(Trace& trace, const Shape& shape, DType dtype, const char* name, const std::vector<const Tensor*>& reads) {
  Tensor tensor = trace.empty(shape, dtype, name);
  launch_fused(trace, reads, {&tensor}, name);
  return tensor;
}

/// Keeps the probabilities, what was chosen of them and their indices.
RouterOutput router_piece(LayerContext& c, MoeModule& module, const Variable& x) {
  Autograd& g = c.g;
  Trace& trace = c.trace;
  const Dim n = c.tokens(), k{module.spec->top_k, Symbol::top_k}, e{module.spec->experts, Symbol::experts};
  const Variable weight = g.leaf(*module.router.weight);
  const Shape in = x.shape;
  const char* role = module.router.name;
  NodeRef node = g.make_node({&x, &weight}, [=, &g](BackwardCall& call) {
    const Tensor& to_logits = call.grads[1];
    Tensor d_logits;
    {
      const Tensor spread = fused(call.trace, {n, e}, DType::fp32, "gradient of router probabilities",
                                  {&call.grads[0], &call.saved(3), &call.saved(4)});
      call.drop(3);
      call.drop(4);
      d_logits = fused(call.trace, {n, e}, call.saved(0).dtype, "gradient of router logits",
                       defined({&spread, &call.saved(2), &to_logits}));
    }
    call.drop(2);
    call.out[1] = ops::weight_gradient(g, d_logits, call.saved(0), call.saved(1).shape, role);
    call.drop(0);
    call.out[0] = ops::input_gradient(g, d_logits, call.saved(1), in, role);
  });
  RouterOutput out;
  Tensor logits = trace.empty({n, e}, x.dtype, "router logits");
  g.take_gemm_workspace();
  trace.compute(Kernel::gemm(n.size, e.size, x.shape.last().size, x.dtype), {&x, &weight}, {&logits}, role);
  const Tensor probabilities = fused(trace, {n, e}, DType::fp32, "router probabilities", {&logits});
  const Tensor values = trace.empty({n, k}, DType::fp32, "chosen probabilities");
  out.experts = trace.empty({n, k}, DType::int64, "chosen experts");
  trace.compute(Kernel::pointwise(KernelKind::topk, DType::fp32, probabilities.numel(), probabilities.bytes()),
                {&probabilities}, {&values, &out.experts}, "top k");
  const DType type = module.spec->scores_fp32 ? DType::fp32 : x.dtype;
  Tensor weights = fused(trace, {n, k}, type, "routing weights", {&values});
  g.save(node, x.data());
  g.save(node, weight);
  for (const Tensor* kept : {&probabilities, &values, static_cast<const Tensor*>(&out.experts)}) g.save(node, *kept);
  out.logits = ops::output_of(std::move(logits), node, 1);
  out.weights = ops::output_of(std::move(weights), std::move(node));
  return out;
}

/// Where each row goes: what sorting the chosen experts gives.
struct Places {
  Tensor order, inverse, token, offsets, mask;
};

Places sort_rows(LayerContext& c, const Tensor& experts, Dim r, Dim e) {
  Trace& trace = c.trace;
  Places places;
  ops::Sorted sorted = ops::sort(trace, experts.view_as({r}), "sorted expert ids");
  places.order = std::move(sorted.order);
  places.inverse = trace.empty({r}, DType::int64, "inverse permutation");
  places.token = trace.empty({r}, DType::int64, "token of each row");
  launch_fused(trace, {&places.order}, {&places.token, &places.inverse}, "places of rows");
  const Tensor narrow = trace.empty({r}, DType::int32, "expert ids in 32 bits");
  places.mask = trace.empty({r}, DType::boolean, "rows of no expert");
  launch_fused(trace, {&sorted.values}, {&narrow, &places.mask}, "expert ids in 32 bits");
  sorted.values.reset();
  places.offsets = fused(trace, {e}, DType::int32, "expert offsets", {&narrow});
  return places;
}

Variable experts_piece(LayerContext& c, MoeModule& module, const Variable& x, const RouterOutput& routed) {
  Autograd& g = c.g;
  Trace& trace = c.trace;
  const Dim e{module.spec->experts, Symbol::experts}, width{module.spec->expert_intermediate, Symbol::intermediate};
  const Dim r{c.tokens().size * module.spec->top_k, Symbol::rows}, h = c.hidden();
  Parameter &into = *module.gate_up, &back = *module.down;
  const Variable first = g.leaf(into), second = g.leaf(back);
  const Shape in = x.shape;
  const Dim both{2 * width.size, width.symbol};
  const char* role = "mlp.experts";
  NodeRef node = g.make_node({&x, &routed.weights, &first, &second}, [=, &g, &into, &back](BackwardCall& call) {
    enum Kept : std::size_t { weights, order, token, offsets, mask, rows, gate_up, product, out, inverse };
    Trace& t = call.trace;
    const auto multiply = [&](const Tensor& left, const Tensor& right, const Shape& shape, std::int64_t columns,
                              std::int64_t inner, const char* name, Category what) {
      Tensor result = t.empty(shape, left.dtype, name, what);
      ops::multiply_groups(g, Kernel::grouped_gemm(r.size, columns, inner, left.dtype, e.size), left, right,
                           call.saved(offsets), result, role);
      return result;
    };
    const DType type = call.saved(rows).dtype;
    Tensor d_out;
    {
      const Tensor spread = fused(t, {r, h}, call.saved(weights).dtype, "gradient of weighted expert output",
                                  {&call.grads[0], &call.saved(inverse)});
      call.drop(inverse);
      call.out[1] = t.empty(call.saved(weights).shape, call.saved(weights).dtype, "gradient of routing weights");
      d_out = t.empty({r, h}, type, "gradient of expert output");
      launch_fused(t, {&spread, &call.saved(out), &call.saved(weights), &call.saved(order)}, {&d_out, &call.out[1]},
                   "combine backward");
    }
    for (const std::size_t kept : {order, weights, out}) call.drop(kept);
    call.out[3] = multiply(d_out, call.saved(product), back.shape, h.size, width.size, "expert weight gradient",
                           Category::gradients);
    call.drop(product);
    Tensor d_product =
        multiply(d_out, back.data, {r, width}, width.size, h.size, "gradient of expert activation", t.category);
    d_out.reset();
    Tensor d_gate_up = fused(t, {r, both}, type, "gradient of expert gate and up",
                             {&d_product, &call.saved(gate_up), &call.saved(mask)});
    d_product.reset();
    call.drop(gate_up);
    call.out[2] = multiply(d_gate_up, call.saved(rows), into.shape, both.size, h.size, "expert weight gradient",
                           Category::gradients);
    call.drop(rows);
    const Tensor d_rows =
        multiply(d_gate_up, into.data, {r, h}, h.size, both.size, "gradient of expert input rows", t.category);
    d_gate_up.reset();
    call.out[0] = fused(t, in, type, "expert input gradient", {&d_rows, &call.saved(token), &call.saved(mask)});
  });
  const auto multiply = [&](const Tensor& left, const Parameter& weight, Dim columns, const Tensor& ends,
                            const char* name) {
    Tensor result = trace.empty({r, columns}, left.dtype, name);
    ops::multiply_groups(g, Kernel::grouped_gemm(r.size, columns.size, left.shape.last().size, left.dtype, e.size),
                         left, weight.data, ends, result, role);
    return result;
  };
  const Places places = sort_rows(c, routed.experts, r, e);
  const Tensor rows = fused(trace, {r, h}, x.dtype, "expert input rows", {&x, &places.token, &places.mask});
  const Tensor gate_up = multiply(rows, into, both, places.offsets, "expert gate and up");
  launch_fused(trace, {&gate_up, &places.mask}, {&gate_up}, "rows of no expert");
  const Tensor product = fused(trace, {r, width}, x.dtype, "expert silu(gate) up", {&gate_up});
  const Tensor out = multiply(product, back, h, places.offsets, "expert output");
  launch_fused(trace, {&out, &places.mask}, {&out}, "rows of no expert");
  const Tensor weights = routed.weights.data();
  Tensor result = fused(trace, in, x.dtype, "mixture output", {&out, &weights, &places.inverse, &places.order});
  for (const Tensor* kept : {&weights, &places.order, &places.token, &places.offsets, &places.mask, &rows, &gate_up,
                             &product, &out, &places.inverse})
    g.save(node, *kept);
  return ops::output_of(std::move(result), std::move(node));
}

}  // namespace

Variable mixture_pieces(LayerContext& c, MoeModule& module, const Variable& input,
                        std::vector<Variable>* router_logits) {
  Scoped category(c.trace.category, Category::expert_buffers);
  return call_module(c, module, input, [&](const Variable& x) {
    Scoped compiled(c.trace.compiled, true);
    const RouterOutput routed = router_piece(c, module, x);
    if (router_logits && !c.g.recomputing) router_logits->push_back(routed.logits);
    return experts_piece(c, module, x, routed);
  });
}

}  // namespace plimsoll
