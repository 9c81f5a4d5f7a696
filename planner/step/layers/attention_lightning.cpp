// Lightning attention (MiniMax-Text-01), as Hugging Face's module composes it (planner/step/layers/attention.hpp): the sequence
// in blocks of 256; inside a block (q k^T x decay) v, and q times a state of d x d per head that sums k^T v of the blocks
// before.  Its silu, norm, gate and projection surround it.
// Source: allocator trace of a step of MiniMax; the projection of q, k and v is one product there and three here, since the
// model's parameters list them apart.
#include <algorithm>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/attention.hpp"

namespace plimsoll {

namespace {

constexpr std::int64_t block = 256;

/// a b, batched over b A heads; keeps both.
Variable product(LayerContext& c, const Variable& a, const Variable& b, const Shape& shape, std::int64_t heads,
                 std::int64_t m, std::int64_t n, std::int64_t inner, const char* name) {
  const Shape sa = a.shape, sb = b.shape;
  const bool keeps_b = a.requires_grad(), keeps_a = b.requires_grad();
  NodeRef node = c.g.make_node({&a, &b}, [=](BackwardCall& call) {
    const DType dtype = call.grads[0].dtype;
    if (call.wants(1)) {
      call.out[1] = call.trace.empty(sb, dtype, "gradient of an attention product");
      call.trace.compute(Kernel::gemm(inner, n, m, dtype, heads), {&call.grads[0], &call.saved(keeps_b ? 1 : 0)},
                         {&call.out[1]}, "attention product");
    }
    if (call.wants(0)) {
      call.out[0] = call.trace.empty(sa, dtype, "gradient of an attention product");
      call.trace.compute(Kernel::gemm(m, inner, n, dtype, heads), {&call.grads[0], &call.saved(0)}, {&call.out[0]},
                         "attention product");
    }
  });
  if (keeps_b) c.g.save(node, b);
  if (keeps_a) c.g.save(node, a);
  Tensor result = c.trace.empty(shape, a.dtype, name);
  c.trace.compute(Kernel::gemm(m, n, inner, a.dtype, heads), {&a, &b}, {&result}, "attention product");
  return ops::output_of(std::move(result), std::move(node));
}

class Lightning {
 public:
  Lightning(LayerContext& c, const AttentionSpec& spec, Variable q, Variable k, Variable v)
      : c_(c), heads_(spec.q_heads), head_dim_(spec.head_dim), v_(std::move(v)), k_(std::move(k)), q_(std::move(q)) {
    state_ = Variable{c.trace.empty({{c.batch()}, {heads_}, {head_dim_}, {head_dim_}}, q_.dtype, "state")};
  }

  /// One block of `rows` positions: its output; the state goes on.
  Variable run(std::int64_t rows) {
    Autograd& g = c_.g;
    const Shape square{{c_.batch()}, {heads_}, {rows}, {rows}};
    const Variable q = part(q_, rows), k = part(k_, rows), v = part(v_, rows);
    {
      const Variable q_copy = copied(q), k_copy = copied(k);
      scores_ = batched(q_copy, k_copy, square, rows, rows, head_dim_, "block scores");
    }
    {
      const Variable weighted = decayed(scores_, "decayed block scores");
      inside_ = batched(weighted, copied(v), q.shape, rows, head_dim_, rows, "output inside the block");
    }
    {
      const Variable weighted = decayed(q, "decayed q block");
      before_ = batched(copied(weighted), state_, q.shape, rows, head_dim_, head_dim_, "output of blocks before");
    }
    output_ = ops::add(g, before_, inside_, "block output");
    {
      const Variable weighted = decayed(k, "decayed k block");
      const Variable k_copy = copied(weighted);
      next_ = batched(k_copy, copied(v), state_.shape, head_dim_, head_dim_, rows, "state of the block");
    }
    const Variable old = ops::scale(g, state_, "decayed state");
    state_ = ops::add(g, old, next_, "state");
    return output_;
  }

 private:
  Variable part(const Variable& x, std::int64_t rows) const {
    return ops::slice(c_.g, x, {{c_.batch() * rows, Symbol::tokens}, x.shape.last()});
  }
  Variable copied(const Variable& x) const { return ops::contiguous(c_.g, x, "block in memory order"); }
  Variable batched(const Variable& a, const Variable& b, const Shape& shape, std::int64_t m, std::int64_t n,
                   std::int64_t inner, const char* name) const {
    return product(c_, a, b, shape, c_.batch() * heads_, m, n, inner, name);
  }
  /// Times a table of the module, which the product keeps instead of x.
  Variable decayed(const Variable& x, const char* name) const {
    NodeRef node = c_.g.make_node({&x}, [shape = x.shape](BackwardCall& call) {
      call.out[0] = call.trace.empty(shape, call.grads[0].dtype, "gradient of a decayed part");
      ops::launch(call.trace, KernelKind::strided_mul, {&call.grads[0]}, call.out[0], "decay backward");
    });
    Tensor result = c_.trace.empty(x.shape, x.dtype, name);
    ops::launch(c_.trace, KernelKind::strided_mul, {&x}, result, name);
    return ops::output_of(std::move(result), std::move(node));
  }

  LayerContext& c_;
  std::int64_t heads_, head_dim_;
  // Names that the loop keeps from one block to the next; they die from the last to the first.
  Variable state_, next_, output_, before_, inside_, scores_, v_, k_, q_;
};

}  // namespace

Variable lightning_attention(LayerContext& c, AttentionModule& module, const Variable& x) {
  Autograd& g = c.g;
  const AttentionSpec& spec = *module.spec;
  const auto projected = [&](LinearModule& linear_module, const char* name) {
    const Variable y = linear(c, linear_module, x, name);
    return ops::silu(g, y, "silu of a projection");
  };
  Variable q = projected(module.q, "q projection");
  Variable k = projected(module.k, "k projection");
  Variable v = projected(module.v, "v projection");
  Lightning lightning(c, spec, std::move(q), std::move(k), std::move(v));
  std::vector<Variable> outputs;
  for (std::int64_t first = 0; first < c.sequence(); first += block) {
    outputs.push_back(lightning.run(std::min(block, c.sequence() - first)));
  }
  Variable mixed = ops::join(g, outputs, {c.tokens(), {spec.q_width(), Symbol::q_width}}, "attention output");
  while (!outputs.empty()) outputs.pop_back();  // a Python list gives up its last item first
  mixed = ops::contiguous(g, mixed, "attention output in token order");
  mixed = norm(c, module.output_norm, mixed);
  {
    Variable gate = linear(c, module.output_gate, x, "output gate");
    gate = ops::sigmoid(g, gate, "sigmoid of the output gate");
    mixed = ops::mul(g, gate, mixed, "gated attention output", KernelKind::vectorized);
  }
  return linear(c, module.o, mixed, "attention projection");
}

}  // namespace plimsoll
