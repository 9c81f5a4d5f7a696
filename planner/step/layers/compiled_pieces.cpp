// A decoder layer of which torch.compile makes a program a module (planner/step/layers/compiled.hpp).
//
// DeepSpeed's hooks of stage 3 are closed to the compiler, so that it breaks its graph before and after every module and
// compiles what lies between: each norm, each linear layer, rotary embedding with attention, the activation, the product with
// up, each residual sum.  A piece keeps what its backward reads: a norm its input and rstd (no fp32 copies), the others what
// their eager forms keep.  Between the pieces autograd works as always, and so do the hooks.
// Python's frames, cut at each module, hold every result of a module until it returns; a linear piece makes its weight's
// gradient first, lets its input go, then makes the input's.
//
// Source: the compiler's programs and the allocator traces of Llama layers at stage 3, with recomputation and without, on an
// H200 (PyTorch 2.11, DeepSpeed 0.19.8).
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/attention.hpp"
#include "planner/step/layers/compiled.hpp"

namespace plimsoll {

Variable norm_piece(LayerContext& c, NormModule& module, const Variable& x) {
  Scoped compiled(c.trace.compiled, true);
  const Variable weight = c.g.leaf(*module.weight);
  NodeRef node = c.g.make_node({&x, &weight}, [](BackwardCall& call) {
    const Tensor &input = call.saved(0), &scale = call.saved(1), &rstd = call.saved(2);
    call.out[0] = call.trace.empty(input.shape, input.dtype, "stream gradient");
    const NormSums sums(call.trace, scale.shape, input.numel() / input.shape.last().size, 1);
    launch_fused(call.trace, {&call.grads[0], &input, &scale, &rstd}, {&call.out[0], &sums.partial}, "norm backward");
    call.out[1] = sums.sum(call.trace, scale.dtype);
  });
  const Tensor rstd = c.trace.empty(rows_of(x.shape), DType::fp32, "norm rstd");
  Tensor output = c.trace.empty(x.shape, x.dtype, "norm output");
  launch_fused(c.trace, {&x, &weight}, {&output, &rstd}, "fused norm");
  c.g.save(node, x.data());
  c.g.save(node, weight);
  c.g.save(node, rstd);
  return ops::output_of(std::move(output), std::move(node));
}

Variable linear_piece(LayerContext& c, LinearModule& module, const Variable& x, const char* output_name) {
  Scoped compiled(c.trace.compiled, true);
  const Variable weight = c.g.leaf(*module.weight);
  const Shape shape = x.shape;
  const char* role = module.name;
  NodeRef node = c.g.make_node({&x, &weight}, [=, &g = c.g](BackwardCall& call) {
    call.out[1] = ops::weight_gradient(g, call.grads[0], call.saved(1), call.saved(0).shape, role);
    call.drop(1);
    call.out[0] = ops::input_gradient(g, call.grads[0], call.saved(0), shape, role);
  });
  Tensor output = c.trace.empty({c.tokens(), weight.shape.dim(0)}, x.dtype, output_name);
  c.g.take_gemm_workspace();
  c.trace.compute(Kernel::gemm(c.tokens().size, weight.shape.dim(0).size, weight.shape.dim(1).size, x.dtype),
                  {&x, &weight}, {&output}, role);
  c.g.save(node, weight);
  c.g.save(node, x.data());
  return ops::output_of(std::move(output), std::move(node));
}

namespace {

/// Rotary embedding and the fused attention kernel.
Variable attention_piece(LayerContext& c, const AttentionSpec& spec, const Variable& q, const Variable& k,
                         const Variable& v, const RotaryTables& tables) {
  Scoped compiled(c.trace.compiled, true);
  const ops::AttentionShape shape{c.batch(), c.sequence(), spec.q_heads, spec.kv_heads, spec.head_dim, spec.head_dim};
  const Tensor cos = tables.cos.data(), sin = tables.sin.data();
  NodeRef node = c.g.make_node({&q, &k, &v}, [=](BackwardCall& call) {
    auto [dq, dk, dv] = ops::attention_backward(call.trace, call.grads[0], call.saved(1), call.saved(2), call.saved(0),
                                                call.saved(3), call.saved(4), shape);
    for (std::size_t kept = 0; kept < 7; ++kept) call.drop(kept);
    const auto turn_back = [&](Tensor& gradient) {
      Tensor turned = call.trace.empty(gradient.shape, gradient.dtype, "gradient before rotary");
      launch_fused(call.trace, {&gradient, &cos, &sin}, {&turned}, "rotary backward");
      gradient.reset();
      return turned;
    };
    call.out[1] = turn_back(dk);
    call.out[0] = turn_back(dq);
    call.out[2] = std::move(dv);
  });
  const auto turn = [&](const Variable& x) {
    Tensor rotated = c.trace.empty(x.shape, x.dtype, "rotated");
    launch_fused(c.trace, {&x, &cos, &sin}, {&rotated}, "fused rotary");
    return rotated;
  };
  const Tensor rotated_q = turn(q), rotated_k = turn(k);
  ops::Attended attended = ops::attention_forward(c.trace, rotated_q, rotated_k, v, shape);
  const Tensor values = v.data();
  for (const Tensor* kept : {&values, &rotated_q, &rotated_k, static_cast<const Tensor*>(&attended.out),
                             static_cast<const Tensor*>(&attended.lse), static_cast<const Tensor*>(&attended.seed),
                             static_cast<const Tensor*>(&attended.offset)})
    c.g.save(node, *kept);
  return ops::output_of(std::move(attended.out), std::move(node));
}

Variable attention_pieces(LayerContext& c, AttentionModule& module, const Variable& input, const RotaryTables& tables) {
  return call_module(c, module, input, [&](const Variable& x) {
    const auto by_heads = [&](NormModule& head_norm, const Variable& projected, Dim heads) {
      if (!head_norm.weight) return projected;
      const Dim d{module.spec->head_dim, Symbol::head_dim};
      const Variable normed = norm(c, head_norm, ops::view(c.g, projected, {c.tokens(), heads, d}));
      return ops::view(c.g, normed, projected.shape);
    };
    const Variable q_raw = linear(c, module.q, x, "q projection");
    const Variable q = by_heads(module.q_norm, q_raw, {module.spec->q_heads, Symbol::heads});
    const Variable k_raw = linear(c, module.k, x, "k projection");
    const Variable k = by_heads(module.k_norm, k_raw, {module.spec->kv_heads, Symbol::kv_heads});
    const Variable v = linear(c, module.v, x, "v projection");
    // Their gradients come heads-major; a program takes them in token order.
    const Variable by_head_q = ops::view(c.g, q, q.shape, module.spec->q_heads > 1);
    const Variable by_head_k = ops::view(c.g, k, k.shape, module.spec->kv_heads > 1);
    const Variable mixed = attention_piece(c, *module.spec, by_head_q, by_head_k, v, tables);
    return linear(c, module.o, mixed, "attention projection");
  });
}

Variable mlp_pieces(LayerContext& c, MlpModule& module, const Variable& input) {
  return call_module(c, module, input, [&](const Variable& x) {
    const Variable gate = linear(c, module.gate, x, "mlp gate");
    const Variable activated = call_module(c, module.activation, gate, [&](const Variable& in) {
      Scoped compiled(c.trace.compiled, true);
      return ops::silu(c.g, in, "silu(gate)");
    });
    const Variable up = linear(c, module.up, x, "mlp up");
    Variable product;
    {
      Scoped compiled(c.trace.compiled, true);
      product = ops::mul(c.g, activated, up, "silu(gate) up", KernelKind::compiled_pointwise);
    }
    return linear(c, module.down, product, "mlp output");
  });
}

Variable residual_piece(LayerContext& c, const Variable& stream, const Variable& branch, const char* name) {
  Scoped compiled(c.trace.compiled, true);
  return ops::add(c.g, stream, branch, name, KernelKind::compiled_pointwise);
}

}  // namespace

bool compiles_modules(const Scenario& scenario) {
  return scenario.plan.compile && scenario.plan.engine == Engine::deepspeed && scenario.plan.zero.stage == 3;
}

Variable layer_of_pieces(LayerContext& c, DecoderLayerModule& module, const Variable& x, const RotaryTables& tables,
                         std::vector<Variable>* router_logits) {
  Scoped pieces(c.pieces, true);
  const Variable normed = norm(c, module.input_norm, x);
  const Variable attended = attention_pieces(c, module.attention, normed, tables);
  const Variable after = residual_piece(c, x, attended, "residual after attention");
  const Variable rows = norm(c, module.post_attention_norm, after);
  const Variable out =
      module.is_moe ? mixture_pieces(c, module.moe, rows, router_logits) : mlp_pieces(c, module.mlp, rows);
  return residual_piece(c, after, out, "residual after mlp");
}

}  // namespace plimsoll
