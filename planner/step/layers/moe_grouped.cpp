// Mixture-of-experts blocks of transformers 5 (planner/step/layers/moe.hpp): the rows of all experts, sorted by expert, in
// one grouped product over the fused weights.  R = N k rows whatever the routing; nothing is padded or dropped.
// Under autocast the experts stay in fp32: grouped products are no autocast operation.
// Source: integrations/moe.py and the families' blocks of transformers 5.17, and the allocator traces of Mixtral steps.
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/moe.hpp"
#include "planner/step/layers/routers.hpp"

namespace plimsoll {

namespace {

Tensor small(LayerContext& c, const Shape& shape, DType dtype, const char* name,
             std::initializer_list<const Tensor*> reads) {
  Tensor tensor = c.trace.empty(shape, dtype, name);
  ops::launch(c.trace, KernelKind::small, reads, tensor, name);
  return tensor;
}

/// Ends of the experts' row ranges: a histogram of the sorted ids, summed up.
Tensor expert_offsets(LayerContext& c, const Tensor& histogram, Dim experts) {
  Tensor offsets = small(c, {experts}, DType::int32, "expert offsets", {&histogram});
  const Tensor scan = c.trace.empty({{1023}}, DType::int8, "scan scratch", Category::temporaries);
  return offsets;
}

/// gate and up interleaved, both clamped; (up + 1) gate sigmoid(alpha gate)  (gpt-oss).
Variable clamped_gate(LayerContext& c, const Variable& gate_up) {
  Autograd& g = c.g;
  Shape half = gate_up.shape;
  half.sizes[1] /= 2;
  const Variable gate_view = ops::slice(g, gate_up, half), up_view = ops::slice(g, gate_up, half);
  const Variable gate = ops::clamp(g, gate_view, 1, "clamped gate");
  const Variable up = ops::clamp(g, up_view, 2, "clamped up");
  Variable glu;
  {
    const Variable sigmoid = ops::sigmoid(g, ops::scale(g, gate, "alpha gate"), "sigmoid(alpha gate)");
    glu = ops::mul(g, gate, sigmoid, "gated gate", KernelKind::vectorized);
  }
  const Variable shifted = ops::add_constant(g, up, "up + 1");
  return ops::mul(g, shifted, glu, "expert activation", KernelKind::vectorized);
}

Variable gated(LayerContext& c, MoeModule& module, const Variable& gate_up) {
  if (module.spec->expert_bias) return clamped_gate(c, gate_up);
  const auto [gate, up] = ops::halves(c.g, gate_up);
  const Variable activated = ops::silu(c.g, gate, "silu(expert gate)");
  return ops::mul(c.g, activated, up, "expert silu(gate) up", KernelKind::vectorized);
}

Variable grouped_experts(LayerContext& c, MoeModule& module, const Variable& x, const Tensor& experts,
                         const Variable& weights) {
  Autograd& g = c.g;
  const Dim n = c.tokens(), k{module.spec->top_k, Symbol::top_k}, e{module.spec->experts, Symbol::experts};
  const Dim r{n.size * k.size, Symbol::rows};
  const bool input_major = is_input_major(module, c.scenario.model.hidden);
  const RoutedRows& routed = c.routing[static_cast<std::size_t>(module.index)];
  const GroupRows by_expert{routed.by_expert, routed.counted};
  const auto product = [&](const Variable& rows, Parameter& weight, const Variable& bias, const Tensor& offsets,
                           const char* name) {
    const Variable out = ops::grouped_mm(g, rows, weight, offsets, {input_major, name, "mlp.experts", by_expert});
    return bias ? ops::add_in_place(g, out, bias) : out;
  };
  const auto row_bias = [&](Parameter* bias, const Tensor& ids) {
    return bias ? ops::index_rows(g, g.leaf(*bias), ids, r, "expert bias of each row") : Variable{};
  };
  // Names are cleared in the order of their first assignment; C++ locals die in reverse.
  Variable final_states, weighted, out, bias, sorted_weights, rows;
  Tensor inverse, mask, offsets, histogram, narrow_ids, order, ids;
  const Variable sample_weights = ops::view(g, weights, {r});
  {
    ops::Sorted sorted = ops::sort(c.trace, experts.view_as({r}), "sorted expert ids");
    ids = std::move(sorted.values);
    order = std::move(sorted.order);
  }
  {
    const Tensor token = small(c, {r}, DType::int64, "token of each row", {&order});
    rows = ops::index_rows(g, x, token, r, "expert input rows");
  }
  sorted_weights = ops::index_rows(g, sample_weights, order, r, "sorted routing weights");
  narrow_ids = small(c, {r}, DType::int32, "expert ids in 32 bits", {&ids});
  histogram = small(c, {e}, DType::int32, "rows per expert", {&narrow_ids});
  offsets = expert_offsets(c, histogram, e);
  mask = small(c, {r}, DType::boolean, "rows of no expert", {&ids});
  bias = row_bias(module.gate_up_bias, ids);
  rows = ops::masked_fill_in_place(g, rows, mask);
  out = product(rows, *module.gate_up, bias, offsets, "expert gate and up");
  out = ops::masked_fill(g, out, mask, "masked expert gate and up");
  out = gated(c, module, out);
  bias = row_bias(module.down_bias, ids);
  out = product(out, *module.down, bias, offsets, "expert output");
  out = ops::masked_fill(g, out, mask, "masked expert output");
  weighted = ops::mul(g, out, ops::view(g, sorted_weights, {r, {1}}), "weighted expert output", KernelKind::mixed_mul);
  inverse = c.trace.empty({r}, DType::int64, "inverse permutation");
  {
    const Tensor positions = small(c, {r}, DType::int64, "positions", {});
    ops::launch(c.trace, KernelKind::small, {&order, &positions}, inverse, "inverse permutation");
  }
  weighted = ops::index_rows(g, weighted, inverse, r, "expert output in token order");
  final_states = ops::sum_routes(g, weighted, n, k, "sum over routes");
  return ops::cast(g, final_states, x.dtype, "mixture output");
}

Variable experts_of(LayerContext& c, MoeModule& module, const Variable& x, const Tensor& experts,
                    const Variable& weights) {
  return call_module(c, module.experts, x, [&](const Variable& input) {
    return c.scenario.plan.moe.implementation == MoeImplementation::loop
               ? looped_experts(c, module, input, experts, weights)
               : grouped_experts(c, module, input, experts, weights);
  });
}

Variable shared_mlp(LayerContext& c, MoeModule& module, const Variable& x) {
  return mlp(c, module.shared, x, {module.spec->shared_intermediate, Symbol::intermediate});
}

}  // namespace

Variable grouped_mixture(LayerContext& c, MoeModule& module, const Variable& input,
                         std::vector<Variable>* router_logits) {
  return call_module(c, module, input, [&](const Variable& x) {
    const bool shared = module.spec->shared_intermediate > 0;
    // Qwen2-MoE and Hunyuan compute the shared expert first, DeepSeek and those built on it last.
    const bool shared_first = shared && (module.spec->shared_gate || c.scenario.model.family.starts_with("hunyuan"));
    Scoped flat(c.flat_tokens, module.spec->shared_gate);  // Qwen2-MoE hands its shared expert the flattened tokens
    RouterOutput routed;
    Variable output, beside;
    if (shared_first) beside = shared_mlp(c, module, x);
    routed = run_router(c, module, x);
    if (router_logits && !c.g.recomputing) router_logits->push_back(routed.logits);
    output = experts_of(c, module, x, routed.experts, routed.weights);
    if (module.spec->shared_gate) {
      Variable gate = linear(c, module.shared_gate, x, "shared expert gate");
      gate = ops::sigmoid(c.g, gate, "sigmoid of the shared expert's gate");
      beside = ops::mul(c.g, gate, beside, "gated shared expert", KernelKind::broadcast_row);
    }
    if (!shared) return output;
    if (!shared_first) beside = shared_mlp(c, module, x);
    return ops::add(c.g, output, beside, "experts and shared expert");
  });
}

Variable mixture_of_experts(LayerContext& c, MoeModule& module, const Variable& x,
                            std::vector<Variable>* router_logits) {
  Scoped category(c.trace.category, Category::expert_buffers);
  switch (c.scenario.plan.moe.implementation) {
    case MoeImplementation::native:
      if (module.native_layer.name[0] != '\0') return native_mixture(c, module, x);
      return grouped_mixture(c, module, x, router_logits);
    case MoeImplementation::autoep: return autoep_mixture(c, module, x, router_logits);
    case MoeImplementation::grouped:
      if (c.scenario.model.family == "llama4_text") return every_expert_mixture(c, module, x);
      return grouped_mixture(c, module, x, router_logits);
    case MoeImplementation::loop:
    case MoeImplementation::fused: return grouped_mixture(c, module, x, router_logits);
  }
  return {};
}

}  // namespace plimsoll
