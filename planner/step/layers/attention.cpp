// Attention with grouped queries as Hugging Face's modules compose it (planner/step/layers/layers.hpp), and the product of
// all kinds in a fused kernel: cuDNN through PyTorch's sdpa, or flash-attention 2.
// Source: allocator traces of each family's attention under sdpa, of heads of 76 among them, which PyTorch's flash-attention 2
// takes: fp32 dq of padded rows, row sums, dk and dv of every query head.  Its own package's was not measured.
#include "planner/step/layers/attention.hpp"

#include <string_view>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"

namespace plimsoll {

namespace {

/// A projection viewed as heads-major; its gradient after rotary comes heads-major and is copied to token order (of a single
/// head both orders are one).
Variable by_heads(LayerContext& c, const Variable& projected, std::int64_t heads, bool copies_gradient) {
  return ops::view(c.g, projected, projected.shape, copies_gradient && heads > 1);
}

Variable head_norm(LayerContext& c, NormModule& module, const Variable& x, std::int64_t heads, Dim head_dim,
                   Symbol heads_symbol) {
  if (!module.weight) return x;
  const Shape flat = x.shape;
  const Variable by_head = ops::view(c.g, x, {c.tokens(), {heads, heads_symbol}, head_dim});
  const Variable normed = norm(c, module, by_head);
  return ops::view(c.g, normed, flat);
}

Kernel flash_kernel(KernelKind kind, const LayerContext& c, const AttentionSizes& s, DType dtype, Bytes bytes) {
  Kernel kernel = Kernel::pointwise(kind, dtype, c.tokens().size * s.q_heads * s.head_dim, bytes);
  kernel.batch = c.batch() * s.q_heads;
  kernel.m = kernel.n = c.sequence();
  kernel.k = s.head_dim;
  return kernel;
}

/// flash-attention 2: keeps q, k, v, the output, log-sum-exp and the random state.
/// @param by_heads the output lies heads-major, so that backward copies it and its gradient first
Variable flash_attention(LayerContext& c, const Variable& q, const Variable& k, const Variable& v,
                         const AttentionSizes& s, bool by_heads) {
  Trace& trace = c.trace;
  const Dim n = c.tokens(), heads{s.q_heads, Symbol::heads};
  const std::int64_t rows = c.batch() * round_up(c.sequence(), 128);
  const std::int64_t padded_dim = round_up(s.head_dim, s.head_dim <= 128 ? 32 : 64);
  NodeRef node = c.g.make_node({&q, &k, &v}, [s, n, rows, padded_dim, by_heads, &c](BackwardCall& call) {
    const Tensor &kq = call.saved(0), &kk = call.saved(1), &kv = call.saved(2);
    Trace& t = call.trace;
    const auto by_token = [&](const Tensor& tensor, const char* name) {
      if (!by_heads) return tensor;
      Tensor copy = t.empty(tensor.shape, tensor.dtype, name);
      ops::launch(t, KernelKind::strided_copy, {&tensor}, copy, "attention backward: by token");
      return copy;
    };
    const Tensor out_gradient = by_token(call.grads[0], "output gradient by token");
    const Tensor out_by_token = by_token(call.saved(3), "attention output by token");
    call.out[0] = t.empty(kq.shape, kq.dtype, "dq");
    call.out[1] = t.empty(kk.shape, kk.dtype, "dk");
    call.out[2] = t.empty(kv.shape, kv.dtype, "dv");
    const auto workspace = [&](std::int64_t bytes) {
      return t.empty({{bytes}}, DType::int8, "attention backward workspace", Category::workspace);
    };
    const Tensor row_sums = workspace(4 * rows * s.q_heads), dq_sums = workspace(4 * rows * s.q_heads * padded_dim);
    Tensor wide_k, wide_v;
    if (s.kv_heads < s.q_heads) {
      wide_k = workspace(2 * n.size * s.q_heads * s.head_dim);
      wide_v = workspace(2 * n.size * s.q_heads * s.head_dim);
    }
    t.compute(flash_kernel(KernelKind::attention_backward, c, s, kq.dtype, kq.bytes() * 4 + kk.bytes() * 4),
              {&out_gradient, &kq, &kk, &kv, &out_by_token, &call.saved(4)},
              {&call.out[0], &call.out[1], &call.out[2], &row_sums, &dq_sums, &wide_k, &wide_v}, "attention backward");
  });
  for (const Variable* kept : {&q, &k, &v}) c.g.save(node, kept->data());
  Tensor out = trace.empty({n, {s.q_heads * s.value_dim, Symbol::q_width}}, q.dtype, "attention output");
  const Tensor lse = trace.empty({n, heads}, DType::fp32, "attention log-sum-exp");
  const Tensor state = trace.empty({{2}}, DType::int64, "attention random state");
  trace.compute(
      flash_kernel(KernelKind::attention_forward, c, s, q.dtype, q.bytes() + k.bytes() + v.bytes() + out.bytes()),
      {&q, &k, &v}, {&out, &lse}, "attention");
  for (const Tensor* kept : {static_cast<const Tensor*>(&out), &lse, &state}) c.g.save(node, *kept);
  return ops::output_of(std::move(out), std::move(node));
}

/// Neither of sdpa's fused kernels takes heads of another size than a multiple of 8: PyTorch pads q, k and v with zeros, into
/// heads-major copies, runs its flash-attention 2 on them, and hands back a part of the output, which is then laid in order.
constexpr std::int64_t head_multiple = 8;
Variable padded_attention(LayerContext& c, const Variable& q, const Variable& k, const Variable& v,
                          const AttentionSizes& s) {
  AttentionSizes wide = s;
  wide.head_dim = wide.value_dim = round_up(s.head_dim, head_multiple);
  const auto pad = [&](const Variable& x, std::int64_t heads) {
    return ops::pad_last(c.g, x, {c.tokens(), {heads * wide.head_dim}}, "padded for attention");
  };
  const Variable wide_q = pad(q, s.q_heads), wide_k = pad(k, s.kv_heads), wide_v = pad(v, s.kv_heads);
  const Variable mixed = flash_attention(c, wide_q, wide_k, wide_v, wide, true);
  const Variable part = ops::slice(c.g, mixed, {c.tokens(), {s.q_heads * s.head_dim, Symbol::q_width}});
  return ops::contiguous(c.g, part, "attention output in token order");
}

/// Which of a family's small differences apply.
struct Style {
  bool norms_after_projections = false;  ///< GLM-4.5: all three projections, then the norms
  bool norms_after_rotary = false;       ///< Hunyuan
  bool unweighted_norms = false;         ///< Llama-4, on layers with rotary embedding
  bool rotary = true;
};

Style style_of(const LayerContext& c, int layer) {
  const std::string_view family = c.scenario.model.family;
  Style style;
  style.norms_after_projections = family == "glm4_moe";
  style.norms_after_rotary = family == "hunyuan" || family == "hunyuan_v1_moe";
  style.rotary = family != "llama4_text" || (layer + 1) % 4 != 0;
  style.unweighted_norms = family == "llama4_text" && style.rotary;
  return style;
}

void normalise(LayerContext& c, AttentionModule& module, Heads& heads) {
  const AttentionSpec& spec = *module.spec;
  const Dim d{spec.head_dim, Symbol::head_dim};
  heads.q = head_norm(c, module.q_norm, heads.q, spec.q_heads, d, Symbol::heads);
  heads.k = head_norm(c, module.k_norm, heads.k, spec.kv_heads, d, Symbol::kv_heads);
}

Heads project(LayerContext& c, AttentionModule& module, const Variable& x, const Style& style) {
  const AttentionSpec& spec = *module.spec;
  const bool whole = spec.qk_norm == AttentionSpec::QkNorm::whole_width;
  const bool per_head = spec.qk_norm == AttentionSpec::QkNorm::per_head;
  const bool at_once = per_head && !style.norms_after_projections && !style.norms_after_rotary;
  const Dim d{spec.head_dim, Symbol::head_dim};
  const bool eager = c.scenario.plan.attention == AttentionImplementation::eager || module.sinks;
  Heads heads;
  heads.q = linear(c, module.q, x, "q projection");
  // Norms of the whole width work on the projections; all three are viewed as heads afterwards.
  if (whole) heads.q = norm(c, module.q_norm, heads.q);
  if (!whole) heads.q = by_heads(c, heads.q, spec.q_heads, true);
  if (at_once) heads.q = head_norm(c, module.q_norm, heads.q, spec.q_heads, d, Symbol::heads);
  heads.k = linear(c, module.k, x, "k projection");
  if (whole) heads.k = norm(c, module.k_norm, heads.k);
  if (!whole) heads.k = by_heads(c, heads.k, spec.kv_heads, true);
  if (at_once) heads.k = head_norm(c, module.k_norm, heads.k, spec.kv_heads, d, Symbol::kv_heads);
  heads.v = linear(c, module.v, x, "v projection");
  if (whole) heads.q = by_heads(c, heads.q, spec.q_heads, true);
  if (whole) heads.k = by_heads(c, heads.k, spec.kv_heads, true);
  // The fused kernels hand back dv in v's own order; repeating heads does not.
  heads.v = by_heads(c, heads.v, spec.kv_heads, eager);
  if (per_head && style.norms_after_projections) normalise(c, module, heads);
  return heads;
}

Variable grouped_query_attention(LayerContext& c, AttentionModule& module, const Variable& x,
                                 const RotaryTables& tables) {
  const AttentionSpec& spec = *module.spec;
  const Style style = style_of(c, module.layer);
  const RotaryForm form = rotary_form(c.scenario);
  Variable v, k, q;  // Python clears q, k, v in this order when the function returns; C++ locals die in reverse
  {
    Heads heads = project(c, module, x, style);
    q = std::move(heads.q);
    k = std::move(heads.k);
    v = std::move(heads.v);
  }
  if (style.rotary) {
    const std::int64_t rotary = spec.rotary_dim > 0 ? spec.rotary_dim : spec.head_dim;
    auto rotated = rotate_both(c, q, k, tables, spec.q_heads * rotary, spec.kv_heads * rotary);
    q = std::move(rotated[0]);
    k = std::move(rotated[1]);
  }
  if (style.unweighted_norms) {
    const Dim d{spec.head_dim, Symbol::head_dim};
    const auto normed = [&](const Variable& y, std::int64_t heads) {
      return ops::view(c.g, unweighted_norm(c, ops::view(c.g, y, {c.tokens(), {heads}, d})), y.shape);
    };
    q = normed(q, spec.q_heads);
    k = normed(k, spec.kv_heads);
  }
  if (style.norms_after_rotary && spec.qk_norm != AttentionSpec::QkNorm::none) {
    Heads heads{.q_by_head = false, .bias = {}, .v = {}, .k = std::move(k), .q = std::move(q)};
    normalise(c, module, heads);
    q = std::move(heads.q);
    k = std::move(heads.k);
  }
  const bool joined = style.rotary && (form == RotaryForm::partial || form == RotaryForm::chunks);
  const Variable mixed = attend(c, {.q_by_head = joined, .bias = {}, .v = v, .k = k, .q = q},
                                {spec.q_heads, spec.kv_heads, spec.head_dim, spec.head_dim}, module.sinks);
  return linear(c, module.o, mixed, "attention projection");
}

}  // namespace

Variable unweighted_norm(LayerContext& c, const Variable& x) {
  const Variable wide = ops::cast(c.g, x, DType::fp32, "norm input in fp32");
  Variable inverse;
  {
    Variable variance;
    {
      const Variable squared = ops::square(c.g, wide, "norm square");
      variance = ops::mean_last(c.g, squared, "norm variance");
    }
    const Variable shifted = ops::add_constant(c.g, variance, "norm variance + eps");
    variance = {};
    inverse = ops::rsqrt(c.g, shifted, "norm rstd");
  }
  const Variable normalised = ops::mul(c.g, wide, inverse, "normalised in fp32", KernelKind::broadcast_row);
  return ops::cast(c.g, normalised, x.dtype, "normalised");
}

Variable attend(LayerContext& c, const Heads& heads, const AttentionSizes& s, Parameter* sinks) {
  // Learnt sinks have no fused kernel here: their families fall back to scores in memory.
  if (sinks || c.scenario.plan.attention == AttentionImplementation::eager) return eager_attention(c, heads, s, sinks);
  Autograd& g = c.g;
  const DType narrow = g.autocast ? DType::bf16 : heads.q.dtype;
  if (c.scenario.plan.attention == AttentionImplementation::flash) {
    const Variable q = ops::cast(g, heads.q, narrow, "q cast");
    const Variable k = ops::cast(g, heads.k, narrow, "k cast");
    return flash_attention(c, q, k, heads.v, s, false);
  }
  const Variable k = ops::cast(g, heads.k, narrow, "k cast");
  const Variable q = ops::cast(g, heads.q, narrow, "q cast");
  if (s.head_dim % head_multiple != 0 && s.value_dim == s.head_dim) return padded_attention(c, q, k, heads.v, s);
  const Variable mixed = ops::scaled_dot_product_attention(
      g, q, k, heads.v, {c.batch(), c.sequence(), s.q_heads, s.kv_heads, s.head_dim, s.value_dim});
  if (heads.bias) g.save(mixed.grad_fn, heads.bias);
  // The output lies as q does.
  return heads.q_by_head ? ops::contiguous(g, mixed, "attention output in token order") : mixed;
}

Variable attention(LayerContext& c, AttentionModule& module, const Variable& input, const RotaryTables& tables) {
  return call_module(c, module, input, [&](const Variable& x) {
    switch (module.spec->kind) {
      case AttentionSpec::Kind::grouped_query: break;
      case AttentionSpec::Kind::latent: return latent_attention(c, module, x, tables);
      case AttentionSpec::Kind::lightning: return lightning_attention(c, module, x);
    }
    return grouped_query_attention(c, module, x, tables);
  });
}

}  // namespace plimsoll
