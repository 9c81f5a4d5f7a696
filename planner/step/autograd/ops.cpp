// Pointwise operations, reductions and views (planner/step/autograd/ops.hpp).
#include "planner/step/autograd/ops.hpp"

#include <algorithm>

namespace plimsoll::ops {

namespace {

bool is_integer(DType type) {
  return type == DType::int64 || type == DType::int32 || type == DType::int8 || type == DType::boolean;
}

/// Operands of two floating types make PyTorch convert element by element, whatever their layout.
KernelKind by_operands(KernelKind kind, std::initializer_list<const Tensor*> reads) {
  const bool sensitive = kind == KernelKind::vectorized || kind == KernelKind::strided_mul ||
                         kind == KernelKind::strided_add || kind == KernelKind::mixed_mul;
  if (!sensitive) return kind;
  const Tensor* first = nullptr;
  for (const Tensor* tensor : reads) {
    if (!tensor || !*tensor || is_integer(tensor->dtype)) continue;
    if (!first) first = tensor;
    if (tensor->dtype != first->dtype) return KernelKind::mixed_mul;
  }
  if (kind != KernelKind::mixed_mul || !first) return kind;
  return first->dtype == DType::fp32 ? KernelKind::broadcast_row : KernelKind::broadcast_weight;
}

}  // namespace

void launch(Trace& trace, KernelKind kind, std::initializer_list<const Tensor*> reads, const Tensor& result,
            const char* role, const Call& call) {
  Bytes bytes = result.bytes();
  for (const Tensor* tensor : reads) {
    if (tensor) bytes += tensor->bytes();
  }
  Kernel kernel = Kernel::pointwise(by_operands(kind, reads), result.dtype, result.numel(), bytes);
  if (kernel.kind == KernelKind::mixed_mul && kind != KernelKind::strided_mul && kind != KernelKind::strided_add)
    kernel.m = 2;  // dimensions that it walks: rows of whole tensors
  trace.compute(kernel, call, reads, {&result}, role);
}

namespace {

Variable with_graph(Tensor tensor, NodeRef node) {
  Variable result{std::move(tensor)};
  result.grad_fn = std::move(node);
  return result;
}

/// Floating types win over integers, then the wider one.
DType wider(DType a, DType b) {
  if (is_integer(a) != is_integer(b)) return is_integer(a) ? b : a;
  return size_of(a) >= size_of(b) ? a : b;
}

KernelKind cast_kind(DType from, DType to) {
  return size_of(to) > size_of(from) ? KernelKind::upcast : KernelKind::vectorized;
}

Shape last_as_one(const Shape& shape) {
  Shape result = shape;
  result.sizes[static_cast<std::size_t>(shape.rank) - 1] = 1;
  result.symbols[static_cast<std::size_t>(shape.rank) - 1] = Symbol::number;
  return result;
}

}  // namespace

void pass_through(BackwardCall& call) { call.out[0] = std::move(call.grads[0]); }

Variable cast(Autograd& g, const Variable& x, DType dtype, const char* name) {
  if (x.dtype == dtype) return x;
  // The gradient is cast back by the engine, which fits it to its input's type.
  NodeRef node = g.make_node({&x}, pass_through);
  Tensor result = g.trace.empty(x.shape, dtype, name);
  launch(g.trace, cast_kind(x.dtype, dtype), {&x}, result, name);
  return with_graph(std::move(result), std::move(node));
}

Variable add(Autograd& g, const Variable& a, const Variable& b, const char* name, KernelKind kind) {
  NodeRef node = g.make_node({&a, &b}, [](BackwardCall& call) {
    if (call.wants(1)) call.out[1] = call.grads[0];
    if (call.wants(0)) call.out[0] = std::move(call.grads[0]);
  });
  Tensor result = g.trace.empty(a.numel() >= b.numel() ? a.shape : b.shape, wider(a.dtype, b.dtype), name);
  launch(g.trace, kind, {&a, &b}, result, name, {Routine::add, {result.numel()}, {}});
  return with_graph(std::move(result), std::move(node));
}

namespace {

/// A part of a wider tensor (a chunk of its columns) is not contiguous: kernels walk it element by element.
bool is_part(Trace& trace, const Tensor& tensor) {
  return tensor.bytes() < trace.program().buffers[tensor.buffer()].size;
}

/// The kernel of rows that lie apart, two dimensions, is that of a row times a weight.
KernelKind strided(KernelKind kind) { return kind == KernelKind::vectorized ? KernelKind::broadcast_weight : kind; }

}  // namespace

Variable mul(Autograd& g, const Variable& a, const Variable& b, const char* name, KernelKind kind) {
  NodeRef node = g.make_node({&a, &b}, [kind](BackwardCall& call) {
    const auto product = [&](const Tensor& kept) {
      const Tensor& grad = call.grads[0];
      Tensor result = call.trace.empty(grad.shape, wider(grad.dtype, kept.dtype), "gradient of a product");
      // Two whole tensors multiply along memory; only a broadcast operand needs the slower, strided kernel.
      const bool whole = kept.numel() == grad.numel() && !is_part(call.trace, kept);
      launch(call.trace, whole ? KernelKind::vectorized : strided(kind), {&grad, &kept}, result,
             "gradient of a product");
      result.permuted = grad.permuted || kind == KernelKind::strided_mul;
      return result;
    };
    if (call.wants(1)) call.out[1] = product(call.saved(call.wants(0) ? 1 : 0));
    if (call.wants(0)) call.out[0] = product(call.saved(0));
  });
  if (b.requires_grad() && !a.requires_grad()) {
    g.save(node, a);
  } else {
    if (a.requires_grad()) g.save(node, b);
    if (b.requires_grad()) g.save(node, a);
  }
  Tensor result = g.trace.empty(a.numel() >= b.numel() ? a.shape : b.shape, wider(a.dtype, b.dtype), name);
  const bool parts = is_part(g.trace, a) || is_part(g.trace, b);
  launch(g.trace, parts ? strided(kind) : kind, {&a, &b}, result, name);
  return with_graph(std::move(result), std::move(node));
}

Variable square(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    Tensor power = call.trace.empty(kept.shape, kept.dtype, "x to the first power");
    launch(call.trace, KernelKind::vectorized, {&kept}, power, "pow backward");
    Tensor twice = call.trace.empty(kept.shape, kept.dtype, "2 x");
    launch(call.trace, KernelKind::vectorized, {&power}, twice, "pow backward");
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "gradient of a square");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0], &twice}, call.out[0], "pow backward");
    twice = {};
  });
  g.save(node, x);
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x}, result, name);
  return with_graph(std::move(result), std::move(node));
}

Variable mean_last(Autograd& g, const Variable& x, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    call.out[0] = call.trace.empty(full, call.grads[0].dtype, "gradient of a mean");
    launch(call.trace, KernelKind::expanded_divide, {&call.grads[0]}, call.out[0], "mean backward");
  });
  Tensor result = g.trace.empty(last_as_one(x.shape), x.dtype, name);
  Kernel kernel = Kernel::pointwise(KernelKind::reduce_last, x.dtype, x.numel(), x.bytes() + result.bytes());
  kernel.n = full.last().size;  // rows of this length
  g.trace.compute(kernel, {&x}, {&result}, name);
  return with_graph(std::move(result), std::move(node));
}

Variable add_constant(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, pass_through);
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x}, result, name, {Routine::copy, {result.numel()}, {}});
  return with_graph(std::move(result), std::move(node));
}

Variable rsqrt(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    Tensor half = call.trace.empty(kept.shape, kept.dtype, "-grad / 2");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0]}, half, "rsqrt backward");
    Tensor cube = call.trace.empty(kept.shape, kept.dtype, "rsqrt cubed");
    launch(call.trace, KernelKind::vectorized, {&kept}, cube, "rsqrt backward");
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "gradient of rsqrt");
    launch(call.trace, KernelKind::vectorized, {&half, &cube}, call.out[0], "rsqrt backward");
  });
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x}, result, name);
  g.save(node, result);
  return with_graph(std::move(result), std::move(node));
}

namespace {

/// An activation function whose backward needs its input (silu) or its result (sigmoid).
Variable activation(Autograd& g, const Variable& x, const char* name, KernelKind forward, KernelKind backward,
                    bool keeps_result) {
  NodeRef node = g.make_node({&x}, [backward](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "gradient of an activation");
    launch(call.trace, is_part(call.trace, kept) ? KernelKind::strided_add : backward, {&call.grads[0], &kept},
           call.out[0], "activation backward");
  });
  if (!keeps_result) g.save(node, x);
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, is_part(g.trace, x) ? KernelKind::broadcast_weight : forward, {&x}, result, name);
  if (keeps_result) g.save(node, result);
  return with_graph(std::move(result), std::move(node));
}

}  // namespace

Variable silu(Autograd& g, const Variable& x, const char* name) {
  return activation(g, x, name, KernelKind::silu, KernelKind::silu_backward, false);
}

Variable sigmoid(Autograd& g, const Variable& x, const char* name) {
  return activation(g, x, name, KernelKind::vectorized, KernelKind::vectorized, true);
}

// native_dropout: the mask first, then the result; one kernel each way.
Variable dropout(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    const Tensor mask = call.saved(0);
    call.out[0] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "gradient of a dropout");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0], &mask}, call.out[0], "dropout backward");
  });
  const Tensor mask = g.trace.empty(x.shape, DType::boolean, "dropout mask");
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x, &mask}, result, name);
  g.save(node, mask);
  return with_graph(std::move(result), std::move(node));
}

Variable negate(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    call.out[0] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "negated gradient");
    launch(call.trace, KernelKind::strided_neg, {&call.grads[0]}, call.out[0], "neg backward");
  });
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::strided_neg, {&x}, result, name);
  return with_graph(std::move(result), std::move(node));
}

Variable slice_half(Autograd& g, const Variable& x) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor& grad = call.grads[0];
    Tensor whole = call.trace.empty(full, grad.dtype, "slice gradient");
    launch(call.trace, KernelKind::fill, {}, whole, "slice backward: zeros");
    call.trace.compute(Kernel::pointwise(KernelKind::strided_copy, grad.dtype, grad.numel(), grad.bytes() * 2), {&grad},
                       {&whole}, "slice backward");
    call.out[0] = std::move(whole);
  });
  Shape half = x.shape;
  half.sizes[static_cast<std::size_t>(half.rank) - 1] /= 2;
  Variable result{x.data().view_as(half)};
  result.grad_fn = std::move(node);
  return result;
}

Variable concatenate(Autograd& g, const Variable& a, const Variable& b, const char* name) {
  const Shape first = a.shape;
  const Shape second = b.shape;
  NodeRef node = g.make_node({&a, &b}, [first, second](BackwardCall& call) {
    call.out[0] = call.grads[0].view_as(first);
    call.out[1] = call.grads[0].view_as(second);
  });
  Shape joined = a.shape;
  joined.sizes[static_cast<std::size_t>(joined.rank) - 1] += b.shape.last().size;
  Tensor result = g.trace.empty(joined, wider(a.dtype, b.dtype), name);
  launch(g.trace, KernelKind::concatenate, {&a, &b}, result, name);
  return with_graph(std::move(result), std::move(node));
}

Variable softmax(Autograd& g, const Variable& x, DType dtype, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(kept.shape, kept.dtype, "softmax gradient");
    const Tensor product = call.trace.empty(kept.shape, kept.dtype, "gradient times softmax");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0], &kept}, product, "softmax backward");
    launch(call.trace, KernelKind::softmax_backward, {&product, &kept}, call.out[0], "softmax backward");
  });
  Tensor result = g.trace.empty(x.shape, dtype, name);
  launch(g.trace, KernelKind::softmax, {&x}, result, name);
  g.save(node, result);
  return with_graph(std::move(result), std::move(node));
}

Variable view(Autograd& g, const Variable& x, const Shape& shape, bool copies_gradient) {
  const Shape original = x.shape;
  NodeRef node = g.make_node({&x}, [original, copies_gradient](BackwardCall& call) {
    if (!copies_gradient) {
      call.out[0] = call.grads[0].view_as(original);
      return;
    }
    call.out[0] = call.trace.empty(original, call.grads[0].dtype, "gradient in memory order");
    launch(call.trace, KernelKind::strided_copy, {&call.grads[0]}, call.out[0], "layout copy");
  });
  Variable result{x.data().view_as(shape)};
  result.grad_fn = std::move(node);
  return result;
}

}  // namespace plimsoll::ops
