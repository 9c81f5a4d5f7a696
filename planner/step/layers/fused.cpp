// The reference runtime's layers (planner/step/layers/fused.hpp).
#include "planner/step/layers/fused.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll {

namespace {

Variable as_variable(Tensor tensor, NodeRef node) {
  Variable result{std::move(tensor)};
  result.grad_fn = std::move(node);
  return result;
}

/// A weight as the sharding engine provides it: its storage is emptied and filled between uses, so only its name is kept.
Variable weight_of(Parameter& parameter) {
  Variable variable{parameter.data};
  variable.parameter = &parameter;
  return variable;
}

/// y = x W^T for one or several weights side by side (q, k, v; gate, up): one product, one weight gradient each.
Variable product(FusedContext& c, const Variable& x, std::vector<Parameter*> weights, Dim columns, const char* name) {
  Autograd& g = c.layers.g;
  const std::int64_t inner = x.shape.last().size;
  const Shape in = x.shape;
  auto gradient_of = c.gradient_of;
  NodeRef node = g.make_node({&x}, [=](BackwardCall& call) {
    const Tensor input = call.saved(0);
    const Tensor& dy = call.grads[0];
    const std::int64_t rows = input.numel() / inner;
    call.out[0] = call.trace.empty(in, dy.dtype, "input gradient");
    call.trace.compute(Kernel::gemm(rows, inner, columns.size, dy.dtype), {&dy, &weights.front()->data}, {&call.out[0]},
                       name);
    for (Parameter* weight : weights) {
      const Tensor dw = gradient_of(*weight);
      call.trace.compute(Kernel::gemm(weight->shape.dim(0).size, inner, rows, dy.dtype), {&dy, &input}, {&dw},
                         weight->name);
    }
  });
  g.save(node, x.data());
  Shape shape = x.shape;
  shape.sizes[static_cast<std::size_t>(shape.rank) - 1] = columns.size;
  shape.symbols[static_cast<std::size_t>(shape.rank) - 1] = columns.symbol;
  Tensor result = c.layers.trace.empty(shape, x.dtype, name);
  g.take_gemm_workspace();
  c.layers.trace.compute(Kernel::gemm(x.numel() / inner, columns.size, inner, x.dtype), {&x, &weights.front()->data},
                         {&result}, name);
  return as_variable(std::move(result), std::move(node));
}

struct Normed {
  Variable residual;  ///< the stream that goes on
  Variable output;
};

/// residual = x + branch (if there is one); output = RMSNorm(residual).  Keeps the residual and 4 bytes a row.
Normed add_and_norm(FusedContext& c, const Variable& x, const Variable& branch, NormModule& module) {
  Autograd& g = c.layers.g;
  Trace& trace = c.layers.trace;
  Parameter* weight = module.weight;
  auto gradient_of = c.gradient_of;
  // Two outputs: 0 the stream, 1 the normalised; their gradients meet here and leave as one, shared by both inputs.
  NodeRef node = g.make_node({&x, &branch}, [=](BackwardCall& call) {
    const Tensor stream = call.saved(0), rstd = call.saved(1);
    Tensor dx = call.grads[0] && call.grads[0].storage.references() == 1
                    ? call.grads[0]
                    : call.trace.empty(stream.shape, stream.dtype, "residual gradient");
    const Tensor dw = gradient_of(*weight);
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_norm_backward, stream.dtype, stream.numel(), stream.bytes() * 4),
        {&call.grads[1], &call.grads[0], &stream, &rstd, &weight->data}, {&dx, &dw}, "norm backward");
    if (call.wants(1)) call.out[1] = dx;
    call.out[0] = std::move(dx);
  });
  Normed result;
  Tensor stream = branch ? trace.empty(x.shape, x.dtype, "residual stream") : x.data();
  Tensor output = trace.empty(x.shape, x.dtype, "norm output");
  Shape rows;
  rows.push(x.shape.dim(0));
  const Tensor rstd = trace.empty(rows, DType::fp32, "norm rstd");
  trace.compute(Kernel::pointwise(KernelKind::fused_norm, x.dtype, x.numel(), x.bytes() * (branch ? 4 : 2)),
                {&x, &branch, &weight->data}, {branch ? &stream : nullptr, &output, &rstd}, "norm");
  g.save(node, stream);
  g.save(node, rstd);
  result.residual = as_variable(std::move(stream), node);
  result.output = as_variable(std::move(output), std::move(node));
  result.output.output_index = 1;
  return result;
}

/// Rotary in place, attention on views of the joined q, k, v, output projection.
Variable fused_attention(FusedContext& c, AttentionModule& module, const Variable& x) {
  Autograd& g = c.layers.g;
  Trace& trace = c.layers.trace;
  const AttentionSpec& spec = *module.spec;
  const Dim columns{spec.q_width() + 2 * spec.kv_width(), Symbol::number};
  const Variable qkv = product(c, x, {module.q.weight, module.k.weight, module.v.weight}, columns, "qkv projection");
  const Dim n = c.layers.tokens();
  const Dim heads{spec.q_heads, Symbol::heads};
  const std::int64_t batch = c.layers.batch(), sequence = c.layers.sequence();
  const auto kernel = [=](KernelKind kind, Bytes bytes) {
    Kernel k = Kernel::pointwise(kind, DType::bf16, n.size * spec.q_width(), bytes);
    k.batch = batch * spec.q_heads;
    k.m = k.n = sequence;
    k.k = spec.head_dim;
    return k;
  };
  std::vector<Parameter*> norms;
  if (module.q_norm.weight) norms = {module.q_norm.weight, module.k_norm.weight};
  auto gradient_of = c.gradient_of;
  const Shape qkv_shape = qkv.shape;
  NodeRef node = g.make_node({&qkv}, [=](BackwardCall& call) {
    const Tensor joined = call.saved(0), lse = call.saved(1), out = call.saved(2);
    Tensor d = call.trace.empty(qkv_shape, joined.dtype, "qkv gradient");
    {
      // dq is summed in fp32 beside the row sums.
      const Tensor workspace = call.trace.empty({{4 * n.size * spec.q_width() + 4 * n.size * heads.size}}, DType::int8,
                                                "attention backward workspace", Category::workspace);
      call.trace.compute(kernel(KernelKind::attention_backward, joined.bytes() * 3),
                         {&call.grads[0], &joined, &lse, &out}, {&d, &workspace}, "attention backward");
    }
    call.trace.compute(Kernel::pointwise(KernelKind::fused_rotary, d.dtype, d.numel(), d.bytes() * 2), {&d}, {&d},
                       "rotary backward");
    for (Parameter* norm : norms) {
      const Tensor dw = gradient_of(*norm);
      call.trace.compute(Kernel::pointwise(KernelKind::fused_norm_backward, d.dtype, d.numel(), d.bytes() * 2),
                         {&d, &joined}, {&dw, &d}, "head norm backward");
    }
    call.out[0] = std::move(d);
  });
  for (Parameter* norm : norms) {
    trace.compute(Kernel::pointwise(KernelKind::fused_norm, qkv.dtype, qkv.numel(), qkv.bytes() * 2),
                  {&qkv, &norm->data}, {&qkv}, "head norm");
  }
  trace.compute(Kernel::pointwise(KernelKind::fused_rotary, qkv.dtype, qkv.numel(), qkv.bytes() * 2), {&qkv}, {&qkv},
                "rotary");
  Tensor out = trace.empty({n, {spec.q_width(), Symbol::q_width}}, qkv.dtype, "attention output");
  const Tensor lse = trace.empty({n, heads}, DType::fp32, "attention log-sum-exp");
  trace.compute(kernel(KernelKind::attention_forward, qkv.bytes() + out.bytes()), {&qkv}, {&out, &lse}, "attention");
  g.save(node, qkv.data());
  g.save(node, lse);
  g.save(node, out);
  const Variable mixed = as_variable(std::move(out), std::move(node));
  return product(c, mixed, {module.o.weight}, {c.layers.scenario.model.hidden, Symbol::hidden}, "attention projection");
}

/// silu(gate) * up of the joined product, times a weight per row where there is one; keeps its inputs alone.
Variable swiglu(FusedContext& c, const Variable& joined, const Variable& row_weights, Dim width) {
  Autograd& g = c.layers.g;
  const Shape in = joined.shape;
  NodeRef node = g.make_node({&joined, &row_weights}, [in](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    const Tensor weights = call.wants(1) ? call.saved(1) : Tensor{};
    call.out[0] = call.trace.empty(in, kept.dtype, "gate and up gradient");
    if (call.wants(1)) call.out[1] = call.trace.empty(weights.shape, weights.dtype, "routing weights gradient");
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_swiglu_backward, kept.dtype, kept.numel() / 2, kept.bytes() * 5 / 2),
        {&call.grads[0], &kept, &weights}, {&call.out[0], &call.out[1]}, "swiglu backward");
  });
  g.save(node, joined.data());
  if (row_weights) g.save(node, row_weights.data());
  Tensor result = c.layers.trace.empty({joined.shape.dim(0), width}, joined.dtype, "swiglu output");
  c.layers.trace.compute(
      Kernel::pointwise(KernelKind::fused_swiglu, joined.dtype, result.numel(), joined.bytes() * 3 / 2),
      {&joined, &row_weights}, {&result}, "swiglu");
  return as_variable(std::move(result), std::move(node));
}

Variable fused_mlp(FusedContext& c, MlpModule& module, const Variable& x) {
  const Dim width{module.gate.weight->shape.dim(0).size, Symbol::intermediate};
  const Variable joined =
      product(c, x, {module.gate.weight, module.up.weight}, {2 * width.size, Symbol::intermediate}, "gate and up");
  const Variable activated = swiglu(c, joined, {}, width);
  return product(c, activated, {module.down.weight}, {c.layers.scenario.model.hidden, Symbol::hidden}, "mlp output");
}

/// Rows to the ranks that hold their experts, or back.  Forward and backward are the same exchange, turned round.
Variable exchange(FusedContext& c, const Variable& rows, Dim out, const char* name) {
  Autograd& g = c.layers.g;
  Trace& trace = c.layers.trace;
  const GroupId group = c.layers.expert_group;
  const Shape in = rows.shape;
  Shape to{out};
  if (in.rank > 1) to.push(in.last());
  const auto move = [group](Trace& t, const Tensor& from, const Shape& shape, const char* what) {
    Tensor result = t.empty(shape, from.dtype, what, Category::expert_buffers);
    Scoped lane(t.lane, Lane::exchange);
    t.collective({CollectiveKind::all_to_all, from.dtype, group, from.bytes(), result.bytes()}, {&from}, {&result},
                 what);
    return result;
  };
  NodeRef node =
      g.make_node({&rows}, [=](BackwardCall& call) { call.out[0] = move(call.trace, call.grads[0], in, name); });
  return as_variable(move(trace, rows, to, name), std::move(node));
}

/// One launch over all local experts; the weights' gradients go where the reduction reads them.
Variable grouped_product(FusedContext& c, const Variable& rows, std::vector<Parameter*> weights, Dim columns,
                         const char* name) {
  Autograd& g = c.layers.g;
  const std::int64_t groups = weights.front()->shape.dim(0).size;
  const std::int64_t inner = rows.shape.last().size, m = rows.shape.dim(0).size;
  const Shape in = rows.shape;
  auto gradient_of = c.gradient_of;
  NodeRef node = g.make_node({&rows}, [=](BackwardCall& call) {
    const Tensor input = call.saved(0);
    const Tensor& dy = call.grads[0];
    call.out[0] = call.trace.empty(in, dy.dtype, "expert input gradient");
    call.trace.compute(Kernel::grouped_gemm(m, inner, columns.size, dy.dtype, groups), {&dy, &weights.front()->data},
                       {&call.out[0]}, name);
    for (Parameter* weight : weights) {
      const Tensor dw = gradient_of(*weight);
      Kernel kernel = Kernel::grouped_gemm(m, inner, columns.size, dy.dtype, groups);
      kernel.n = inner;
      call.trace.compute(kernel, {&dy, &input}, {&dw}, weight->name);
    }
  });
  g.save(node, rows.data());
  Tensor result = c.layers.trace.empty({rows.shape.dim(0), columns}, rows.dtype, name);
  c.layers.trace.compute(Kernel::grouped_gemm(m, columns.size, inner, rows.dtype, groups),
                         {&rows, &weights.front()->data}, {&result}, name);
  return as_variable(std::move(result), std::move(node));
}

/// Gathers each token's rows (permute) or sums them with the routing weights (combine): one kernel, a row map of 4 bytes.
Variable move_rows(FusedContext& c, const Variable& x, const Tensor& map, Dim out, KernelKind kind, const char* name) {
  Autograd& g = c.layers.g;
  const Shape in = x.shape;
  NodeRef node = g.make_node({&x}, [=](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(in, call.grads[0].dtype, name);
    call.trace.compute(Kernel::pointwise(kind, call.out[0].dtype, std::max(call.out[0].numel(), call.grads[0].numel()),
                                         call.out[0].bytes() + call.grads[0].bytes()),
                       {&call.grads[0], &kept}, {&call.out[0]}, name);
  });
  g.save(node, map);
  Tensor result = c.layers.trace.empty({out, x.shape.last()}, x.dtype, name);
  c.layers.trace.compute(
      Kernel::pointwise(kind, x.dtype, std::max(x.numel(), result.numel()), x.bytes() + result.bytes()), {&x, &map},
      {&result}, name);
  return as_variable(std::move(result), std::move(node));
}

Variable fused_experts(FusedContext& c, MoeModule& module, const Variable& x) {
  Trace& trace = c.layers.trace;
  Scoped category(trace.category, Category::expert_buffers);
  const MoeSpec& spec = *module.spec;
  const RoutedRows& routed = c.layers.routing[static_cast<std::size_t>(module.index)];
  const Dim n = c.layers.tokens(), experts{spec.experts, Symbol::experts};
  const Dim sent{routed.sent, Symbol::rows}, received{routed.received, Symbol::rows};
  const Dim width{spec.expert_intermediate, Symbol::intermediate};
  const Dim h{c.layers.scenario.model.hidden, Symbol::hidden};
  const Variable logits = product(c, x, {module.router.weight}, experts, "router logits");
  const Tensor map = trace.empty({sent}, DType::int32, "row map");
  const Tensor scores = trace.empty({sent}, DType::fp32, "routing weights");
  Autograd& g = c.layers.g;
  NodeRef router = g.make_node({&logits}, [shape = logits.shape](BackwardCall& call) {
    call.out[0] = call.trace.empty(shape, DType::bf16, "router logits gradient");
    call.trace.compute(
        Kernel::pointwise(KernelKind::softmax_backward, DType::fp32, shape.numel(), call.out[0].bytes() * 2),
        {&call.grads[0]}, {&call.out[0]}, "router backward");
  });
  g.save(router, logits.data());
  g.save(router, scores);
  trace.compute(Kernel::pointwise(KernelKind::topk, DType::fp32, logits.numel(), logits.bytes()), {&logits},
                {&map, &scores}, "router top-k");
  Variable rows = move_rows(c, x, map, sent, KernelKind::gather_rows, "permuted rows");
  const bool remote = c.layers.scenario.plan.expert_parallel > 1;
  if (remote) {
    const Tensor counts = trace.empty({experts}, DType::int32, "rows per expert");
    Scoped lane(trace.lane, Lane::exchange);
    trace.collective({CollectiveKind::all_to_all, DType::int32, c.layers.expert_group, counts.bytes(), counts.bytes()},
                     {&counts}, {&counts}, "rows per expert");
  }
  // The weights travel with the rows and are applied inside the activation, so that the expert output is not kept.
  Variable weights{scores};
  weights.grad_fn = std::move(router);
  if (remote) weights = exchange(c, weights, received, "routing weights");
  if (remote) rows = exchange(c, rows, received, "dispatched rows");
  {
    const Variable joined =
        grouped_product(c, rows, {module.gate_up}, {2 * width.size, Symbol::intermediate}, "expert gate and up");
    rows = {};
    const Variable activated = swiglu(c, joined, weights, width);
    rows = grouped_product(c, activated, {module.down}, h, "expert output");
  }
  if (remote) rows = exchange(c, rows, sent, "returned rows");
  const Variable combined = move_rows(c, rows, map, n, KernelKind::index_add, "combined experts");
  if (!module.shared.gate.weight) return combined;
  const Variable shared = fused_mlp(c, module.shared, x);
  return ops::add(g, combined, shared, "experts and shared expert");
}

}  // namespace

Variable fused_decoder_layer(FusedContext& c, DecoderLayerModule& module, const Variable& x) {
  const Normed first = add_and_norm(c, x, {}, module.input_norm);
  Variable branch = fused_attention(c, module.attention, first.output);
  const Normed second = add_and_norm(c, first.residual, std::exchange(branch, {}), module.post_attention_norm);
  branch = module.is_moe ? fused_experts(c, module.moe, second.output) : fused_mlp(c, module.mlp, second.output);
  return ops::add(c.layers.g, second.residual, branch, "residual stream");
}

Variable fused_embedding(FusedContext& c, TorchModel& model, const Variable& ids) {
  Autograd& g = c.layers.g;
  Parameter* table = model.embedding;
  auto gradient_of = c.gradient_of;
  Variable leaf = weight_of(*table);
  leaf.grad_fn = NodeRef(new GraphNode);  // a leaf whose gradient is written in place
  leaf.grad_fn->sequence = 0;
  leaf.grad_fn->backward = [](BackwardCall&) {};
  NodeRef node = g.make_node({&leaf}, [=](BackwardCall& call) {
    const Tensor indices = call.saved(0);
    const Tensor dw = gradient_of(*table);
    call.trace.compute(Kernel::pointwise(KernelKind::embedding_backward, call.grads[0].dtype, call.grads[0].numel(),
                                         call.grads[0].bytes() * 2),
                       {&call.grads[0], &indices}, {&dw}, "embedding backward");
  });
  g.save(node, ids.data());
  Tensor result = c.layers.trace.empty({c.layers.tokens(), c.layers.hidden()}, table->dtype, "embedding output");
  ops::launch(c.layers.trace, KernelKind::gather_rows, {&ids, &table->data}, result, "embed_tokens");
  return as_variable(std::move(result), std::move(node));
}

Variable fused_loss(FusedContext& c, TorchModel& model, const Variable& x) {
  Autograd& g = c.layers.g;
  Trace& trace = c.layers.trace;
  const Normed last = add_and_norm(c, x, {}, model.norm);
  Scoped category(trace.category, Category::logits_and_loss);
  const Variable& hidden = last.output;
  Parameter* head = model.head.weight;
  const std::int64_t tokens = hidden.shape.dim(0).size, h = hidden.shape.last().size, vocab = head->shape.dim(0).size;
  const std::int64_t chunk = c.loss_chunk > 0 ? std::min(c.loss_chunk, tokens) : tokens;
  // The gradient of the mean loss is known with the logits: each chunk is turned into its gradient in place and used at once.
  NodeRef node = g.make_node({&hidden}, [](BackwardCall& call) { call.out[0] = call.saved(0); });
  Tensor loss = trace.empty({}, DType::fp32, "loss");
  Tensor d_hidden = trace.empty(hidden.shape, hidden.dtype, "hidden gradient");
  const Tensor dw = c.gradient_of(*head);
  for (std::int64_t done = 0; done < tokens; done += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - done);
    const Tensor logits =
        trace.empty({{rows, Symbol::tokens}, {vocab, Symbol::vocab}}, hidden.dtype, "logits of a chunk");
    g.take_gemm_workspace();
    trace.compute(Kernel::gemm(rows, vocab, h, hidden.dtype), {&hidden, &head->data}, {&logits}, "lm_head");
    trace.compute(Kernel::pointwise(KernelKind::log_softmax, hidden.dtype, logits.numel(), logits.bytes() * 2),
                  {&logits}, {&logits, &loss}, "cross-entropy and its gradient");
    trace.compute(Kernel::gemm(rows, h, vocab, hidden.dtype), {&logits, &head->data}, {&d_hidden}, "lm_head");
    trace.compute(Kernel::gemm(vocab, h, rows, hidden.dtype), {&logits, &hidden}, {&dw}, "lm_head");
  }
  g.save(node, d_hidden);
  return as_variable(std::move(loss), std::move(node));
}

}  // namespace plimsoll
