// Slices, splits and copies (planner/step/autograd/ops_shape.hpp).
#include "planner/step/autograd/ops_shape.hpp"

#include "planner/step/autograd/ops_routing.hpp"

namespace plimsoll::ops {

Variable slice(Autograd& g, const Variable& x, const Shape& part) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor& grad = call.grads[0];
    call.out[0] = call.trace.empty(full, grad.dtype, "slice gradient");
    launch(call.trace, KernelKind::fill, {}, call.out[0], "slice backward: zeros");
    call.trace.compute(Kernel::pointwise(KernelKind::strided_copy, grad.dtype, grad.numel(), grad.bytes() * 2), {&grad},
                       {&call.out[0]}, "slice backward");
  });
  return output_of(x.data().view_as(part), std::move(node));
}

std::array<Variable, 2> split_last(Autograd& g, const Variable& x, const Shape& first, const Shape& second) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const DType dtype = call.grads[0] ? call.grads[0].dtype : call.grads[1].dtype;
    call.out[0] = call.trace.empty(full, dtype, "joined gradients");
    launch(call.trace, KernelKind::concatenate, {&call.grads[0], &call.grads[1]}, call.out[0], "split backward");
  });
  return {output_of(x.data().view_as(first), node, 0), output_of(x.data().view_as(second), node, 1)};
}

Variable expand(Autograd& g, const Variable& x, const Shape& wide) {
  const Shape narrow = x.shape;
  NodeRef node = g.make_node({&x}, [narrow](BackwardCall& call) {
    call.out[0] = call.trace.empty(narrow, call.grads[0].dtype, "sum over repeats");
    launch(call.trace, KernelKind::reduce_last, {&call.grads[0]}, call.out[0], "expand backward");
  });
  return output_of(x.data().view_as(wide), std::move(node));
}

Variable copy_into(Autograd& g, const Variable& target, const Variable& x) {
  const Shape full = target.shape, part = x.shape;
  NodeRef node = g.make_node({&target, &x}, [full, part](BackwardCall& call) {
    const Tensor& grad = call.grads[0];
    Tensor whole = call.trace.empty(full, grad.dtype, "gradient of what is copied into");
    launch(call.trace, KernelKind::flat_copy, {&grad}, whole, "copy backward");
    call.out[1] = call.trace.empty(part, grad.dtype, "gradient of what was copied");
    launch(call.trace, KernelKind::strided_copy, {&grad}, call.out[1], "copy backward");
    if (!call.wants(0)) return;
    const Tensor zeros = call.trace.empty(part, grad.dtype, "zeros");
    launch(call.trace, KernelKind::fill, {}, zeros, "copy backward: zeros");
    launch(call.trace, KernelKind::strided_copy, {&zeros}, whole, "copy backward");
    call.out[0] = std::move(whole);
  });
  g.trace.compute(Kernel::pointwise(KernelKind::strided_copy, x.dtype, x.numel(), x.bytes() * 2), {&x}, {&target},
                  "copy into part");
  return output_of(target.data(), std::move(node));
}

Variable subtract(Autograd& g, const Variable& a, const Variable& b, const char* name) {
  NodeRef node = g.make_node({&a, &b}, [](BackwardCall& call) {
    if (call.wants(1)) {
      call.out[1] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "negated gradient");
      launch(call.trace, KernelKind::strided_neg, {&call.grads[0]}, call.out[1], "sub backward");
    }
    if (call.wants(0)) call.out[0] = call.grads[0];
  });
  Tensor result = g.trace.empty(a.shape, a.dtype, name);
  launch(g.trace, KernelKind::strided_add, {&a, &b}, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable pad_last(Autograd& g, const Variable& x, const Shape& wide, const char* name) {
  const Shape narrow = x.shape;
  NodeRef node = g.make_node({&x}, [narrow](BackwardCall& call) {
    call.out[0] = call.trace.empty(narrow, call.grads[0].dtype, "gradient without padding");
    launch(call.trace, KernelKind::strided_copy, {&call.grads[0]}, call.out[0], "pad backward");
  });
  Tensor padded = g.trace.empty(wide, x.dtype, name);
  launch(g.trace, KernelKind::fill, {}, padded, "pad: zeros");
  launch(g.trace, KernelKind::strided_copy, {&x.data()}, padded, "pad");
  return output_of(std::move(padded), std::move(node));
}

Variable contiguous(Autograd& g, const Variable& x, const char* name) { return reordered(g, x, x.shape, name); }

}  // namespace plimsoll::ops
