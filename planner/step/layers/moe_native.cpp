// DeepSpeed's native mixture of experts (planner/step/layers/moe.hpp).  N tokens, E experts of C slots, k routes; El = E / ep
// experts on this rank, each of which computes ep C rows, empty slots included.
//   kept   gate input in fp32 4 N h, routes gathered back 2 k N h, and by expert gate, silu, up, product 8 I per row; the rows
//          themselves twice 2 h where an expert's rows are strided (ep > 1 and El > 1: gate and up each copy them), else once
// Source: deepspeed 0.19.8, moe/sharded_moe.py and experts.py, and the allocator trace of a real step.
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/moe.hpp"
#include "planner/step/layers/native_gate.hpp"

namespace plimsoll {

namespace {

/// Flat slot of every route [k, N]: expert * C + location; routes that were dropped go to one slot beyond the last.
Tensor route_slots(LayerContext& c, const GateOutput& gate) {
  const Shape routes = gate.experts.shape;
  const auto made = [&](DType dtype, std::initializer_list<const Tensor*> from) {
    Tensor tensor = c.trace.empty(routes, dtype, "slot of each route");
    ops::launch(c.trace, KernelKind::small, from, tensor, "route slots");
    return tensor;
  };
  Tensor scratch, flat;
  {
    Tensor location, product;
    {
      const Tensor expert = made(DType::int64, {&gate.experts});
      product = made(DType::int64, {&expert});
    }
    location = made(DType::int64, {&gate.slots});
    flat = made(DType::int64, {&product, &location});
  }
  scratch = made(DType::int64, {});
  const Tensor kept = made(DType::boolean, {&gate.experts});
  return made(DType::int64, {&kept, &flat, &scratch});
}

/// Token of every slot [E C + 1]; slots that nothing is routed to name the row of zeros.
Tensor source_of_slots(LayerContext& c, Dim all_slots) {
  Tensor source = c.trace.empty({{all_slots.size + 1, Symbol::capacity}}, DType::int64, "token of each slot");
  ops::launch(c.trace, KernelKind::fill, {}, source, "token of each slot");
  return source;
}

Variable dispatch(LayerContext& c, const Variable& x, const Tensor& slots, Dim all_slots) {
  Variable padded;
  Tensor tokens;
  const Tensor source = source_of_slots(c, all_slots);
  tokens = c.trace.empty({c.tokens()}, DType::int64, "token indices");
  if (slots.shape.dim(0).size > 1) {
    const Tensor expanded = c.trace.empty(slots.shape, DType::int64, "token indices by route");
    ops::launch(c.trace, KernelKind::small, {&tokens, &slots}, expanded, "token of each slot");
    ops::launch(c.trace, KernelKind::small, {&slots, &expanded}, source, "token of each slot");
  }
  padded = ops::with_zero_row(c.g, x, "input with a row of zeros");
  return ops::select_rows(c.g, padded, source, all_slots, "dispatch buffer");
}

Variable combine(LayerContext& c, const Variable& output, const Tensor& slots, const Variable& weights) {
  Autograd& g = c.g;
  const Dim k = slots.shape.dim(0), n = c.tokens(), h = c.hidden();
  Variable sum, routed, padded;
  padded = ops::with_zero_row(g, output, "expert output with a row of zeros");
  routed = ops::select_rows(g, padded, slots, {k.size * n.size, Symbol::rows}, "routes gathered back");
  routed = ops::view(g, routed, {k, n, h});
  {
    const Variable weighted =
        ops::mul(g, routed, ops::view(g, weights, {k, n, {1}}), "weighted routes", KernelKind::mixed_mul);
    sum = ops::sum_first(g, weighted, "sum over routes");
  }
  return ops::cast(g, sum, output.dtype, "mixture output");
}

/// One expert on its rows; strided rows are copied for each product that reads them, and so is the gradient of its output.
Variable expert(LayerContext& c, MlpModule& module, const Variable& rows, bool strided) {
  return call_module(c, module, rows, [&](const Variable& x) {
    const auto contiguous = [&] {
      return strided ? ops::reordered(c.g, x, x.shape, "expert rows in memory order") : x;
    };
    Variable product;
    {
      Variable activated;
      {
        const Variable gate = linear(c, module.gate, contiguous(), "expert gate");
        activated = call_module(c, module.activation, gate,
                                [&](const Variable& in) { return ops::silu(c.g, in, "silu(expert gate)"); });
      }
      const Variable up = linear(c, module.up, contiguous(), "expert up");
      product = ops::mul(c.g, activated, up, "expert silu(gate) up", KernelKind::vectorized);
    }
    const Variable out = linear(c, module.down, product, "expert output");
    return ops::view(c.g, out, out.shape, strided);
  });
}

Variable local_experts(LayerContext& c, MoeModule& module, const Variable& dispatched, Dim capacity) {
  return call_module(c, module.experts, dispatched, [&](const Variable& input) {
    const int ep = c.scenario.plan.expert_parallel;
    const auto local = static_cast<std::int64_t>(module.local_experts.size());
    const bool strided = ep > 1 && local > 1;
    const Shape rows{{capacity.size * ep, Symbol::rows}, c.hidden()};
    Variable last;
    std::vector<Variable> outputs;
    const std::vector<Variable> chunks = ops::split(c.g, input, local, rows);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      last = expert(c, module.local_experts[i], chunks[i], strided);
      outputs.push_back(last);
    }
    Variable joined = ops::join(c.g, outputs, input.shape, "expert outputs");
    while (!outputs.empty()) outputs.pop_back();  // a Python list gives up its last item first
    return joined;
  });
}

Variable routed_experts(LayerContext& c, MoeModule& module, const Variable& input) {
  Scoped category(c.trace.category, Category::expert_buffers);
  return call_module(c, module.native_layer, input, [&](const Variable& whole) {
    const Variable x = ops::view(c.g, whole, whole.shape);  // tokens in one dimension
    const Dim capacity{c.routing[static_cast<std::size_t>(module.index)].capacity, Symbol::capacity};
    const Dim all_slots{module.spec->experts * capacity.size, Symbol::capacity};
    const bool exchanges = c.scenario.plan.expert_parallel > 1;
    const auto exchanged = [&](const Variable& rows, const char* name) {
      return exchanges ? ops::all_to_all(c.g, rows, rows.shape, c.expert_group, name) : rows;
    };
    Variable output, dispatched;
    GateOutput gate = run_native_gate(c, module, x);
    const Tensor slots = route_slots(c, gate);
    dispatched = dispatch(c, x, slots, all_slots);
    dispatched = exchanged(dispatched, "rows sent to experts");
    output = local_experts(c, module, dispatched, capacity);
    output = exchanged(output, "rows sent back");
    Variable combined = combine(c, output, slots, gate.weights);
    gate.experts = {};
    gate.slots = {};
    dispatched = {};
    return combined;
  });
}

}  // namespace

Variable native_mixture(LayerContext& c, MoeModule& module, const Variable& input) {
  return call_module(c, module, input, [&](const Variable& x) {
    Variable output = routed_experts(c, module, x);
    if (!module.has_residual) return output;
    // Residual MoE: both outputs weighted by a softmax of two.
    const Dim n = c.tokens();
    const Variable dense = mlp(c, module.residual, x, {module.spec->expert_intermediate, Symbol::intermediate});
    Variable coefficient = linear(c, module.coefficient, x, "mixing logits");
    coefficient = ops::softmax(c.g, coefficient, coefficient.dtype, "mixing weights");
    const auto half = [&] { return ops::view(c.g, ops::slice_half(c.g, coefficient), {n, {1}}); };
    const Variable from_experts = ops::mul(c.g, output, half(), "weighted experts", KernelKind::broadcast_row);
    const Variable from_dense = ops::mul(c.g, dense, half(), "weighted dense expert", KernelKind::broadcast_row);
    return ops::add(c.g, from_experts, from_dense, "residual mixture output");
  });
}

}  // namespace plimsoll
