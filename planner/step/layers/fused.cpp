// The reference runtime's layers (planner/step/layers/fused.hpp).
#include "planner/step/layers/fused.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "planner/step/layers/fused_parts.hpp"

namespace plimsoll {

Variable fused_product(FusedContext& c, const Variable& x, const std::vector<Parameter*>& weights, Dim columns,
                       const char* name) {
  Autograd& g = c.layers.g;
  const std::int64_t inner = x.shape.last().size, rows = x.numel() / inner;
  const Shape in = x.shape;
  auto gradient_of = c.gradient_of;
  NodeRef node = g.make_node({&x}, [=](BackwardCall& call) {
    const Tensor input = call.saved(0);
    const Tensor& dy = call.grads[0];
    call.out[0] = call.trace.empty(in, dy.dtype, "input gradient");
    // They lie side by side: one matrix from the first one's start.
    call.trace.compute(Kernel::gemm(rows, inner, columns.size, dy.dtype),
                       {Routine::product, {rows, inner, columns.size, 0, 0, 0}, {}}, {&dy, &weights.front()->data},
                       {&call.out[0]}, name);
    const GradientPlace dw = gradient_of(weights);
    call.trace.compute(Kernel::gemm(columns.size, inner, rows, dy.dtype),
                       {Routine::product, {columns.size, inner, rows, 1, 0, dw.add}, {}}, {&dy, &input}, {&dw.tensor},
                       weights.front()->name);
  });
  g.save(node, x.data());
  Shape shape = x.shape;
  shape.sizes[static_cast<std::size_t>(shape.rank) - 1] = columns.size;
  shape.symbols[static_cast<std::size_t>(shape.rank) - 1] = columns.symbol;
  Tensor result = c.layers.trace.empty(shape, x.dtype, name);
  c.layers.trace.compute(Kernel::gemm(rows, columns.size, inner, x.dtype),
                         {Routine::product, {rows, columns.size, inner, 0, 1, 0}, {}}, {&x, &weights.front()->data},
                         {&result}, name);
  return as_variable(std::move(result), std::move(node));
}

Variable fused_swiglu(FusedContext& c, const Variable& joined, const Variable& row_weights, Dim width,
                      const CountedRows& rows) {
  Autograd& g = c.layers.g;
  const Shape in = joined.shape;
  const std::int64_t expected = rows.expected > 0 ? rows.expected : in.sizes[0];
  Call call{Routine::swiglu, {in.sizes[0], width.size, row_weights ? 1 : 0, rows.counts ? rows.counts.numel() : 0}, {}};
  const std::int64_t size = size_of(joined.dtype);
  const bool counted = static_cast<bool>(rows.counts);
  NodeRef node = g.make_node({&joined, &row_weights}, [in, call, expected, size, width, counted](BackwardCall& back) {
    const Tensor kept = back.saved(0);
    const Tensor weights = back.wants(1) ? back.saved(1) : Tensor{};
    const Tensor counts = counted ? back.saved(2) : Tensor{};
    back.out[0] = back.trace.empty(in, kept.dtype, "gate and up gradient");
    if (back.wants(1)) back.out[1] = back.trace.empty(weights.shape, weights.dtype, "routing weights gradient");
    Call same = call;
    same.routine = Routine::swiglu_backward;
    back.trace.compute(Kernel::pointwise(KernelKind::fused_swiglu_backward, kept.dtype, expected * width.size,
                                         Bytes(expected * width.size * 5 * size)),
                       same, {&back.grads[0], &kept, &weights, &counts}, {&back.out[0], &back.out[1]},
                       "swiglu backward");
  });
  g.save(node, joined.data());
  if (row_weights) g.save(node, row_weights.data());
  if (counted) g.save(node, rows.counts);
  Tensor result = c.layers.trace.empty({joined.shape.dim(0), width}, joined.dtype, "swiglu output");
  c.layers.trace.compute(Kernel::pointwise(KernelKind::fused_swiglu, joined.dtype, expected * width.size,
                                           Bytes(expected * width.size * 3 * size)),
                         call, {&joined, &row_weights, &rows.counts}, {&result}, "swiglu");
  return as_variable(std::move(result), std::move(node));
}

Variable fused_mlp(FusedContext& c, MlpModule& module, const Variable& x) {
  const Dim width{module.gate.weight->shape.dim(0).size, Symbol::intermediate};
  const Variable joined = fused_product(c, x, {module.gate.weight, module.up.weight},
                                        {2 * width.size, Symbol::intermediate}, "gate and up");
  const Variable activated = fused_swiglu(c, joined, {}, width);
  return fused_product(c, activated, {module.down.weight}, {c.layers.scenario.model.hidden, Symbol::hidden},
                       "mlp output");
}

namespace {

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
  const std::int64_t width = x.shape.last().size, tokens = x.numel() / width;
  // Two outputs: 0 the stream, 1 the normalised; their gradients meet here and leave as one, shared by both inputs.
  NodeRef node = g.make_node({&x, &branch}, [=](BackwardCall& call) {
    const Tensor stream = call.saved(0), rstd = call.saved(1);
    Tensor dx = call.grads[0] && call.grads[0].storage.references() == 1
                    ? call.grads[0]
                    : call.trace.empty(stream.shape, stream.dtype, "residual gradient");
    const GradientPlace dw = gradient_of({weight});
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_norm_backward, stream.dtype, stream.numel(), stream.bytes() * 4),
        {Routine::norm_backward, {tokens, width, call.grads[0] ? 1 : 0, dw.add}, {}},
        {&call.grads[1], &call.grads[0], &stream, &rstd, &weight->data}, {&dx, &dw.tensor}, "norm backward");
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
                {Routine::norm, {tokens, width, branch ? 1 : 0}, {c.layers.scenario.model.numerics.norm_eps}},
                {&x, &branch, &weight->data}, {branch ? &stream : nullptr, &output, &rstd}, "norm");
  g.save(node, stream);
  g.save(node, rstd);
  result.residual = as_variable(std::move(stream), node);
  result.output = as_variable(std::move(output), std::move(node));
  result.output.output_index = 1;
  return result;
}

/// The launches of one attention, by its sizes.
struct AttentionLaunches {
  FusedContext& c;
  const AttentionSpec& spec;
  std::int64_t batch = c.layers.batch(), sequence = c.layers.sequence(), tokens = batch * sequence;

  Kernel kernel(KernelKind kind, const Tensor& qkv, Bytes bytes) const {
    Kernel k = Kernel::pointwise(kind, qkv.dtype, tokens * spec.q_width(), bytes);
    k.batch = batch * spec.q_heads;
    k.m = k.n = sequence;
    k.k = spec.head_dim;
    return k;
  }
  Call attention(Routine routine) const {
    return {routine, {batch, sequence, spec.q_heads, spec.kv_heads, spec.head_dim}, {}};
  }
  Call turn(Routine routine, std::int64_t last = 0) const {
    return {routine,
            {tokens, spec.q_heads, spec.kv_heads, spec.head_dim, sequence, c.rotary_constants, last},
            {c.layers.scenario.model.numerics.norm_eps}};
  }
  /// Reads or writes so many tensors of the size of q, k and v.
  static Kernel pass(KernelKind kind, const Tensor& qkv, int tensors = 2) {
    return Kernel::pointwise(kind, qkv.dtype, qkv.numel(), qkv.bytes() * tensors);
  }
};

/// q and k turned by their positions: in place, or, with norms of the heads, a copy beside what is kept.
Tensor turned_heads(FusedContext& c, const AttentionLaunches& launches, const std::vector<Parameter*>& norms,
                    const Tensor& qkv) {
  Trace& trace = c.layers.trace;
  if (norms.empty()) {
    trace.compute(AttentionLaunches::pass(KernelKind::fused_rotary, qkv), launches.turn(Routine::rotary), {&qkv},
                  {&qkv}, "rotary");
    return qkv;
  }
  Tensor turned = trace.empty(qkv.shape, qkv.dtype, "normed and turned q, k, v");
  trace.compute(AttentionLaunches::pass(KernelKind::fused_norm, qkv), launches.turn(Routine::head_norm_rotary),
                {&qkv, &norms[0]->data, &norms[1]->data}, {&turned}, "head norm and rotary");
  return turned;
}

/// Rotary in place, attention on views of the joined q, k, v, output projection.
Variable fused_attention(FusedContext& c, AttentionModule& module, const Variable& x) {
  Autograd& g = c.layers.g;
  Trace& trace = c.layers.trace;
  const AttentionSpec& spec = *module.spec;
  const Dim columns{spec.q_width() + 2 * spec.kv_width(), Symbol::number};
  const Variable qkv =
      fused_product(c, x, {module.q.weight, module.k.weight, module.v.weight}, columns, "qkv projection");
  const Dim n = c.layers.tokens();
  const Dim heads{spec.q_heads, Symbol::heads};
  const AttentionLaunches launches{c, spec};
  std::vector<Parameter*> norms;
  if (module.q_norm.weight) norms = {module.q_norm.weight, module.k_norm.weight};
  auto gradient_of = c.gradient_of;
  const Shape qkv_shape = qkv.shape;
  FusedContext* context = &c;
  NodeRef node = g.make_node({&qkv}, [=, &spec](BackwardCall& call) {
    const Tensor joined = call.saved(0), lse = call.saved(1), out = call.saved(2);
    const AttentionLaunches back{*context, spec};
    Tensor d = call.trace.empty(qkv_shape, joined.dtype, "qkv gradient");
    {
      const Tensor turned = norms.empty() ? joined : turned_heads(*context, back, norms, joined);
      call.trace.compute(back.kernel(KernelKind::attention_backward, joined, joined.bytes() * 3),
                         back.attention(Routine::attention_backward), {&call.grads[0], &turned, &lse, &out}, {&d},
                         "attention backward");
    }
    if (norms.empty()) {
      call.trace.compute(AttentionLaunches::pass(KernelKind::fused_rotary, d), back.turn(Routine::rotary, 1), {&d},
                         {&d}, "rotary backward");
    } else {
      const GradientPlace dq = gradient_of({norms[0]}), dk = gradient_of({norms[1]});
      call.trace.compute(AttentionLaunches::pass(KernelKind::fused_norm_backward, d, 3),
                         back.turn(Routine::head_norm_rotary_backward, dq.add),
                         {&d, &joined, &norms[0]->data, &norms[1]->data}, {&d, &dq.tensor, &dk.tensor},
                         "head norm and rotary backward");
    }
    call.out[0] = std::move(d);
  });
  Tensor out = trace.empty({n, {spec.q_width(), Symbol::q_width}}, qkv.dtype, "attention output");
  const Tensor lse = trace.empty({n, heads}, DType::fp32, "attention log-sum-exp");
  {
    const Tensor turned = turned_heads(c, launches, norms, qkv);
    trace.compute(launches.kernel(KernelKind::attention_forward, qkv, qkv.bytes() + out.bytes()),
                  launches.attention(Routine::attention), {&turned}, {&out, &lse}, "attention");
  }
  g.save(node, qkv.data());
  g.save(node, lse);
  g.save(node, out);
  const Variable mixed = as_variable(std::move(out), std::move(node));
  return fused_product(c, mixed, {module.o.weight}, {c.layers.scenario.model.hidden, Symbol::hidden},
                       "attention projection");
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
  Variable leaf{table->data};
  leaf.grad_fn = g.make_leaf();  // its gradient is written in place
  leaf.grad_fn->sequence = 0;
  leaf.grad_fn->backward.set([](BackwardCall&) {});
  const std::int64_t tokens = c.layers.tokens().size, h = c.layers.hidden().size, vocab = table->shape.dim(0).size;
  NodeRef node = g.make_node({&leaf}, [=](BackwardCall& call) {
    const Tensor indices = call.saved(0);
    const GradientPlace dw = gradient_of({table});
    call.trace.compute(Kernel::pointwise(KernelKind::embedding_backward, call.grads[0].dtype, call.grads[0].numel(),
                                         call.grads[0].bytes() * 2 + dw.tensor.bytes()),
                       {Routine::embedding_backward, {tokens, h, vocab, dw.add}, {}}, {&call.grads[0], &indices},
                       {&dw.tensor}, "embedding backward");
  });
  g.save(node, ids.data());
  Tensor result = c.layers.trace.empty({c.layers.tokens(), c.layers.hidden()}, table->dtype, "embedding output");
  c.layers.trace.compute(
      Kernel::pointwise(KernelKind::gather_rows, result.dtype, result.numel(), result.bytes() * 2 + ids.bytes()),
      {Routine::embedding, {tokens, h, vocab}, {}}, {&ids, &table->data}, {&result}, "embed_tokens");
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
  const Tensor d_hidden = trace.empty(hidden.shape, hidden.dtype, "hidden gradient");
  const GradientPlace dw = c.gradient_of({head});
  for (std::int64_t done = 0; done < tokens; done += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - done);
    const Shape part{{rows, Symbol::tokens}, {h, Symbol::hidden}};
    const Tensor input = hidden.part(done * h, part), d_input = d_hidden.part(done * h, part);
    const Tensor labels = c.labels.part(done, {{rows, Symbol::tokens}});
    const Tensor logits =
        trace.empty({{rows, Symbol::tokens}, {vocab, Symbol::vocab}}, hidden.dtype, "logits of a chunk");
    trace.compute(Kernel::gemm(rows, vocab, h, hidden.dtype), {Routine::product, {rows, vocab, h, 0, 1, 0}, {}},
                  {&input, &head->data}, {&logits}, "lm_head");
    // Two passes over whole rows: one reads them, one reads them again and writes the gradient, at the memory's speed.
    trace.compute(Kernel::pointwise(KernelKind::vectorized, hidden.dtype, logits.numel(), logits.bytes() * 3),
                  {Routine::cross_entropy, {rows, vocab, done == 0}, {c.loss_scale}}, {&logits, &labels},
                  {&logits, &loss, &c.report}, "cross-entropy and its gradient");
    trace.compute(Kernel::gemm(rows, h, vocab, hidden.dtype), {Routine::product, {rows, h, vocab, 0, 0, 0}, {}},
                  {&logits, &head->data}, {&d_input}, "lm_head");
    trace.compute(Kernel::gemm(vocab, h, rows, hidden.dtype),
                  {Routine::product, {vocab, h, rows, 1, 0, dw.add || done > 0}, {}}, {&logits, &input}, {&dw.tensor},
                  "lm_head");
  }
  g.save(node, d_hidden);
  return as_variable(std::move(loss), std::move(node));
}

std::vector<double> rotary_frequency_table(const ModelSpec& model, std::int64_t head_dim) {
  const Numerics& n = model.numerics;
  std::vector<double> table;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(n.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (n.rope_factor > 1) {
      const double turns = n.rope_original_positions * frequency / (2 * std::numbers::pi);
      const double share = std::clamp((turns - n.rope_low) / (n.rope_high - n.rope_low), 0.0, 1.0);
      frequency *= share + (1 - share) / n.rope_factor;
    }
    table.push_back(frequency);
  }
  return table;
}

}  // namespace plimsoll
