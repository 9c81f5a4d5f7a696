// transformers 4's mixture of experts (planner/step/layers/moe.hpp): a loop over the experts that were hit, each with its own
// weights, its rows gathered and its results added into the output.  Kept per routed row: its input 2h, gate, silu(gate), up
// and product 8I, the expert's output 2h.
// Source: the block's code in transformers 4.57; no measured row, so the order of events is assumed from it.
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/moe.hpp"

namespace plimsoll {

namespace {

/// torch.where(mask of one expert [k, N]): the route and the token of each of its rows, in one tensor.
Tensor rows_of_expert(LayerContext& c, Dim rows, const Tensor& mask, const Shape& routes) {
  const Tensor of_expert = c.trace.empty(routes, DType::int64, "mask of one expert", Category::temporaries);
  ops::launch(c.trace, KernelKind::strided_copy, {&mask}, of_expert, "rows of an expert");
  c.trace.record(HostSync{}, Lane::host, {&of_expert}, {}, "rows of an expert");
  Tensor places = c.trace.empty({{2}, rows}, DType::int64, "route and token of each row");
  ops::launch(c.trace, KernelKind::small, {&of_expert}, places, "rows of an expert");
  return places;
}

/// output.index_add_(0, token, rows): keeps the tokens; backward gathers the rows of the gradient.
Variable add_rows_in_place(Autograd& g, const Variable& output, const Tensor& token, const Variable& rows) {
  const Shape shape = rows.shape;
  NodeRef node = g.make_node({&output, &rows}, [shape](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    if (call.wants(1)) {
      call.out[1] = call.trace.empty(shape, call.grads[0].dtype, "gradient of added rows");
      ops::launch(call.trace, KernelKind::gather_rows, {&kept}, call.out[1], "index_add backward");
    }
    if (call.wants(0)) call.out[0] = std::move(call.grads[0]);
  });
  g.save(node, token);
  g.trace.compute(Kernel::pointwise(KernelKind::index_add, rows.dtype, rows.numel(), rows.bytes() * 3), {&rows, &token},
                  {&output}, "index_add_");
  return ops::output_of(output.data(), std::move(node));
}

}  // namespace

Variable looped_experts(LayerContext& c, MoeModule& module, const Variable& x, const Tensor& experts,
                        const Variable& weights) {
  Autograd& g = c.g;
  Trace& trace = c.trace;
  const Dim e{module.spec->experts, Symbol::experts};
  const RoutedRows& routed = c.routing[static_cast<std::size_t>(module.index)];
  Tensor mask;
  Variable output;
  Variable weighted, state;
  Tensor places;
  const Variable narrow = ops::cast(g, weights, x.dtype, "routing weights");
  output = Variable{trace.empty(x.shape, x.dtype, "mixture output")};
  ops::launch(trace, KernelKind::fill, {}, output, "mixture output");
  mask = trace.empty({experts.shape.dim(0), experts.shape.dim(1), e}, DType::int64, "one-hot choice of experts");
  ops::launch(trace, KernelKind::fill, {&experts}, mask, "one_hot");
  trace.record(HostSync{}, Lane::host, {&mask}, {}, "experts that were hit");
  for (std::size_t i = 0; i < module.local_experts.size(); ++i) {
    const Dim rows{routed.by_expert[i], Symbol::rows};
    if (rows.size == 0) continue;
    places = rows_of_expert(c, rows, mask, experts.shape);
    const Tensor index = places.view_as({rows});
    state = ops::index_rows(g, x, index, rows, "expert input rows");
    {
      const Variable result = mlp(c, module.local_experts[i], state, {module.spec->expert_intermediate});
      const Variable chosen = ops::index_rows(g, ops::view(g, narrow, {{narrow.numel()}}), index, rows, "row weights");
      weighted =
          ops::mul(g, result, ops::view(g, chosen, {rows, {1}}), "weighted expert output", KernelKind::broadcast_row);
    }
    output = add_rows_in_place(g, output, index, ops::cast(g, weighted, x.dtype, "weighted expert output"));
  }
  return output;
}

}  // namespace plimsoll
