// Llama-4's mixture of experts (planner/step/layers/moe.hpp) as Hugging Face's module trains it: every expert computes every
// token, its input scaled by a score that is zero for experts that were not chosen.  N tokens, E experts:
//   kept   repeated and scaled input 2 E N h each, gate and up 4 E N I, silu and product 2 E N I each
// Source: Llama4TextMoe of transformers 5.17 and the allocator trace of a step.
#include <utility>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/layers/moe.hpp"

namespace plimsoll {

namespace {

/// x E times over; the gradients of the copies are summed.
Variable repeated(LayerContext& c, const Variable& x, Dim rows) {
  const Shape narrow = x.shape;
  NodeRef node = c.g.make_node({&x}, [narrow](BackwardCall& call) {
    call.out[0] = call.trace.empty(narrow, call.grads[0].dtype, "sum over experts");
    ops::launch(call.trace, KernelKind::reduce_rows, {&call.grads[0]}, call.out[0], "repeat backward");
  });
  Tensor result = c.trace.empty({rows, x.shape.last()}, x.dtype, "input of every expert");
  ops::launch(c.trace, KernelKind::flat_copy, {&x}, result, "repeat");
  return ops::output_of(std::move(result), std::move(node));
}

/// One product per expert over equal parts of the rows; weights [E, in, out].
Variable batched(LayerContext& c, const Variable& x, Parameter& weight, const char* name) {
  const Variable w = c.g.leaf(weight);
  const std::int64_t experts = weight.shape.dim(0).size, inner = weight.shape.dim(1).size;
  const Dim columns = weight.shape.dim(2);
  const std::int64_t rows = x.shape.dim(0).size / experts;
  const Shape in = x.shape, weight_shape = weight.shape;
  NodeRef node = c.g.make_node({&x, &w}, [=](BackwardCall& call) {
    const Tensor& dy = call.grads[0];
    call.out[1] = call.trace.empty(weight_shape, dy.dtype, "expert weight gradient", Category::gradients);
    call.trace.compute(Kernel::gemm(inner, columns.size, rows, dy.dtype, experts), {&dy, &call.saved(1)},
                       {&call.out[1]}, "feed_forward.experts");
    call.out[0] = call.trace.empty(in, dy.dtype, "expert input gradient");
    call.trace.compute(Kernel::gemm(rows, inner, columns.size, dy.dtype, experts), {&dy, &call.saved(0)},
                       {&call.out[0]}, "feed_forward.experts");
  });
  c.g.save(node, w);
  c.g.save(node, x.data());
  Tensor result = c.trace.empty({x.shape.dim(0), columns}, x.dtype, name);
  c.g.take_gemm_workspace();
  c.trace.compute(Kernel::gemm(rows, columns.size, inner, x.dtype, experts), {&x, &w}, {&result},
                  "feed_forward.experts");
  return ops::output_of(std::move(result), std::move(node));
}

/// Scores of all experts [N, E]: sigmoid of the chosen logits, zero elsewhere.
Variable scores_of(LayerContext& c, MoeModule& module, const Variable& logits) {
  Autograd& g = c.g;
  ops::TopK chosen = ops::top_k(g, logits, {module.spec->top_k, Symbol::top_k}, "chosen logits");
  Variable scores;
  {
    // full_like(-inf).scatter_(chosen): the gradient is gathered back.
    const Shape shape = chosen.values.shape;
    NodeRef node = g.make_node({&chosen.values}, [shape](BackwardCall& call) {
      call.out[0] = call.trace.empty(shape, call.grads[0].dtype, "gradient of chosen logits");
      ops::launch(call.trace, KernelKind::small, {&call.grads[0], &call.saved(0)}, call.out[0], "scatter backward");
    });
    g.save(node, chosen.indices);
    Tensor scattered = c.trace.empty(logits.shape, logits.dtype, "chosen logits by expert");
    ops::launch(c.trace, KernelKind::small, {&chosen.values}, scattered, "scatter");
    const Variable by_expert = ops::output_of(std::move(scattered), std::move(node));
    Variable sigmoid;
    {
      const Variable wide = ops::cast(g, by_expert, DType::fp32, "chosen logits in fp32");
      sigmoid = ops::sigmoid(g, wide, "router scores in fp32");
    }
    scores = ops::cast(g, sigmoid, logits.dtype, "router scores");
  }
  return scores;
}

}  // namespace

Variable every_expert_mixture(LayerContext& c, MoeModule& module, const Variable& input) {
  return call_module(c, module, input, [&](const Variable& x) {
    Autograd& g = c.g;
    const Dim n = c.tokens(), e{module.spec->experts, Symbol::experts};
    const Dim rows{n.size * e.size, Symbol::rows};
    Scoped flat(c.flat_tokens, true);
    Variable output, logits, routed, scores;
    logits = linear(c, module.router, x, "router logits");
    scores = scores_of(c, module, logits);
    {
      Scoped category(c.trace.category, Category::expert_buffers);
      Variable scaled;
      {
        const Variable wide = repeated(c, x, rows);
        const Variable column = ops::reordered(g, scores, {rows, {1}}, "router score of each row");
        scaled = ops::mul(g, wide, column, "scaled input of every expert", KernelKind::broadcast_row);
      }
      routed = call_module(c, module.experts, std::move(scaled), [&](const Variable& scaled_rows) {
        Variable product;
        {
          const Variable gate_up = batched(c, scaled_rows, *module.gate_up, "expert gate and up");
          const auto [gate, up] = ops::halves(g, gate_up);
          const Variable activated = ops::silu(g, gate, "silu(expert gate)");
          product = ops::mul(g, up, activated, "expert up silu(gate)", KernelKind::vectorized);
        }
        return batched(c, product, *module.down, "expert output");
      });
    }
    output = mlp(c, module.shared, x, {module.spec->shared_intermediate, Symbol::intermediate});
    {
      const Variable sum = ops::sum_first(g, ops::view(g, routed, {e, n, c.hidden()}), "sum over experts");
      output = ops::add_in_place(g, output, sum);
    }
    return output;
  });
}

}  // namespace plimsoll
