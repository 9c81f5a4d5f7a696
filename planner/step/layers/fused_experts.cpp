// The reference runtime's mixture of experts (planner/step/layers/fused.hpp): router, rows to their experts, grouped products,
// and back.
//
// Rows of a rank are ordered by expert, so by destination.  What arrives is ordered by source, then by local expert; one pass
// regroups it by expert, so that each expert is one product.  Dropless: N k rows are sent, and the buffers of received rows
// have room for RoutedRows::bound of them; their numbers travel ahead, and the host waits for them.  With capacity: C slots
// for each expert and source, sizes are fixed and nothing is counted.
#include <algorithm>

#include "planner/step/layers/fused_parts.hpp"

namespace plimsoll {

namespace {

/// Sizes and counts of one mixture on this rank.
struct Mixture {
  FusedContext& c;
  const MoeSpec& spec;
  const RoutedRows& routed;
  std::int64_t local = 0;    ///< El
  std::int64_t sources = 1;  ///< ep
  Tensor sent_counts;        ///< [E], of the rows sent
  Tensor counts;             ///< dropless: [sources, El], of the rows that arrive

  std::int64_t tokens() const { return c.layers.tokens().size; }
  std::int64_t segment() const { return routed.capacity; }  ///< rows per source and expert; 0: counted
  Dim sent() const { return {routed.sent, segment() > 0 ? Symbol::capacity : Symbol::rows}; }
  Dim received() const { return {routed.bound, segment() > 0 ? Symbol::capacity : Symbol::rows}; }
  bool remote() const { return sources > 1; }
  CountedRows rows() const { return {counts, routed.received}; }
};

/// Rows to the ranks that hold their experts, or back.  Forward and backward are the same exchange, turned round.
Variable exchange(const Mixture& m, const Variable& rows, bool dispatch, const char* name) {
  Autograd& g = m.c.layers.g;
  const GroupId group = m.c.layers.expert_group;
  const Shape in = rows.shape;
  Shape to{dispatch ? m.received() : m.sent()};
  if (in.rank > 1) to.push(in.last());
  const std::int64_t width = in.rank > 1 ? in.last().size : 1;
  const RoutedRows routed = m.routed;
  const auto move = [group, width, routed](Trace& t, const Tensor& from, const Shape& shape, bool out,
                                           const Tensor& leaving, const Tensor& arriving, const char* what) {
    Tensor result = t.empty(shape, from.dtype, what, Category::expert_buffers);
    const Bytes sent = Elements(routed.sent * width) * from.dtype, got = Elements(routed.received * width) * from.dtype;
    Scoped lane(t.lane, Lane::exchange);
    t.collective({CollectiveKind::all_to_all, from.dtype, group, out ? sent : got, out ? got : sent},
                 {&from, out ? &leaving : &arriving, out ? &arriving : &leaving}, {&result}, what);
    return result;
  };
  const bool counted = m.segment() == 0;
  NodeRef node = g.make_node({&rows}, [=](BackwardCall& call) {
    const Tensor leaving = counted ? call.saved(0) : Tensor{}, arriving = counted ? call.saved(1) : Tensor{};
    call.out[0] = move(call.trace, call.grads[0], in, !dispatch, leaving, arriving, name);
  });
  if (counted) {
    g.save(node, m.sent_counts);
    g.save(node, m.counts);
  }
  return as_variable(move(m.c.layers.trace, rows, to, dispatch, m.sent_counts, m.counts, name), std::move(node));
}

/// From the order of arrival (source, expert) to the order of the products (expert, source), or back.
Variable regroup(const Mixture& m, const Variable& rows, bool back, const char* name) {
  Autograd& g = m.c.layers.g;
  const std::int64_t width = rows.shape.rank > 1 ? rows.shape.last().size : 1;
  const Mixture* mixture = &m;
  const std::int64_t moved = m.routed.received * width;
  const Call call{Routine::regroup,
                  {rows.shape.sizes[0], width, mixture->local, mixture->sources, mixture->segment(), back ? 1 : 0},
                  {}};
  const auto move = [moved](Trace& t, const Tensor& from, const Tensor& counts, const Call& what, const char* named) {
    Tensor result = t.empty(from.shape, from.dtype, named, Category::expert_buffers);
    t.compute(Kernel::pointwise(KernelKind::gather_rows, from.dtype, moved, Elements(2 * moved) * from.dtype), what,
              {&from, &counts}, {&result}, named);
    return result;
  };
  NodeRef node = g.make_node({&rows}, [=](BackwardCall& backward) {
    Call turned = call;
    turned.sizes[5] = back ? 0 : 1;
    const Tensor counts = backward.node.saved_count > 0 ? backward.saved(0) : Tensor{};
    backward.out[0] = move(backward.trace, backward.grads[0], counts, turned, name);
  });
  if (m.counts) g.save(node, m.counts);
  return as_variable(move(m.c.layers.trace, rows, m.counts, call, name), std::move(node));
}

/// One launch over all local experts; the weights' gradients go where the reduction reads them.
Variable grouped_product(const Mixture& m, const Variable& rows, Parameter* weight, Dim columns, const char* name) {
  Autograd& g = m.c.layers.g;
  const std::int64_t groups = m.local, expected = m.routed.received;
  const std::int64_t inner = rows.shape.last().size;
  const Shape in = rows.shape;
  const auto call_of = [=, sources = m.sources, segment = m.segment()](std::int64_t form, std::int64_t n,
                                                                       std::int64_t k, bool add = false) {
    return Call{Routine::grouped_product, {form, n, k, groups, sources, segment, add}, {}};
  };
  auto gradient_of = m.c.gradient_of;
  NodeRef node = g.make_node({&rows}, [=](BackwardCall& call) {
    const Tensor input = call.saved(0);
    const Tensor counts = call.node.saved_count > 1 ? call.saved(1) : Tensor{};
    const Tensor& dy = call.grads[0];
    call.out[0] = call.trace.empty(in, dy.dtype, "expert input gradient");
    call.trace.compute(Kernel::grouped_gemm(expected, inner, columns.size, dy.dtype, groups),
                       call_of(1, inner, columns.size), {&dy, &weight->data, &counts}, {&call.out[0]}, name);
    const GradientPlace dw = gradient_of({weight});
    call.trace.compute(Kernel::grouped_gemm(expected, inner, columns.size, dy.dtype, groups),
                       call_of(2, columns.size, inner, dw.add), {&dy, &input, &counts}, {&dw.tensor}, weight->name);
  });
  g.save(node, rows.data());
  if (m.counts) g.save(node, m.counts);
  Tensor result = m.c.layers.trace.empty({rows.shape.dim(0), columns}, rows.dtype, name);
  m.c.layers.trace.compute(Kernel::grouped_gemm(expected, columns.size, inner, rows.dtype, groups),
                           call_of(0, columns.size, inner), {&rows, &weight->data, &m.counts}, {&result}, name);
  return as_variable(std::move(result), std::move(node));
}

/// Each token's rows to their slots, or the sum of a token's slots: each is the other's backward.
Variable move_rows(const Mixture& m, const Variable& x, const Tensor& slots, bool to_slots, const char* name) {
  Autograd& g = m.c.layers.g;
  const Shape in = x.shape;
  const std::int64_t h = x.shape.last().size, tokens = m.tokens(), sent = m.routed.sent, k = m.spec.top_k;
  const std::int64_t clear = m.segment() > 0 ? 1 : 0;
  const auto move = [=](Trace& t, const Tensor& from, const Tensor& map, const Shape& shape, bool scatter) {
    Tensor result = t.empty(shape, from.dtype, name);
    const Bytes bytes = Elements((sent + tokens) * h) * from.dtype;
    // Each token's row is read once and written to its slots, or its slots are read and their sum is written: rows, both ways.
    t.compute(Kernel::pointwise(KernelKind::gather_rows, from.dtype, std::max(sent, tokens) * h, bytes),
              {scatter ? Routine::scatter_rows : Routine::gather_rows, {tokens, h, k, sent, clear}, {}}, {&from, &map},
              {&result}, name);
    return result;
  };
  NodeRef node = g.make_node(
      {&x}, [=](BackwardCall& call) { call.out[0] = move(call.trace, call.grads[0], call.saved(0), in, !to_slots); });
  g.save(node, slots);
  const Shape out{to_slots ? m.sent() : m.c.layers.tokens(), x.shape.last()};
  return as_variable(move(m.c.layers.trace, x, slots, out, to_slots), std::move(node));
}

struct Routed {
  Tensor slots;      ///< [N, k]
  Variable weights;  ///< [rows sent], fp32
};

/// Router: logits, the k largest, their weights, a slot for each row; its backward adds the losses that balance experts.
Routed route_tokens(Mixture& m, MoeModule& module, const Variable& x) {
  FusedContext& c = m.c;
  Trace& trace = c.layers.trace;
  Autograd& g = c.layers.g;
  const Dim n = c.layers.tokens(), experts{m.spec.experts, Symbol::experts};
  const Variable logits = fused_product(c, x, {module.router.weight}, experts, "router logits");
  Routed result;
  result.slots = trace.empty({n, {m.spec.top_k, Symbol::top_k}}, DType::int32, "slots");
  const Tensor weights = trace.empty({m.sent()}, DType::fp32, "routing weights");
  const Tensor counts = trace.empty({{2}, experts}, DType::int32, "rows per expert");
  const Numerics& numerics = c.layers.scenario.model.numerics;
  const auto mixtures = static_cast<double>(c.layers.routing.size());
  const double scale = c.loss_scale * static_cast<double>(n.size);
  const std::int64_t reported =
      g.recomputing ? 0 : report_slot::counts + static_cast<std::int64_t>(module.index) * experts.size;
  const Call call{Routine::route,
                  {n.size, experts.size, m.spec.top_k, m.segment(), numerics.renormalise_top_k, reported},
                  {scale, numerics.balance_loss / mixtures, numerics.z_loss / mixtures}};
  NodeRef node = g.make_node({&logits}, [call, shape = logits.shape](BackwardCall& back) {
    const Tensor kept = back.saved(0), slots = back.saved(1), sent = back.saved(2);
    back.out[0] = back.trace.empty(shape, kept.dtype, "router logits gradient");
    Call same = call;
    same.routine = Routine::route_backward;
    back.trace.compute(
        Kernel::pointwise(KernelKind::softmax_backward, DType::fp32, shape.numel(), back.out[0].bytes() * 2), same,
        {&back.grads[0], &slots, &kept, &sent}, {&back.out[0]}, "router backward");
  });
  g.save(node, logits.data());
  g.save(node, result.slots);
  g.save(node, counts);
  trace.compute(Kernel::pointwise(KernelKind::topk, DType::fp32, logits.numel(), logits.bytes()), call, {&logits},
                {&result.slots, &weights, &counts, &c.report}, "router top-k");
  result.weights = as_variable(weights, std::move(node));
  m.sent_counts = counts.part(0, {experts});
  return result;
}

/// Dropless between ranks: the numbers of rows travel ahead, to the device and to the host, which issues the exchange by them.
/// On one rank they stay on the device.
void count_rows(Mixture& m) {
  if (m.segment() > 0) return;
  Trace& trace = m.c.layers.trace;
  const Shape shape{{m.sources}, {m.local, Symbol::local_experts}};
  if (!m.remote()) {
    m.counts = m.sent_counts.view_as(shape);
    return;
  }
  m.counts = trace.empty(shape, DType::int32, "rows that arrive");
  Scoped lane(trace.lane, Lane::exchange);
  trace.collective({CollectiveKind::all_to_all, DType::int32, m.c.layers.expert_group, m.counts.bytes(), {}},
                   {&m.sent_counts}, {&m.counts}, "rows per expert");
  trace.record(HostCopy{false, true, m.sent_counts.bytes()}, Lane::exchange, {&m.sent_counts}, {}, "rows per expert");
  trace.record(HostCopy{false, true, m.counts.bytes()}, Lane::exchange, {&m.counts}, {}, "rows that arrive");
}
/// The host waits for them while the device permutes.
void wait_for_counts(const Mixture& m) {
  if (m.segment() == 0 && m.remote())
    m.c.layers.trace.record(HostSync{Lane::exchange}, Lane::host, {}, {}, "rows per expert");
}

}  // namespace

Variable fused_experts(FusedContext& c, MoeModule& module, const Variable& x) {
  Scoped category(c.layers.trace.category, Category::expert_buffers);
  const std::int64_t ep = c.layers.scenario.plan.expert_parallel;
  Mixture m{
      c, *module.spec, c.layers.routing[static_cast<std::size_t>(module.index)], module.spec->experts / ep, ep, {}, {}};
  const Dim width{m.spec.expert_intermediate, Symbol::intermediate};
  const Dim h{c.layers.scenario.model.hidden, Symbol::hidden};
  Routed routed = route_tokens(m, module, x);
  count_rows(m);
  Variable rows = move_rows(m, x, routed.slots, true, "permuted rows");
  wait_for_counts(m);
  // The weights travel with the rows and are applied inside the activation, so that the expert output is not kept.
  Variable weights = std::exchange(routed.weights, {});
  if (m.remote()) {
    weights = exchange(m, weights, true, "routing weights");
    rows = exchange(m, rows, true, "dispatched rows");
    weights = regroup(m, weights, false, "routing weights by expert");
    rows = regroup(m, rows, false, "rows by expert");
  }
  {
    const Variable joined =
        grouped_product(m, rows, module.gate_up, {2 * width.size, Symbol::intermediate}, "expert gate and up");
    rows = {};
    const Variable activated = fused_swiglu(c, joined, weights, width, m.rows());
    rows = grouped_product(m, activated, module.down, h, "expert output");
  }
  if (m.remote()) {
    rows = regroup(m, rows, true, "expert output by source");
    rows = exchange(m, rows, false, "returned rows");
  }
  Variable combined = move_rows(m, rows, routed.slots, false, "combined experts");
  if (!module.shared.gate.weight) return combined;
  const Variable shared = fused_mlp(c, module.shared, x);
  return ops::add(c.layers.g, combined, shared, "experts and shared expert");
}

}  // namespace plimsoll
