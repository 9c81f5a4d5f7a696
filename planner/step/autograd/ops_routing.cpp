// Operations of routing (planner/step/autograd/ops_routing.hpp).
#include "planner/step/autograd/ops_routing.hpp"

#include <bit>

namespace plimsoll::ops {

namespace {

constexpr DType index_type = DType::int64;

Shape with_last(const Shape& shape, Dim last) {
  Shape result;
  for (int i = 0; i + 1 < shape.rank; ++i) result.push(shape.dim(i));
  result.push(last);
  return result;
}

/// A sort of pairs: positions and scratch are gone when it returns.  torch.sort needs no scratch up to 4096 keys.
void sort_pass(Trace& trace, const Tensor& keys, const Tensor& values, const Tensor& order, int bits,
               std::int64_t without_scratch) {
  const Tensor positions = trace.empty(keys.shape, index_type, "positions to sort", Category::temporaries);
  Tensor scratch;
  if (keys.numel() > without_scratch) {
    scratch =
        trace.empty({{sort_scratch(keys.numel(), bits).count}}, DType::int8, "sort scratch", Category::temporaries);
  }
  Kernel kernel = Kernel::pointwise(KernelKind::sort_pass, index_type, keys.numel(), keys.bytes() * 4);
  kernel.launches = static_cast<std::uint16_t>(ceil_div(bits, 8) + 2);
  trace.compute(kernel, {&keys, &positions}, {&values, &order, &scratch}, "sort");
}

/// zeros(shape).index_put_(index, grad, accumulate): duplicates are summed in the order of the sorted indices.
Tensor add_rows(Trace& trace, const Tensor& grad, const Tensor& index, const Shape& shape) {
  Tensor result = trace.empty(shape, grad.dtype, "gradient of gathered rows");
  launch(trace, KernelKind::fill, {}, result, "index backward: zeros");
  const Shape n = index.shape;
  const auto indices = [&](const char* name) { return trace.empty(n, index_type, name, Category::temporaries); };
  Tensor linear;
  {
    const Tensor wrapped = indices("wrapped indices");
    linear = indices("linear indices");
    launch(trace, KernelKind::small, {&index}, linear, "index backward");
  }
  const Tensor sorted = indices("sorted indices");
  const Tensor order = indices("order of indices");
  const auto largest = static_cast<std::uint64_t>(shape.sizes[0]);
  sort_pass(trace, linear, sorted, order, static_cast<int>(std::bit_width(largest)), 0);
  trace.compute(
      Kernel::pointwise(KernelKind::index_put_backward, grad.dtype, grad.numel(), grad.bytes() + result.bytes()),
      {&grad, &sorted, &order}, {&result}, "index backward");
  return result;
}

}  // namespace

Variable output_of(Tensor tensor, NodeRef node, std::uint8_t index) {
  Variable result{std::move(tensor)};
  result.grad_fn = std::move(node);
  result.output_index = index;
  return result;
}

Bytes sort_scratch(std::int64_t keys, int bits) {
  constexpr std::int64_t align = 256, bins = 256, tile = 4608;
  const std::int64_t passes = ceil_div(bits, 8);
  const std::int64_t histogram = round_up(passes * bins * 8, align);
  const std::int64_t look_back = round_up(ceil_div(keys, tile) * bins * 4, align);
  const std::int64_t alternate = round_up(keys * 8, align);
  const std::int64_t counters = round_up(passes * 4, align);
  const std::int64_t buffers = passes > 1 ? 2 * alternate : 0;  // one pass sorts straight into the result
  return Bytes(histogram + look_back + buffers + counters + align - 1);
}

Sorted sort(Trace& trace, const Tensor& keys, const char* name) {
  Sorted result;
  result.values = trace.empty(keys.shape, index_type, name);
  result.order = trace.empty(keys.shape, index_type, "permutation");
  sort_pass(trace, keys, result.values, result.order, 64, 4096);
  return result;
}

namespace {

Tensor scatter_into_zeros(Trace& trace, const Tensor& grad, const Tensor& indices, const Shape& shape) {
  Tensor result = trace.empty(shape, grad.dtype, "gradient of chosen values");
  launch(trace, KernelKind::fill, {}, result, "scatter backward: zeros");
  trace.compute(Kernel::pointwise(KernelKind::small, grad.dtype, grad.numel(), grad.bytes() * 2), {&grad, &indices},
                {&result}, "scatter");
  return result;
}

}  // namespace

TopK top_k(Autograd& g, const Variable& x, Dim k, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor indices = call.saved(0);
    call.out[0] = scatter_into_zeros(call.trace, call.grads[0], indices, full);
  });
  TopK result;
  const Shape chosen = with_last(x.shape, k);
  Tensor values = g.trace.empty(chosen, x.dtype, name);
  result.indices = g.trace.empty(chosen, index_type, "chosen experts");
  g.trace.compute(Kernel::pointwise(KernelKind::topk, x.dtype, x.numel(), x.bytes()), {&x}, {&values, &result.indices},
                  name);
  g.save(node, result.indices);
  result.values = output_of(std::move(values), std::move(node));
  return result;
}

Variable gather_last(Autograd& g, const Variable& x, const Tensor& indices, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = scatter_into_zeros(call.trace, call.grads[0], kept, full);
  });
  g.save(node, indices);
  g.save(node, x);
  Tensor result = g.trace.empty(indices.shape, x.dtype, name);
  launch(g.trace, KernelKind::small, {&x, &indices}, result, name);
  return output_of(std::move(result), std::move(node));
}

namespace {

/// d b = -grad (a / b) / b, then d a = grad / b.
NodeRef divide_node(Autograd& g, const Variable& a, const Variable& b) {
  return g.make_node({&a, &b}, [](BackwardCall& call) {
    Trace& trace = call.trace;
    const Tensor& grad = call.grads[0];
    const Tensor divisor = call.saved(0), dividend = call.saved(1);
    const auto step = [&](const char* name) {
      Tensor result = trace.empty(grad.shape, grad.dtype, name);
      launch(trace, KernelKind::vectorized, {&grad, &dividend}, result, "div backward");
      return result;
    };
    if (call.wants(1)) {
      const Tensor negated = step("negated gradient");
      const Tensor ratio = step("ratio");
      const Tensor again = step("ratio over divisor");
      call.out[1] = step("gradient of a divisor");
    }
    if (call.wants(0)) {
      call.out[0] = trace.empty(grad.shape, grad.dtype, "gradient of a dividend");
      launch(trace, KernelKind::vectorized, {&grad, &divisor}, call.out[0], "div backward");
    }
  });
}

}  // namespace

Variable divide(Autograd& g, const Variable& a, const Variable& b, const char* name) {
  NodeRef node = divide_node(g, a, b);
  g.save(node, b);
  g.save(node, a);
  Tensor result = g.trace.empty(a.shape, a.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&a, &b}, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable divide_in_place(Autograd& g, const Variable& a, const Variable& b) {
  NodeRef node = divide_node(g, a, b);
  g.save(node, b);
  if (node) {
    const Tensor old = g.trace.empty(a.shape, a.dtype, "values before division");
    launch(g.trace, KernelKind::vectorized, {&a}, old, "div_: copy");
    g.save(node, old);
  }
  launch(g.trace, KernelKind::vectorized, {&a, &b}, a, "div_");
  return output_of(a.data(), std::move(node));
}

Variable scale(Autograd& g, const Variable& x, const char* name) {
  NodeRef node = g.make_node({&x}, [](BackwardCall& call) {
    call.out[0] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "scaled gradient");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0]}, call.out[0], "scale backward");
  });
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x}, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable clamp(Autograd& g, const Variable& x, int sides, const char* name) {
  NodeRef node = g.make_node({&x}, [sides](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    const Tensor zero = call.trace.empty({}, call.grads[0].dtype, "zero", Category::temporaries);
    const Tensor inside = call.trace.empty(kept.shape, DType::boolean, "inside the limits", Category::temporaries);
    launch(call.trace, KernelKind::vectorized, {&kept}, inside, "clamp backward");
    Tensor other;
    if (sides > 1) {
      other = call.trace.empty(kept.shape, DType::boolean, "inside the other limit", Category::temporaries);
      launch(call.trace, KernelKind::vectorized, {&kept}, other, "clamp backward");
    }
    call.out[0] = call.trace.empty(kept.shape, call.grads[0].dtype, "gradient of a clamp");
    launch(call.trace, KernelKind::vectorized, {&call.grads[0], &inside}, call.out[0], "clamp backward");
  });
  g.save(node, x.data());
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  launch(g.trace, KernelKind::vectorized, {&x}, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable add_in_place(Autograd& g, const Variable& a, const Variable& b) {
  NodeRef node = g.make_node({&a, &b}, [](BackwardCall& call) {
    if (call.wants(1)) call.out[1] = call.grads[0];
    if (call.wants(0)) call.out[0] = std::move(call.grads[0]);
  });
  launch(g.trace, KernelKind::vectorized, {&a, &b}, a, "add_");
  return output_of(a.data(), std::move(node));
}

namespace {

Variable reduced(Autograd& g, const Variable& x, const Shape& shape, KernelKind kind, const char* name) {
  const Shape full = x.shape;
  NodeRef node =
      g.make_node({&x}, [full](BackwardCall& call) { call.out[0] = std::move(call.grads[0]).view_as(full); });
  Tensor result = g.trace.empty(shape, x.dtype, name);
  Kernel kernel = Kernel::pointwise(kind, x.dtype, x.numel(), x.bytes());
  if (kind == KernelKind::reduce_last) kernel.n = x.shape.last().size;  // rows of this length
  g.trace.compute(kernel, {&x}, {&result}, name);
  return output_of(std::move(result), std::move(node));
}

}  // namespace

Variable sum_last(Autograd& g, const Variable& x, const char* name) {
  return reduced(g, x, with_last(x.shape, {1}), KernelKind::reduce_last, name);
}

Variable sum_rows(Autograd& g, const Variable& x, const char* name) {
  return reduced(g, x, {x.shape.last()}, KernelKind::reduce_rows, name);
}

Variable sum_all(Autograd& g, const Variable& x, const char* name) {
  return reduced(g, x, {}, KernelKind::small, name);
}

Variable index_rows(Autograd& g, const Variable& x, const Tensor& index, Dim rows, const char* name) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = add_rows(call.trace, call.grads[0], kept, full);
  });
  g.save(node, index);
  Shape shape{rows};
  for (int i = 1; i < x.shape.rank; ++i) shape.push(x.shape.dim(i));
  Tensor result = g.trace.empty(shape, x.dtype, name);
  g.trace.compute(
      Kernel::pointwise(KernelKind::gather_rows, x.dtype, result.numel(), result.bytes() * 2 + index.bytes()),
      {&x, &index}, {&result}, name);
  return output_of(std::move(result), std::move(node));
}

Variable sum_routes(Autograd& g, const Variable& x, Dim tokens, Dim routes, const char* name) {
  const Dim h = x.shape.last();
  const Shape by_token{tokens, routes, h};
  const Variable routed = view(g, x, by_token, true);
  return sum_middle(g, routed, name);
}

namespace {

/// A mask is one value a row, broadcast: the element-rate kernels of such operands.
KernelKind masking(DType type) {
  return type == DType::fp32 ? KernelKind::broadcast_row : KernelKind::broadcast_weight;
}

/// Out of place: a copy, filled where the mask says so.
void fill_copy(Trace& trace, const Tensor& x, const Tensor& mask, const Tensor& result, const char* role) {
  launch(trace, KernelKind::flat_copy, {&x}, result, role);
  launch(trace, masking(result.dtype), {&mask}, result, role);
}

NodeRef masked_fill_node(Autograd& g, const Variable& x) {
  return g.make_node({&x}, [](BackwardCall& call) {
    const Tensor mask = call.saved(0);
    call.out[0] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "masked gradient");
    fill_copy(call.trace, call.grads[0], mask, call.out[0], "masked_fill backward");
  });
}

}  // namespace

Variable masked_fill(Autograd& g, const Variable& x, const Tensor& mask, const char* name) {
  NodeRef node = masked_fill_node(g, x);
  g.save(node, mask);
  Tensor result = g.trace.empty(x.shape, x.dtype, name);
  fill_copy(g.trace, x, mask, result, name);
  return output_of(std::move(result), std::move(node));
}

Variable masked_fill_in_place(Autograd& g, const Variable& x, const Tensor& mask) {
  NodeRef node = masked_fill_node(g, x);
  g.save(node, mask);
  launch(g.trace, masking(x.dtype), {&mask}, x, "masked_fill_");
  return output_of(x.data(), std::move(node));
}

std::array<Variable, 2> halves(Autograd& g, const Variable& x) {
  const Shape full = x.shape;
  NodeRef node = g.make_node({&x}, [full](BackwardCall& call) {
    call.out[0] = call.trace.empty(full, call.grads[0].dtype, "joined gradients");
    launch(call.trace, KernelKind::flat_copy, {&call.grads[0], &call.grads[1]}, call.out[0], "chunk backward");
  });
  const Dim last = x.shape.last();
  const Shape half = with_last(x.shape, {last.size / 2, last.symbol});
  return {output_of(x.data().view_as(half), node, 0), output_of(x.data().view_as(half), node, 1)};
}

namespace {}  // namespace

void multiply_groups(Autograd& g, Kernel kernel, const Tensor& left, const Tensor& right, const Tensor& ends,
                     const Tensor& result, const char* role) {
  if (kernel.dtype == DType::fp32) {
    g.trace.record(HostSync{}, Lane::host, {&ends}, {}, "ends of the groups");
    kernel.launches = static_cast<std::uint16_t>(kernel.batch);
    g.trace.compute(kernel, {&left, &right, &ends}, {&result}, role);
    return;
  }
  const Tensor problems =
      g.trace.empty({{60 * kernel.batch}}, DType::int8, "grouped product problems", Category::workspace);
  const Tensor workspace = g.trace.empty({{std::int64_t{512} * g.device.multiprocessors}}, DType::int8,
                                         "grouped product workspace", Category::workspace);
  g.trace.compute(kernel, {&left, &right, &ends}, {&result, &problems, &workspace}, role);
}

Variable grouped_mm(Autograd& g, const Variable& rows, Parameter& weight, const Tensor& offsets,
                    const GroupedOptions& options) {
  const Variable w = g.leaf(weight);
  const std::int64_t groups = weight.shape.dim(0).size;
  const Dim columns = weight.shape.dim(options.input_major ? 2 : 1);
  const Shape in = rows.shape, weight_shape = weight.shape;
  const std::int64_t m = rows.shape.dim(0).size, inner = rows.shape.last().size;
  const char* role = options.role;
  const auto product = [=, of_groups = options.groups](std::int64_t n, std::int64_t k, DType dtype) {
    Kernel kernel = Kernel::grouped_gemm(m, n, k, dtype, groups);
    kernel.tiles = tiles_of_grouped(of_groups, n, k);
    return kernel;
  };
  const GroupedTiles of_gradient = tiles_of_grouped_gradient(options.groups, columns.size, inner);
  // Alphabetical: the gradient of mat2 (the weight) before self's; kept: mat2 for self's, offs, self for mat2's.
  const bool keeps_weight = rows.requires_grad(), keeps_input = w.requires_grad();
  NodeRef node = g.make_node({&rows, &w}, [=, &g](BackwardCall& call) {
    const Tensor& dy = call.grads[0];
    const Tensor kept = keeps_weight ? call.saved(0) : Tensor{}, offs = call.saved(keeps_weight ? 1 : 0);
    const Tensor input = keeps_input ? call.saved(keeps_weight ? 2 : 1) : Tensor{};
    if (call.wants(1)) {
      call.out[1] = call.trace.empty(weight_shape, dy.dtype, "expert weight gradient", Category::gradients);
      Kernel kernel = Kernel::grouped_gemm(m, columns.size, inner, dy.dtype, groups);
      kernel.tiles = of_gradient;
      multiply_groups(g, kernel, dy, input, offs, call.out[1], role);
    }
    if (call.wants(0)) {
      call.out[0] = call.trace.empty(in, dy.dtype, "expert input gradient");
      multiply_groups(g, product(inner, columns.size, dy.dtype), dy, kept, offs, call.out[0], role);
    }
  });
  if (keeps_weight) g.save(node, w);
  g.save(node, offsets);
  if (keeps_input) g.save(node, rows.data());
  Tensor result = g.trace.empty({rows.shape.dim(0), columns}, rows.dtype, options.output_name);
  multiply_groups(g, product(columns.size, inner, rows.dtype), rows, w.data(), offsets, result, role);
  return output_of(std::move(result), std::move(node));
}

}  // namespace plimsoll::ops
