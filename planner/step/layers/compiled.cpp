// Compiled decoder layers (planner/step/layers/compiled.hpp).
#include "planner/step/layers/compiled.hpp"

#include <algorithm>

#include "planner/step/autograd/ops_routing.hpp"

namespace plimsoll {

void launch_fused(Trace& trace, const std::vector<const Tensor*>& reads, const std::vector<const Tensor*>& writes,
                  const char* role) {
  Bytes bytes;
  std::int64_t elements = 0;
  for (const Tensor* tensor : reads) bytes += tensor->bytes();
  for (const Tensor* tensor : writes) {
    bytes += tensor->bytes();
    elements = std::max(elements, tensor->numel());
  }
  trace.compute(Kernel::pointwise(KernelKind::compiled_pointwise, writes.front()->dtype, elements, bytes), reads,
                writes, role);
}

namespace {

/// A weight's gradient as a sum over rows, in two kernels: partial sums of 128 rows each, then their sum.
Tensor row_sum(Trace& trace, const std::vector<const Tensor*>& reads, const Shape& weight, DType dtype,
               std::int64_t rows) {
  Tensor result = trace.empty(weight, dtype, "weight gradient", Category::gradients);
  const Tensor partial =
      trace.empty({{ceil_div(rows, 128)}, weight.dim(0)}, DType::fp32, "partial sums", Category::workspace);
  launch_fused(trace, reads, {&partial}, "norm weight gradient");
  launch_fused(trace, {&partial}, {&result}, "norm weight gradient");
  return result;
}

}  // namespace

Shape rows_of(const Shape& shape) {
  Shape rows;
  for (int i = 0; i + 1 < shape.rank; ++i) rows.push(shape.dim(i));
  return rows;
}

std::vector<const Tensor*> defined(std::initializer_list<const Tensor*> tensors) {
  std::vector<const Tensor*> result;
  for (const Tensor* tensor : tensors) {
    if (tensor && *tensor) result.push_back(tensor);
  }
  return result;
}

NormSums::NormSums(Trace& trace, const Shape& weight, std::int64_t rows, std::int64_t norms)
    : weight(weight),
      partial(trace.empty({{norms * ceil_div(rows, 16)}, weight.dim(0)}, DType::fp32, "partial sums",
                          Category::workspace)) {}

Tensor NormSums::sum(Trace& trace, DType dtype) const {
  const Tensor wide = trace.empty(weight, DType::fp32, "weight gradient in fp32", Category::temporaries);
  launch_fused(trace, {&partial}, {&wide}, "norm weight gradient");
  Tensor result = trace.empty(weight, dtype, "weight gradient", Category::gradients);
  launch_fused(trace, {&wide}, {&result}, "norm weight gradient");
  return result;
}

NormedStream fused_norm(LayerContext& c, NormModule& module, const Variable& x, const Variable* branch) {
  Autograd& g = c.g;
  const Variable weight = g.leaf(*module.weight);
  const Variable bias = module.bias ? g.leaf(*module.bias) : Variable{};
  const Variable absent;
  const std::int64_t rows = x.numel() / x.shape.last().size;
  const bool has_bias = static_cast<bool>(bias);
  NodeRef node = g.make_node({&x, branch ? branch : &absent, &weight, &bias}, [rows, has_bias](BackwardCall& call) {
    const Tensor &to_stream = call.grads[0], &first = call.grads[1], &second = call.grads[2], &third = call.grads[3];
    const Tensor &stream = call.saved(0), &rstd = call.saved(1), &scale = call.saved(2);
    const auto reads = defined({&to_stream, &first, &second, &third, &stream, &rstd, &scale});
    if (call.wants(2)) call.out[2] = row_sum(call.trace, reads, scale.shape, scale.dtype, rows);
    if (has_bias && call.wants(3)) call.out[3] = row_sum(call.trace, reads, scale.shape, scale.dtype, rows);
    if (!call.wants(0) && !call.wants(1)) return;
    Tensor dx =
        first && first.dtype == stream.dtype ? first : call.trace.empty(stream.shape, stream.dtype, "stream gradient");
    dx.shape = stream.shape;
    dx.view = false;
    launch_fused(call.trace, reads, {&dx}, "norm backward");
    if (call.wants(1)) call.out[1] = dx;
    if (call.wants(0)) call.out[0] = std::move(dx);
  });
  // A branch is written over: its memory becomes the stream's.  Of an fp32 stream and a branch in 16 bits (autocast) the sum is
  // never stored: whoever needs it adds them again, which takes half the memory.
  const bool in_place = branch && branch->dtype == x.dtype;
  Tensor stream = in_place ? branch->data() : x.data();
  stream.shape = x.shape;
  stream.view = false;
  const Tensor rstd = c.trace.empty(rows_of(x.shape), DType::fp32, "norm rstd");
  Tensor normed = c.trace.empty(x.shape, g.autocast ? DType::bf16 : x.dtype, "norm output");
  launch_fused(
      c.trace, defined({&x, branch, &weight, &bias}),
      in_place ? std::vector<const Tensor*>{&normed, &rstd, &stream} : std::vector<const Tensor*>{&normed, &rstd},
      "fused norm");
  g.save(node, stream);
  g.save(node, rstd);
  g.save(node, weight);
  if (branch && !in_place) g.save(node, branch->data());
  NormedStream result;
  result.stream = ops::output_of(std::move(stream), node, 0);
  for (std::uint8_t i = 0; i < 3; ++i)
    result.normed[i] = ops::output_of(normed, node, static_cast<std::uint8_t>(i + 1));
  return result;
}

Variable fused_swiglu(LayerContext& c, const Variable& gate, const Variable& up, const char* name) {
  NodeRef node = c.g.make_node({&gate, &up}, [](BackwardCall& call) {
    const Tensor &kept_gate = call.saved(0), &kept_up = call.saved(1);
    Tensor d_gate = call.grads[0];
    d_gate.view = false;
    Tensor d_up = call.trace.empty(kept_up.shape, kept_up.dtype, "gradient of up");
    launch_fused(call.trace, {&call.grads[0], &kept_gate, &kept_up}, {&d_up, &d_gate}, "swiglu backward");
    call.out[0] = std::move(d_gate);
    call.out[1] = std::move(d_up);
  });
  c.g.save(node, gate.data());
  c.g.save(node, up.data());
  Tensor product = c.trace.empty(gate.shape, gate.dtype, name);
  launch_fused(c.trace, {&gate, &up}, {&product}, "swiglu");
  return ops::output_of(std::move(product), std::move(node));
}

Variable fused_residual(LayerContext& c, const Variable& stream, const Variable& branch) {
  NodeRef node = c.g.make_node({&stream, &branch}, [](BackwardCall& call) {
    if (call.wants(1)) call.out[1] = call.grads[0];
    if (call.wants(0)) call.out[0] = std::move(call.grads[0]);
  });
  Tensor out =
      branch.dtype == stream.dtype ? branch.data() : c.trace.empty(stream.shape, stream.dtype, "residual after mlp");
  out.shape = stream.shape;
  out.view = false;
  launch_fused(c.trace, {&stream, &branch}, {&out}, "residual after mlp");
  return ops::output_of(std::move(out), std::move(node));
}

namespace {

/// The rotation of q or k (after its head norm, if there is one) in one kernel.  With a norm the projection and the rstd of
/// each head are kept, else nothing.
Variable fused_rotary(LayerContext& c, const Variable& x, NormModule& head_norm, const RotaryTables& tables,
                      Dim heads) {
  Autograd& g = c.g;
  const bool normed = head_norm.weight != nullptr;
  const Variable weight = normed ? g.leaf(*head_norm.weight) : Variable{};
  const Tensor cos = tables.cos.data(), sin = tables.sin.data();
  const std::int64_t rows = normed ? x.numel() / weight.numel() : 0;
  NodeRef node = g.make_node({&x, &weight}, [cos, sin, rows](BackwardCall& call) {
    const Tensor& grad = call.grads[0];
    const Tensor none;
    const Tensor& input = rows > 0 ? call.saved(0) : none;
    const Tensor& rstd = rows > 0 ? call.saved(1) : none;
    const Tensor& scale = rows > 0 ? call.saved(2) : none;
    const auto reads = defined({&grad, &cos, &sin, &input, &rstd, &scale});
    if (call.wants(1)) call.out[1] = row_sum(call.trace, reads, scale.shape, scale.dtype, rows);
    call.out[0] = call.trace.empty(grad.shape, grad.dtype, "gradient before rotary");
    launch_fused(call.trace, reads, {&call.out[0]}, "rotary backward");
  });
  Tensor rstd;
  if (normed) rstd = c.trace.empty({c.tokens(), heads}, DType::fp32, "head norm rstd");
  Tensor rotated = c.trace.empty(x.shape, x.dtype, "rotated");
  launch_fused(c.trace, defined({&x, &weight, &cos, &sin}), defined({&rotated, &rstd}), "fused rotary");
  if (normed) {
    g.save(node, x.data());
    g.save(node, rstd);
    g.save(node, weight);
  }
  return ops::output_of(std::move(rotated), std::move(node));
}

Variable compiled_attention(LayerContext& c, AttentionModule& module, const std::array<Variable, 3>& normed,
                            const RotaryTables& tables) {
  const AttentionSpec& spec = *module.spec;
  const bool fused = spec.kind == AttentionSpec::Kind::grouped_query && !module.sinks &&
                     c.scenario.plan.attention == AttentionImplementation::sdpa;
  if (!fused) return attention(c, module, normed[0], tables);
  Variable v, k, q;
  {
    const Variable q_raw = linear(c, module.q, normed[0], "q projection");
    const Variable k_raw = linear(c, module.k, normed[1], "k projection");
    v = linear(c, module.v, normed[2], "v projection");
    q = fused_rotary(c, q_raw, module.q_norm, tables, {spec.q_heads, Symbol::heads});
    k = fused_rotary(c, k_raw, module.k_norm, tables, {spec.kv_heads, Symbol::kv_heads});
  }
  const Variable mixed = ops::scaled_dot_product_attention(
      c.g, q, k, v, {c.batch(), c.sequence(), spec.q_heads, spec.kv_heads, spec.head_dim, spec.head_dim});
  return linear(c, module.o, mixed, "attention projection");
}

Variable compiled_mlp(LayerContext& c, MlpModule& module, const std::array<Variable, 3>& normed) {
  Variable product;
  {
    const Variable gate = linear(c, module.gate, normed[0], "mlp gate");
    const Variable up = linear(c, module.up, normed[1], "mlp up");
    product = fused_swiglu(c, gate, up, "silu(gate) up");
  }
  return linear(c, module.down, product, "mlp output");
}

}  // namespace

Variable compiled_decoder_layer(LayerContext& c, DecoderLayerModule& module, const Variable& x,
                                const RotaryTables& tables, std::vector<Variable>* router_logits) {
  Scoped compiled(c.trace.compiled, true);
  if (is_one_program(c, module)) return compiled_dense_layer(c, module, x, tables);
  NormedStream middle;
  {
    Variable attended;
    Variable stream;
    {
      NormedStream first = fused_norm(c, module.input_norm, x, nullptr);
      attended = compiled_attention(c, module.attention, first.normed, tables);
      stream = std::move(first.stream);
    }
    middle = fused_norm(c, module.post_attention_norm, stream, &attended);
  }
  const Variable out = module.is_moe ? compiled_mixture(c, module.moe, middle.normed, router_logits)
                                     : compiled_mlp(c, module.mlp, middle.normed);
  return fused_residual(c, middle.stream, out);
}

}  // namespace plimsoll
