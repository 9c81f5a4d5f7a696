// Norms, rotary embedding, attention and the gated MLP as Hugging Face's modules compose them (planner/step/layers/layers.hpp).
#include "planner/step/autograd/ops.hpp"
#include "planner/step/layers/layers.hpp"

namespace plimsoll {

Variable linear(LayerContext& c, LinearModule& module, const Variable& x, const char* output_name) {
  return call_module(c, module, x, [&](const Variable& input) {
    return ops::linear(c.g, input, *module.weight, module.bias, {c.zero3_linear, output_name, module.name});
  });
}

namespace {

// x / sqrt(mean(x^2) + eps) * weight, in fp32 but for the last product.
Variable rms_norm(LayerContext& c, NormModule& module, const Variable& x) {
  Variable variance;  // Python clears the hidden states first
  Variable h = ops::cast(c.g, x, DType::fp32, "norm input in fp32");
  {
    const Variable squared = ops::square(c.g, h, "norm square");
    variance = ops::mean_last(c.g, squared, "norm variance");
  }
  Variable inverse;
  {
    const Variable shifted = ops::add_constant(c.g, variance, "norm variance + eps");
    inverse = ops::rsqrt(c.g, shifted, "norm rstd");
  }
  h = ops::mul(c.g, h, std::exchange(inverse, {}), "normalised in fp32", KernelKind::broadcast_row);
  const Variable narrow = ops::cast(c.g, h, x.dtype, "normalised");
  return ops::mul(c.g, c.g.leaf(*module.weight), narrow, "norm output", KernelKind::broadcast_weight);
}

// native_layer_norm: keeps its input, mean and rstd; one kernel each way, and one for the weight's and bias's gradients.
Variable layer_norm(LayerContext& c, NormModule& module, const Variable& x) {
  const Variable weight = c.g.leaf(*module.weight);
  const Variable bias = c.g.leaf(*module.bias);
  NodeRef node = c.g.make_node({&x, &weight, &bias}, [](BackwardCall& call) {
    const Tensor input = call.saved(0), scale = call.saved(1), mean = call.saved(2), rstd = call.saved(3);
    Tensor dx = call.trace.empty(input.shape, input.dtype, "gradient of a layer norm");
    Tensor dw = call.trace.empty(scale.shape, scale.dtype, "weight gradient", Category::gradients);
    Tensor db = call.trace.empty(scale.shape, scale.dtype, "weight gradient", Category::gradients);
    call.trace.compute(
        Kernel::pointwise(KernelKind::fused_norm_backward, input.dtype, input.numel(), input.bytes() * 3),
        {&call.grads[0], &input, &scale, &mean, &rstd}, {&dx, &dw, &db}, "layer norm backward");
    call.out = {std::move(dx), std::move(dw), std::move(db), {}};
  });
  c.g.save(node, x);
  c.g.save(node, weight);
  Shape rows;
  for (int i = 0; i + 1 < x.shape.rank; ++i) rows.push(x.shape.dim(i));
  Tensor result = c.trace.empty(x.shape, x.dtype, "norm output");
  const Tensor mean = c.trace.empty(rows, DType::fp32, "norm mean");
  const Tensor rstd = c.trace.empty(rows, DType::fp32, "norm rstd");
  c.trace.compute(Kernel::pointwise(KernelKind::fused_norm, x.dtype, x.numel(), x.bytes() * 2), {&x, &weight, &bias},
                  {&result, &mean, &rstd}, "layer norm");
  c.g.save(node, mean);
  c.g.save(node, rstd);
  Variable output{std::move(result)};
  output.grad_fn = std::move(node);
  return output;
}

// x -> (-second half, first half)
Variable rotate_half(Autograd& g, const Variable& x) {
  const Variable first = ops::slice_half(g, x);
  const Variable second = ops::slice_half(g, x);
  const Variable negated = ops::negate(g, second, "rotary negated half");
  return ops::concatenate(g, negated, first, "rotary rotated halves");
}

}  // namespace

Variable norm(LayerContext& c, NormModule& module, const Variable& x) {
  return call_module(c, module, x, [&](const Variable& input) {
    return module.bias ? layer_norm(c, module, input) : rms_norm(c, module, input);
  });
}

RotaryTables rotary_tables(LayerContext& c, const Variable& hidden) {
  const Dim s{c.sequence(), Symbol::sequence};
  const std::int64_t d = c.scenario.model.layers.empty() ? 0 : [&] {
    const AttentionSpec& spec = c.scenario.model.layers.front().attention;
    return spec.rope_head_dim > 0 ? spec.rope_head_dim : spec.head_dim;
  }();
  const Dim width{d, Symbol::head_dim};
  const auto make = [&](const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = c.trace.empty(shape, dtype, name);
    c.trace.compute(Kernel::pointwise(KernelKind::small, dtype, tensor.numel(), tensor.bytes()), {}, {&tensor},
                    "rotary tables");
    return tensor;
  };
  Tensor sin, cos, angles, half, positions;  // they die in the order in which they are made
  positions = make({s}, DType::fp32, "positions in fp32");
  half = make({s, {d / 2, Symbol::head_dim}}, DType::fp32, "rotary angles");
  c.g.take_gemm_workspace();  // frequencies times positions is the model's first matrix product
  angles = make({s, width}, DType::fp32, "rotary angles");
  const DType dtype = hidden.dtype;
  const auto table = [&](const char* name) {
    Tensor raw = make({s, width}, DType::fp32, name);
    return make({s, width}, DType::fp32, name);  // times the attention scaling of 1
  };
  RotaryTables result;
  cos = table("rotary cos");
  sin = table("rotary sin");
  if (dtype == DType::fp32) return {cos, sin};
  result.cos = make({s, width}, dtype, "rotary cos");
  result.sin = make({s, width}, dtype, "rotary sin");
  return result;
}

Variable rotate(LayerContext& c, const Variable& x, const RotaryTables& tables, Dim) {
  const Variable straight = ops::mul(c.g, x, tables.cos, "rotary x cos", KernelKind::strided_mul);
  Variable turned;
  {
    const Variable halves = rotate_half(c.g, x);
    turned = ops::mul(c.g, halves, tables.sin, "rotary rotated x sin", KernelKind::strided_mul);
  }
  return ops::add(c.g, straight, turned, "rotated", KernelKind::strided_add);
}

namespace {

/// A projection viewed as heads-major; its gradient after rotary comes heads-major and is copied to token order.
Variable project(LayerContext& c, LinearModule& module, const Variable& x, Symbol symbol, bool copies_gradient,
                 const char* name) {
  const Variable projected = linear(c, module, x, name);
  return ops::view(c.g, projected, {c.tokens(), {module.weight->shape.dim(0).size, symbol}}, copies_gradient);
}

Variable head_norm(LayerContext& c, NormModule& module, const Variable& x, std::int64_t heads, Dim head_dim,
                   Symbol heads_symbol) {
  if (!module.weight) return x;
  const Shape flat = x.shape;
  const Variable by_head =
      module.weight->numel() == head_dim.size ? ops::view(c.g, x, {c.tokens(), {heads, heads_symbol}, head_dim}) : x;
  const Variable normed = norm(c, module, by_head);
  return ops::view(c.g, normed, flat);
}

// softmax(q k^T / sqrt(d) + mask) v with scores in memory; k and v repeated to the query's heads.
Variable eager_attention(LayerContext& c, const Variable& q, const Variable& k, const Variable& v,
                         const AttentionSpec& spec) {
  Autograd& g = c.g;
  const Dim heads{spec.q_heads, Symbol::heads};
  const Dim s{c.sequence(), Symbol::sequence};
  const Dim width{spec.q_width(), Symbol::q_width};
  const auto repeat = [&](const Variable& x, const char* name) {
    if (spec.kv_heads == spec.q_heads) return x;
    const Shape narrow = x.shape;
    NodeRef node = g.make_node({&x}, [narrow](BackwardCall& call) {
      call.out[0] = call.trace.empty(narrow, call.grads[0].dtype, "gradient of repeated heads");
      ops::launch(call.trace, KernelKind::reduce_last, {&call.grads[0]}, call.out[0], "repeat_kv backward");
    });
    Tensor wide = c.trace.empty({c.tokens(), width}, x.dtype, name);
    ops::launch(c.trace, KernelKind::strided_copy, {&x}, wide, "repeat_kv");
    Variable result{std::move(wide)};
    result.grad_fn = std::move(node);
    return result;
  };
  const Shape square{{c.batch(), Symbol::batch}, heads, s, s};
  // One batched product of [b A] matrices; `mat2` (the second operand) gets its gradient first.
  const auto product = [&](const Variable& a, const Variable& b, const Shape& shape, std::int64_t n, std::int64_t inner,
                           const char* name) {
    const Shape sa = a.shape, sb = b.shape;
    const std::int64_t batches = c.batch() * spec.q_heads, rows = s.size;
    NodeRef node = g.make_node({&a, &b}, [=](BackwardCall& call) {
      const Tensor ka = call.saved(0), kb = call.saved(1);
      call.out[1] = call.trace.empty(sb, kb.dtype, "gradient of an attention product");
      call.trace.compute(Kernel::gemm(inner, n, rows, kb.dtype, batches), {&call.grads[0], &ka}, {&call.out[1]},
                         "attention product");
      call.out[0] = call.trace.empty(sa, ka.dtype, "gradient of an attention product");
      call.trace.compute(Kernel::gemm(rows, inner, n, ka.dtype, batches), {&call.grads[0], &kb}, {&call.out[0]},
                         "attention product");
    });
    g.save(node, a);
    g.save(node, b);
    Tensor result = c.trace.empty(shape, a.dtype, name);
    c.trace.compute(Kernel::gemm(rows, n, inner, a.dtype, batches), {&a, &b}, {&result}, "attention product");
    Variable out{std::move(result)};
    out.grad_fn = std::move(node);
    return out;
  };
  const Variable keys = repeat(k, "repeated k");
  const Variable values = repeat(v, "repeated v");
  const DType narrow = g.autocast ? DType::bf16 : q.dtype;
  const Variable queries = ops::cast(g, q, narrow, "q cast");
  const Variable keys_cast = ops::cast(g, keys, narrow, "k cast");
  Variable scores;
  {
    const Variable raw = product(queries, keys_cast, square, s.size, spec.head_dim, "attention scores");
    NodeRef node = g.make_node({&raw}, [](BackwardCall& call) {
      call.out[0] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "gradient of scaled scores");
      ops::launch(call.trace, KernelKind::vectorized, {&call.grads[0]}, call.out[0], "scale backward");
    });
    Tensor scaled = c.trace.empty(square, raw.dtype, "scaled scores");
    ops::launch(c.trace, KernelKind::vectorized, {&raw}, scaled, "scale");
    scores = Variable{std::move(scaled)};
    scores.grad_fn = std::move(node);
  }
  scores = ops::add_constant(g, scores, "masked scores");
  scores = ops::softmax(g, scores, DType::fp32, "attention weights in fp32");
  scores = ops::cast(g, scores, narrow, "attention weights");
  const Variable mixed = product(scores, ops::cast(g, values, narrow, "v cast"), {c.tokens(), width}, spec.head_dim,
                                 s.size, "attention output");
  // Heads-major to token-major.
  NodeRef node = g.make_node({&mixed}, ops::pass_through);
  Tensor result = c.trace.empty(mixed.shape, mixed.dtype, "attention output in token order");
  ops::launch(c.trace, KernelKind::strided_copy, {&mixed}, result, "attention output");
  Variable out{std::move(result)};
  out.grad_fn = std::move(node);
  return out;
}

}  // namespace

Variable attention(LayerContext& c, AttentionModule& module, const Variable& input, const RotaryTables& tables) {
  return call_module(c, module, input, [&](const Variable& x) {
    const AttentionSpec& spec = *module.spec;
    const Dim head_dim{spec.head_dim, Symbol::head_dim};
    const Dim q_width{spec.q_width(), Symbol::q_width};
    const Dim kv_width{spec.kv_width(), Symbol::kv_width};
    Variable v, k;  // Python clears q, k, v in this order when the function returns; C++ locals die in reverse
    Variable q = head_norm(c, module.q_norm, project(c, module.q, x, Symbol::q_width, true, "q projection"),
                           spec.q_heads, head_dim, Symbol::heads);
    k = head_norm(c, module.k_norm, project(c, module.k, x, Symbol::kv_width, true, "k projection"), spec.kv_heads,
                  head_dim, Symbol::kv_heads);
    v = project(c, module.v, x, Symbol::kv_width, false, "v projection");
    {
      Variable rotated_q = rotate(c, q, tables, q_width);
      Variable rotated_k = rotate(c, k, tables, kv_width);
      q = std::move(rotated_q);
      k = std::move(rotated_k);
    }
    if (c.scenario.plan.attention == AttentionImplementation::eager) {
      const Variable mixed = eager_attention(c, q, k, v, spec);
      return linear(c, module.o, mixed, "attention projection");
    }
    Variable mixed;
    {
      const DType narrow = c.g.autocast ? DType::bf16 : q.dtype;
      const Variable k_cast = ops::cast(c.g, k, narrow, "k cast");
      const Variable q_cast = ops::cast(c.g, q, narrow, "q cast");
      mixed = ops::scaled_dot_product_attention(
          c.g, q_cast, k_cast, v, {c.batch(), c.sequence(), spec.q_heads, spec.kv_heads, spec.head_dim, spec.head_dim});
    }
    return linear(c, module.o, mixed, "attention projection");
  });
}

Variable mlp(LayerContext& c, MlpModule& module, const Variable& input, Dim) {
  return call_module(c, module, input, [&](const Variable& x) {
    Variable product;
    {
      Variable activated;
      {
        const Variable gate = linear(c, module.gate, x, "mlp gate");
        activated = call_module(c, module.activation, gate,
                                [&](const Variable& in) { return ops::silu(c.g, in, "silu(gate)"); });
      }
      const Variable up = linear(c, module.up, x, "mlp up");
      product = ops::mul(c.g, activated, up, "silu(gate) up", KernelKind::vectorized);
    }
    return linear(c, module.down, product, "mlp output");
  });
}

}  // namespace plimsoll
