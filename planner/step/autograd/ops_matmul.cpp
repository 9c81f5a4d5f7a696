// Matrix products: linear layers, attention, the embedding (planner/step/autograd/ops.hpp).
#include <algorithm>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll::ops {

namespace {

Shape rows_by(const Tensor& x, Dim columns) {
  Shape shape;
  for (int i = 0; i + 1 < x.shape.rank; ++i) shape.push(x.shape.dim(i));
  shape.push(columns);
  return shape;
}

/// The bf16 copy of an fp32 weight under autocast: one per region, as a node of the graph; of a frozen weight one per use.
Variable autocast_copy(Autograd& g, Parameter& weight) {
  for (const auto& [parameter, copy] : g.autocast_cache) {
    if (parameter == &weight) return copy;
  }
  Scoped category(g.trace.category, Category::parameters);
  Variable copy = cast(g, g.leaf(weight), DType::bf16, "autocast weight copy");
  if (weight.trainable) g.autocast_cache.emplace_back(&weight, copy);
  return copy;
}

}  // namespace

Tensor weight_gradient(Autograd& g, const Tensor& dy, const Tensor& x, const Shape& weight, const char* role) {
  Tensor dw = g.trace.empty(weight, dy.dtype, "weight gradient", Category::gradients);
  g.take_gemm_workspace();
  const std::int64_t rows = x.numel() / weight.dim(1).size;
  g.trace.compute(Kernel::linear_gemm(LinearProduct::to_weight, weight.dim(0).size, weight.dim(1).size, rows, dy.dtype),
                  {&dy, &x}, {&dw}, role);
  return dw;
}

Tensor input_gradient(Autograd& g, const Tensor& dy, const Tensor& weight, const Shape& input, const char* role,
                      Tensor into) {
  Tensor dx = into ? std::move(into) : g.trace.empty(input, dy.dtype, "input gradient");
  dx.shape = input;
  g.take_gemm_workspace();
  const std::int64_t rows = dy.numel() / weight.shape.dim(0).size;
  g.trace.compute(
      Kernel::linear_gemm(LinearProduct::to_input, rows, weight.shape.dim(1).size, weight.shape.dim(0).size, dy.dtype),
      {&dy, &weight}, {&dx}, role);
  return dx;
}

namespace {

/// y = input W^T + b on variables of one type.
Variable product(Autograd& g, const Variable& input, const Variable& w, const Variable& b,
                 const LinearOptions& options) {
  const Shape weight_shape = w.shape;
  const Shape input_shape = input.shape;
  const bool zero3 = options.zero3;
  const bool is_view = !zero3 && !options.flat;  // mm works on 2-D tensors: a 3-D gradient is a view of its result
  const bool has_bias = static_cast<bool>(b);
  const bool keeps_input = zero3 || w.requires_grad();
  const bool keeps_weight = zero3 || input.requires_grad();
  // What is kept dies in alphabetical order: mat2 (the weight) before self, but mat1 (the input) before mat2; the engine's own
  // function keeps its input first.
  const bool input_first = zero3 || has_bias;
  const std::size_t weight_slot = input_first && keeps_input ? 1 : 0;
  const std::size_t input_slot = !input_first && keeps_weight ? 1 : 0;
  const char* role = options.role;
  NodeRef node = g.make_node({&input, &w, &b}, [=, &g](BackwardCall& call) {
    const Tensor& dy = call.grads[0];
    const auto to_weight = [&] {
      if (!call.wants(1)) return;
      call.out[1] = weight_gradient(g, dy, call.saved(input_slot), weight_shape, role);
      call.out[1].view = !zero3;  // the weight enters transposed: its gradient is a transposed view
    };
    const auto to_input = [&] {
      if (!call.wants(0)) return;
      call.out[0] = input_gradient(g, dy, call.saved(weight_slot), input_shape, role);
      call.out[0].view = is_view;
    };
    // Alphabetical: mm(self, mat2) starts with the weight, addmm(self, mat1, mat2) with the input.
    if (zero3 || has_bias) {
      to_input();
      to_weight();
    } else {
      to_weight();
      to_input();
    }
    if (call.wants(2)) call.out[2] = dy;
  });
  const auto keep = [&] {
    if (keeps_input && input_slot == 0) g.save(node, input.data());
    if (keeps_weight) g.save(node, w);
    if (keeps_input && input_slot == 1) g.save(node, input.data());
  };
  if (!zero3) keep();
  Tensor result = g.trace.empty(rows_by(input, w.shape.dim(0)), input.dtype, options.output_name);
  g.take_gemm_workspace();
  const std::int64_t rows = input.numel() / w.shape.dim(1).size;
  g.trace.compute(
      Kernel::linear_gemm(LinearProduct::forward, rows, w.shape.dim(0).size, w.shape.dim(1).size, input.dtype),
      {&input, &w, &b}, {&result}, role);
  if (zero3) keep();  // a function written in Python keeps its tensors when it has returned
  Variable output{std::move(result)};
  output.grad_fn = std::move(node);
  return output;
}

}  // namespace

namespace {

/// y = x W^T with W in 4 bits, which stays as it is: each product, forward and backward, works on a 16-bit copy of its own.
Variable quantized_linear(Autograd& g, const Variable& x, Parameter& weight, const LinearOptions& options) {
  const Shape input_shape = x.shape;
  const DType dtype = x.dtype;
  const char* role = options.role;
  const auto copy = [&g, &weight, dtype] {
    Tensor wide = g.trace.empty(weight.shape, dtype, "weight out of 4 bits", Category::gathered_parameters);
    launch(g.trace, KernelKind::vectorized, {&weight.data}, wide, "out of 4 bits");
    return wide;
  };
  NodeRef node = g.make_node({&x}, [=, &g](BackwardCall& call) {
    const Tensor wide = copy();
    call.out[0] = input_gradient(g, call.grads[0], wide, input_shape, role);
  });
  const Tensor wide = copy();
  Tensor result = g.trace.empty(rows_by(x, weight.shape.dim(0)), dtype, options.output_name);
  g.take_gemm_workspace();
  const std::int64_t rows = x.numel() / weight.shape.dim(1).size;
  g.trace.compute(
      Kernel::linear_gemm(LinearProduct::forward, rows, weight.shape.dim(0).size, weight.shape.dim(1).size, dtype),
      {&x, &wide}, {&result}, role);
  Variable output{std::move(result)};
  output.grad_fn = std::move(node);
  return output;
}

}  // namespace

Variable linear(Autograd& g, const Variable& x, Parameter& weight, Parameter* bias, const LinearOptions& options) {
  if (weight.quantized) {
    const Variable output =
        quantized_linear(g, g.autocast ? cast(g, x, DType::bf16, "linear input cast") : x, weight, options);
    return bias ? add(g, output, g.leaf(*bias), options.output_name) : output;
  }
  const bool cast_all = g.autocast && weight.dtype == DType::fp32;
  const Variable w = cast_all ? autocast_copy(g, weight) : g.leaf(weight);
  const Variable input = cast_all ? cast(g, x, DType::bf16, "linear input cast") : x;
  Variable b;
  if (bias) b = cast_all ? autocast_copy(g, *bias) : g.leaf(*bias);
  return product(g, input, w, b, options);
}

Variable linear_fp32(Autograd& g, const Variable& x, Parameter& weight, const LinearOptions& options) {
  if (g.autocast) return linear(g, x, weight, nullptr, options);
  const Variable input = cast(g, x, DType::fp32, "linear input in fp32");
  const Variable w = cast(g, g.leaf(weight), DType::fp32, "linear weight in fp32");
  return product(g, input, w, {}, options);
}

Variable embedding(Autograd& g, const Variable& indices, Parameter& table, const char* name) {
  const Variable weight = g.leaf(table);
  const Shape table_shape = table.shape;
  const std::int64_t tokens = indices.numel();
  NodeRef node = g.make_node({&weight}, [table_shape, tokens](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    const Tensor& dy = call.grads[0];
    Trace& trace = call.trace;
    const Dim h = table_shape.dim(1);
    Tensor dw = trace.empty(table_shape, dy.dtype, "embedding gradient", Category::gradients);
    trace.compute(Kernel::pointwise(KernelKind::fill, dy.dtype, dw.numel(), dw.bytes()), {}, {&dw},
                  "embedding backward");
    // Above 3072 tokens the rows are sorted by index, and partial sums are staged in fp32: a segment for each index that may
    // occur, min(N, V), and one more for every ten rows.
    if (tokens > 3072) {
      const std::int64_t distinct = std::min(tokens, table_shape.dim(0).size);
      std::array<Tensor, 5> sorted;
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        sorted[i] = trace.empty({i < 3 ? Dim{tokens, Symbol::tokens} : Dim{distinct}}, DType::int64, "sorted indices",
                                Category::temporaries);
      }
      const std::int64_t segments = distinct + tokens / 10;
      const Tensor offsets = trace.empty({{segments}}, DType::int64, "segment offsets", Category::temporaries);
      const Tensor partial = trace.empty({{segments}, h}, DType::fp32, "embedding partial sums", Category::temporaries);
      Kernel kernel =
          Kernel::pointwise(KernelKind::embedding_backward, dy.dtype, tokens * h.size, dy.bytes() + partial.bytes());
      kernel.launches = 20;
      trace.compute(kernel, {&dy, &kept}, {&dw, &partial}, "embedding backward");
    } else {
      trace.compute(Kernel::pointwise(KernelKind::embedding_backward, dy.dtype, tokens * h.size, dy.bytes() * 2),
                    {&dy, &kept}, {&dw}, "embedding backward");
    }
    call.out[0] = std::move(dw);
  });
  g.save(node, indices.data());
  Tensor result = g.trace.empty({{tokens, Symbol::tokens}, table.shape.dim(1)}, table.dtype, name);
  launch(g.trace, KernelKind::gather_rows, {&indices}, result, "embed_tokens");
  Variable output{std::move(result)};
  output.grad_fn = std::move(node);
  return output;
}

namespace {

Kernel attention_kernel(KernelKind kind, const AttentionShape& s, DType dtype, Bytes bytes) {
  Kernel kernel = Kernel::pointwise(kind, dtype, s.batch * s.q_heads * s.sequence * s.head_dim, bytes);
  kernel.batch = s.batch * s.q_heads;
  kernel.m = s.sequence;
  kernel.n = s.sequence;
  kernel.k = s.head_dim;
  return kernel;
}

}  // namespace

Attended attention_forward(Trace& trace, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& s) {
  const Dim n{s.batch * s.sequence, Symbol::tokens};
  Shape out_shape{n};
  out_shape.push({s.q_heads * s.value_dim, Symbol::q_width});
  Attended result;
  result.seed = trace.empty({}, DType::int64, "attention seed");
  result.offset = trace.empty({}, DType::int64, "attention seed offset");
  result.out = trace.empty(out_shape, q.dtype, "attention output");
  result.lse = trace.empty({n, {s.q_heads, Symbol::heads}}, DType::fp32, "attention log-sum-exp");
  const Tensor workspace = trace.empty({{256}}, DType::int8, "attention workspace", Category::workspace);
  trace.compute(attention_kernel(KernelKind::attention_forward, s, q.dtype,
                                 q.bytes() + k.bytes() + v.bytes() + result.out.bytes()),
                {&q, &k, &v}, {&result.out, &result.lse, &workspace}, "attention");
  return result;
}

std::array<Tensor, 3> attention_backward(Trace& trace, const Tensor& gradient, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& out, const Tensor& lse,
                                         const AttentionShape& s) {
  Tensor dq = trace.empty(q.shape, q.dtype, "dq");
  Tensor dk = trace.empty(k.shape, k.dtype, "dk");
  Tensor dv = trace.empty(v.shape, v.dtype, "dv");
  // dq is summed in fp32 beside the row sums; with grouped heads the per-query-head dk and dv stand there too.
  const std::int64_t accumulators = s.kv_heads < s.q_heads ? 8 : 4;
  const Tensor workspace = trace.empty({{accumulators * q.numel() + 4 * s.batch * s.sequence * s.q_heads + 256}},
                                       DType::int8, "attention backward workspace", Category::workspace);
  trace.compute(attention_kernel(KernelKind::attention_backward, s, q.dtype, q.bytes() * 4 + k.bytes() * 4),
                {&gradient, &q, &k, &v, &out, &lse}, {&dq, &dk, &dv, &workspace}, "attention backward");
  return {std::move(dq), std::move(dk), std::move(dv)};
}

Variable scaled_dot_product_attention(Autograd& g, const Variable& q, const Variable& k, const Variable& v,
                                      const AttentionShape& s) {
  NodeRef node = g.make_node({&q, &k, &v}, [s](BackwardCall& call) {
    const Tensor kk = call.saved(0), kq = call.saved(1), kv = call.saved(2), lse = call.saved(3), out = call.saved(4);
    auto [dq, dk, dv] = attention_backward(call.trace, call.grads[0], kq, kk, kv, out, lse, s);
    call.out[0] = std::move(dq);
    call.out[1] = std::move(dk);
    call.out[2] = std::move(dv);
  });
  for (const Variable* kept : {&k, &q, &v}) g.save(node, kept->data());
  Attended attended = attention_forward(g.trace, q, k, v, s);
  for (const Tensor* kept : {&attended.lse, &attended.out, &attended.seed, &attended.offset}) g.save(node, *kept);
  Variable output{std::move(attended.out)};
  output.grad_fn = std::move(node);
  return output;
}

}  // namespace plimsoll::ops
