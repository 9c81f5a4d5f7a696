// Splitting, joining, exchanging and selecting rows (planner/step/autograd/ops_routing.hpp).
#include <memory>

#include "planner/step/autograd/ops_routing.hpp"

namespace plimsoll::ops {

Variable stack(Autograd& g, const Variable& a, const Variable& b, const Shape& shape, const char* name) {
  const Shape first = a.shape, second = b.shape;
  NodeRef node = g.make_node({&a, &b}, [first, second](BackwardCall& call) {
    call.out[0] = call.grads[0].view_as(first);
    call.out[1] = call.grads[0].view_as(second);
  });
  Tensor result = g.trace.empty(shape, a.dtype, name);
  launch(g.trace, KernelKind::concatenate, {&a, &b}, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable reordered(Autograd& g, const Variable& x, const Shape& shape, const char* name) {
  const Shape original = x.shape;
  NodeRef node = g.make_node({&x}, [original](BackwardCall& call) { call.out[0] = call.grads[0].view_as(original); });
  Tensor result = g.trace.empty(shape, x.dtype, name);
  Kernel kernel = Kernel::pointwise(KernelKind::strided_copy, x.dtype, result.numel(), result.bytes() * 2);
  kernel.m = 3;  // dimensions that it walks
  g.trace.compute(kernel, {&x}, {&result}, name);
  return output_of(std::move(result), std::move(node));
}

Variable select_rows(Autograd& g, const Variable& x, const Tensor& index, Dim rows, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor& grad = call.grads[0];
    call.out[0] = call.trace.empty(full, grad.dtype, "gradient of selected rows");
    launch(call.trace, KernelKind::fill, {}, call.out[0], "index_select backward: zeros");
    call.trace.compute(Kernel::pointwise(KernelKind::index_add, grad.dtype, grad.numel(), grad.bytes() * 3),
                       {&grad, &call.saved(0)}, {&call.out[0]}, "index_select backward");
  });
  g.save(node, index);
  Tensor result = g.trace.empty({rows, x.shape.last()}, x.dtype, name);
  g.trace.compute(Kernel::pointwise(KernelKind::gather_rows, x.dtype, result.numel(), result.bytes() * 2), {&x, &index},
                  {&result}, name);
  return output_of(std::move(result), std::move(node));
}

Variable with_zero_row(Autograd& g, const Variable& x, const char* name) {
  const Shape original = x.shape;
  NodeRef node = g.make_node({&x}, [original](BackwardCall& call) { call.out[0] = call.grads[0].view_as(original); });
  const Tensor zeros = g.trace.empty({{1}, x.shape.last()}, x.dtype, "row of zeros");
  launch(g.trace, KernelKind::fill, {}, zeros, name);
  Dim rows = x.shape.dim(0);
  ++rows.size;
  Tensor result = g.trace.empty({rows, x.shape.last()}, x.dtype, name);
  launch(g.trace, KernelKind::flat_copy, {&x, &zeros}, result, name);
  return output_of(std::move(result), std::move(node));
}

namespace {

Variable sum_over(Autograd& g, const Variable& x, const Shape& shape, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) { call.out[0] = call.grads[0].view_as(full); });
  Tensor result = g.trace.empty(shape, x.dtype, name);
  g.trace.compute(Kernel::pointwise(KernelKind::reduce_last, x.dtype, x.numel(), x.bytes()), {&x}, {&result}, name);
  return output_of(std::move(result), std::move(node));
}

}  // namespace

Variable sum_first(Autograd& g, const Variable& x, const char* name) {
  return sum_over(g, x, {x.shape.dim(1), x.shape.dim(2)}, name);
}

Variable sum_middle(Autograd& g, const Variable& x, const char* name) {
  return sum_over(g, x, {x.shape.dim(0), x.shape.dim(2)}, name);
}

std::vector<Variable> split(Autograd& g, const Variable& x, std::int64_t parts, const Shape& shape) {
  // One node gathers what the parts' nodes hand over: a node has few outputs, a split any number.
  auto gradients = std::make_shared<std::vector<Tensor>>(static_cast<std::size_t>(parts));
  const Shape full = x.shape;
  NodeRef whole = g.make_node({&x}, [full, gradients](BackwardCall& call) {
    call.out[0] = call.trace.empty(full, gradients->front().dtype, "joined gradients");
    call.trace.compute(
        Kernel::pointwise(KernelKind::flat_copy, call.out[0].dtype, call.out[0].numel(), call.out[0].bytes() * 2),
        {&gradients->front()}, {&call.out[0]}, "split backward");
    for (Tensor& gradient : *gradients) gradient = {};
  });
  Variable source = output_of(x.data(), whole);
  std::vector<Variable> result;
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i) {
    NodeRef part =
        g.make_node({&source}, [gradients, i](BackwardCall& call) { (*gradients)[i] = std::move(call.grads[0]); });
    result.push_back(output_of(x.data().view_as(shape), std::move(part)));
  }
  return result;
}

Variable join(Autograd& g, const std::vector<Variable>& parts, const Shape& shape, const char* name) {
  // A tree of nodes, each of which hands views of its gradient to up to four others.
  std::vector<Variable> level = parts;
  const auto merge = [&](std::size_t first, std::size_t count) {
    std::array<Variable, 4> inputs;
    for (std::size_t i = 0; i < count; ++i) inputs[i] = level[first + i];
    NodeRef node = g.make_node({&inputs[0], &inputs[1], &inputs[2], &inputs[3]}, [count](BackwardCall& call) {
      for (std::size_t i = 0; i < count; ++i) {
        call.out[i] = call.grads[0].view_as(call.node.input(i).shape);
      }
    });
    Variable merged;
    merged.shape = shape;
    merged.dtype = inputs[0].dtype;
    merged.grad_fn = std::move(node);
    return merged;
  };
  do {
    std::vector<Variable> next;
    for (std::size_t i = 0; i < level.size(); i += 4)
      next.push_back(merge(i, std::min<std::size_t>(4, level.size() - i)));
    level = std::move(next);
  } while (level.size() > 1);
  Tensor result = g.trace.empty(shape, parts.front().dtype, name);
  g.trace.compute(Kernel::pointwise(KernelKind::flat_copy, result.dtype, result.numel(), result.bytes() * 2),
                  {&parts.front()}, {&result}, name);
  return output_of(std::move(result), level.front().grad_fn);
}

Variable all_to_all(Autograd& g, const Variable& x, const Shape& received, GroupId group, const char* name) {
  const auto exchange = [group, name](Trace& trace, const Tensor& from, const Shape& to) {
    Tensor result = trace.empty(to, from.dtype, name);
    trace.collective({CollectiveKind::all_to_all, from.dtype, group, from.bytes(), result.bytes()}, {&from}, {&result},
                     name);
    return result;
  };
  const Shape sent = x.shape;
  NodeRef node = g.make_node(
      {&x}, [exchange, sent](BackwardCall& call) { call.out[0] = exchange(call.trace, call.grads[0], sent); });
  return output_of(exchange(g.trace, x, received), std::move(node));
}

}  // namespace plimsoll::ops
