// DeepSpeed's AutoEP layer (planner/step/layers/moe.hpp).  N tokens, k routes; N k rows are sent to the ranks that hold their
// experts, R arrive, and are permuted by expert into R' = roundup(R + 8 El, 8) rows, so that every expert's part is aligned.
//   kept   rows by expert 2 R' h, gate, up and their product 3 x 2 R' I, the combine buffer 2 k N h, index maps
// Source: deepspeed 0.19.8, module_inject/auto_ep_layer.py, moe/ep_kernels.py, moe/ep_experts.py, and the allocator trace of
// a real step.
#include <algorithm>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/moe.hpp"
#include "planner/step/layers/routers.hpp"

namespace plimsoll {

namespace {

constexpr std::int64_t alignment = 8;

/// The sizes of one call.
struct Sizes {
  Dim sent, received, padded, h, width, local;
  GroupRows by_expert;  ///< aligned
  int ranks = 1;
};

Sizes sizes_of(const LayerContext& c, const MoeModule& module) {
  const RoutedRows& rows = c.routing[static_cast<std::size_t>(module.index)];
  Sizes s;
  s.ranks = c.scenario.plan.expert_parallel;
  s.local = {module.spec->experts / s.ranks, Symbol::local_experts};
  s.sent = {rows.sent, Symbol::rows};
  s.received = {rows.received, Symbol::rows};
  s.padded = {round_up(rows.received + alignment * s.local.size, alignment), Symbol::padded_rows};
  s.by_expert.counted = rows.counted;
  for (const std::int64_t received : rows.by_expert)
    s.by_expert.rows.push_back(round_up(std::max(received, alignment), alignment));
  s.h = c.hidden();
  s.width = {module.spec->expert_intermediate, Symbol::intermediate};
  return s;
}

Tensor small(LayerContext& c, const Shape& shape, DType dtype, const char* name,
             std::initializer_list<const Tensor*> reads) {
  Tensor tensor = c.trace.empty(shape, dtype, name);
  ops::launch(c.trace, KernelKind::small, reads, tensor, name);
  return tensor;
}

/// Rows per local expert by source rank, exchanged; the host reads the totals.
Tensor exchange_counts(LayerContext& c, const Tensor& counts, const Sizes& s) {
  Tensor received = c.trace.empty(counts.shape, DType::int32, "rows received per expert");
  c.trace.collective({CollectiveKind::all_to_all, DType::int32, c.expert_group, counts.bytes(), received.bytes()},
                     {&counts}, {&received}, "rows per expert");
  const auto totals = [&](const Tensor& of) {
    Tensor sum = c.trace.empty({{s.ranks}}, DType::int64, "rows by rank");
    const Tensor wide = small(c, of.shape, DType::int64, "counts in 64 bits", {&of});
    ops::launch(c.trace, KernelKind::small, {&wide}, sum, "rows by rank");
    return sum;
  };
  Tensor splits;
  {
    const Tensor sent = totals(counts), arrived = totals(received);
    splits = small(c, {{std::int64_t{2} * s.ranks}}, DType::int64, "rows by rank", {&sent, &arrived});
  }
  c.trace.host_work(HostWorkKind::routing_counts, 1, "rows by rank");
  c.trace.record(HostSync{}, Lane::host, {&splits}, {}, "rows by rank");
  return received;
}

/// What permuting rows by expert and back needs.
struct Permutation {
  Tensor rows;    ///< source row of each padded position, int32
  Tensor counts;  ///< aligned rows per local expert
};

Permutation permute_indices(LayerContext& c, const Tensor& counts, const Sizes& s) {
  const Shape by_expert{s.local};
  const auto wide = [&](const Shape& shape) { return small(c, shape, DType::int64, "row counts", {&counts}); };
  Permutation result;
  Tensor starts, totals;
  {
    const Tensor sums = wide(counts.shape);
    starts = wide(counts.shape);
  }
  totals = wide(by_expert);
  result.counts = small(c, by_expert, DType::int32, "aligned rows per expert", {&totals});
  const Tensor ends = wide(by_expert), offsets = wide(by_expert);
  result.rows = small(c, {s.padded}, DType::int32, "source of each padded row", {&starts, &offsets});
  return result;
}

/// Padded position of every row: 8 (R + R') bytes are kept, the rest is gone at once.
Tensor inverse_permutation(LayerContext& c, const Permutation& permutation, const Sizes& s) {
  const Shape padded{s.padded};
  const auto made = [&](DType dtype) { return small(c, padded, dtype, "inverse permutation", {&permutation.rows}); };
  Tensor targets, valid, indices, positions;
  positions = made(DType::int64);
  indices = made(DType::int64);
  {
    Tensor below;
    const Tensor above = made(DType::boolean);
    below = made(DType::boolean);
    valid = made(DType::boolean);
  }
  {
    const Tensor beyond = made(DType::int64);
    targets = made(DType::int64);
  }
  return small(c, {{s.received.size + s.padded.size, Symbol::padded_rows}}, DType::int64, "inverse permutation",
               {&positions, &targets});
}

/// Rows gathered one to one; the backward gathers them back, by the other map.
Variable move_rows(LayerContext& c, const Variable& x, const Permutation& permutation, const Tensor& inverse, Dim out,
                   const char* name) {
  const auto gather = [name](Trace& trace, const Tensor& from, const Tensor& map, const Shape& shape) {
    Tensor result = trace.empty(shape, from.dtype, name);
    trace.compute(Kernel::pointwise(KernelKind::gather_rows, from.dtype, result.numel(), result.bytes() * 2),
                  {&from, &map}, {&result}, name);
    return result;
  };
  const Shape in = x.shape;
  NodeRef node = c.g.make_node(
      {&x}, [gather, in](BackwardCall& call) { call.out[0] = gather(call.trace, call.grads[0], call.saved(0), in); });
  c.g.save(node, permutation.rows);
  c.g.save(node, inverse);
  return ops::output_of(gather(c.trace, x, inverse, {out, x.shape.last()}), std::move(node));
}

/// silu(gate) up in one kernel each way; keeps gate and up.
Variable swiglu(LayerContext& c, const Variable& gate, const Variable& up) {
  NodeRef node = c.g.make_node({&gate, &up}, [](BackwardCall& call) {
    const Tensor &kept_gate = call.saved(0), &kept_up = call.saved(1);
    call.out[0] = call.trace.empty(kept_gate.shape, kept_gate.dtype, "gradient of expert gate");
    call.out[1] = call.trace.empty(kept_up.shape, kept_up.dtype, "gradient of expert up");
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_swiglu_backward, kept_up.dtype, kept_up.numel(), kept_up.bytes() * 5),
        {&call.grads[0], &kept_gate, &kept_up}, {&call.out[0], &call.out[1]}, "swiglu backward");
  });
  c.g.save(node, gate.data());
  c.g.save(node, up.data());
  Tensor result = c.trace.empty(gate.shape, gate.dtype, "expert activation");
  c.trace.compute(Kernel::pointwise(KernelKind::fused_swiglu, gate.dtype, result.numel(), result.bytes() * 3),
                  {&gate, &up}, {&result}, "swiglu");
  return ops::output_of(std::move(result), std::move(node));
}

Variable local_experts(LayerContext& c, MoeModule& module, const Variable& rows, const Tensor& counts, const Sizes& s) {
  return call_module(c, module.experts, rows, [&](const Variable& x) {
    Autograd& g = c.g;
    Variable activated, up, gate;
    const Tensor offsets = small(c, {s.local}, DType::int32, "expert offsets", {&counts});
    { const Tensor scan = c.trace.empty({{1023}}, DType::int8, "scan scratch", Category::temporaries); }
    gate = ops::grouped_mm(g, x, *module.w1, offsets, {false, "expert gate", "mlp.experts", s.by_expert});
    up = ops::grouped_mm(g, x, *module.w3, offsets, {false, "expert up", "mlp.experts", s.by_expert});
    activated = swiglu(c, gate, up);
    return ops::grouped_mm(g, activated, *module.w2, offsets, {false, "expert output", "mlp.experts", s.by_expert});
  });
}

/// Rows back in the order of their routes, weighted in fp32 and summed.
Variable combine(LayerContext& c, const Variable& rows, const Tensor& order, const Variable& weights, Dim k) {
  Autograd& g = c.g;
  const Dim n = c.tokens(), h = c.hidden();
  const Shape flat = rows.shape;
  NodeRef node = g.make_node({&rows}, [flat](BackwardCall& call) {
    call.out[0] = call.trace.empty(flat, call.grads[0].dtype, "gradient of returned rows");
    call.trace.compute(
        Kernel::pointwise(KernelKind::gather_rows, call.out[0].dtype, call.out[0].numel(), call.out[0].bytes() * 2),
        {&call.grads[0], &call.saved(0)}, {&call.out[0]}, "index_put backward");
  });
  g.save(node, order);
  Tensor buffer = c.trace.empty(flat, rows.dtype, "combine buffer");
  ops::launch(c.trace, KernelKind::fill, {}, buffer, "combine buffer");
  c.trace.compute(Kernel::pointwise(KernelKind::index_put, rows.dtype, rows.numel(), rows.bytes() * 2), {&rows, &order},
                  {&buffer}, "combine");
  const Variable output = ops::view(g, ops::output_of(std::move(buffer), std::move(node)), {n, k, h});
  Variable sum;
  {
    const Variable weighted =
        ops::mul(g, output, ops::view(g, weights, {n, k, {1}}), "weighted rows", KernelKind::mixed_mul);
    sum = ops::sum_middle(g, weighted, "sum over routes");
  }
  return ops::cast(g, sum, rows.dtype, "mixture output");
}

Variable routed_experts(LayerContext& c, MoeModule& module, const Variable& x, std::vector<Variable>* router_logits) {
  Scoped category(c.trace.category, Category::expert_buffers);
  Autograd& g = c.g;
  const Sizes s = sizes_of(c, module);
  Tensor received_counts;
  Variable output;
  Permutation permutation;
  Variable rows;
  Tensor expert_of_row;
  Variable sorted_weights;
  Tensor order;
  RouterOutput routed = run_autoep_router(c, module, x, router_logits);
  order = ops::sort(c.trace, routed.experts.view_as({s.sent}), "sorted expert ids").order;
  sorted_weights = ops::index_rows(g, ops::view(g, routed.weights, {s.sent}), order, s.sent, "sorted routing weights");
  expert_of_row = small(c, {s.sent}, DType::int64, "expert of each row", {&order});
  {
    const Tensor token = small(c, {s.sent}, DType::int64, "token of each row", {&order});
    rows = ops::index_rows(g, x, token, s.sent, "routed input");
  }
  if (s.ranks > 1) {
    received_counts = exchange_counts(c, routed.counts, s);
    rows = ops::all_to_all(g, rows, {s.received, s.h}, c.expert_group, "rows sent to experts");
  }
  permutation = permute_indices(c, s.ranks > 1 ? received_counts : routed.counts, s);
  rows = move_rows(c, rows, permutation, inverse_permutation(c, permutation, s), s.padded, "rows by expert");
  output = local_experts(c, module, rows, permutation.counts, s);
  output =
      move_rows(c, output, permutation, inverse_permutation(c, permutation, s), s.received, "rows in order of arrival");
  if (s.ranks > 1) output = ops::all_to_all(g, output, {s.sent, s.h}, c.expert_group, "rows sent back");
  Variable combined = combine(c, output, order, routed.weights, {module.spec->top_k, Symbol::top_k});
  routed.counts = {};
  sorted_weights = {};
  expert_of_row = {};
  return combined;
}

}  // namespace

Variable autoep_mixture(LayerContext& c, MoeModule& module, const Variable& input,
                        std::vector<Variable>* router_logits) {
  return call_module(c, module, input, [&](const Variable& x) {
    Variable output = routed_experts(c, module, x, router_logits);
    if (module.spec->shared_intermediate == 0) return output;
    Scoped flat(c.flat_tokens, module.spec->shared_gate);
    Variable beside = mlp(c, module.shared, x, {module.spec->shared_intermediate, Symbol::intermediate});
    if (module.spec->shared_gate) {
      Variable gate = linear(c, module.shared_gate, x, "shared expert gate");
      gate = ops::sigmoid(c.g, gate, "sigmoid of the shared expert's gate");
      beside = ops::mul(c.g, gate, beside, "gated shared expert", KernelKind::broadcast_row);
    }
    return ops::add(c.g, output, beside, "experts and shared expert");
  });
}

}  // namespace plimsoll
