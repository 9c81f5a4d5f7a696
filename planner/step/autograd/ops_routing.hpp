// The operations with which experts are routed, as PyTorch runs them: sorting, gathering rows, choosing the top k, masks,
// grouped products.  Same rules as planner/step/autograd/ops.hpp.
#pragma once

#include <array>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll::ops {

/// A result of `node`.
Variable output_of(Tensor tensor, NodeRef node, std::uint8_t index = 0);

/// Temporary storage of a radix sort of pairs of 8-byte keys and values over `bits` bits of the key (CUB's one-sweep sort):
/// alternate keys and values, a histogram of 256 bins a pass, look-back of 256 counters for each tile of 4608 keys.
Bytes sort_scratch(std::int64_t keys, int bits);

struct Sorted {
  Tensor values, order;
};
/// torch.sort of int64 keys.
Sorted sort(Trace& trace, const Tensor& keys, const char* name);

struct TopK {
  Variable values;
  Tensor indices;
};
/// The k largest of the last dimension.  Backward scatters into zeros of the input's shape.
TopK top_k(Autograd& g, const Variable& x, Dim k, const char* name);
/// x[rows, indices]: one value per index and row.  Keeps the indices and x; backward scatters into zeros.
Variable gather_last(Autograd& g, const Variable& x, const Tensor& indices, const char* name);
/// Sum over the last dimension, kept as size 1; the gradient is expanded without a copy.
Variable sum_last(Autograd& g, const Variable& x, const char* name);
/// a / b with b of one value per row; keeps both.
Variable divide(Autograd& g, const Variable& a, const Variable& b, const char* name);
/// a /= b: a's old values are copied for backward, the result takes their place.
Variable divide_in_place(Autograd& g, const Variable& a, const Variable& b);
/// x times a number.
Variable scale(Autograd& g, const Variable& x, const char* name);

/// x limited on one side or on both: keeps x; backward masks the gradient.
Variable clamp(Autograd& g, const Variable& x, int sides, const char* name);
/// a += b: the result takes a's place.
Variable add_in_place(Autograd& g, const Variable& a, const Variable& b);
/// Sum over the first dimension of [N, E]; the gradient is expanded without a copy.
Variable sum_rows(Autograd& g, const Variable& x, const char* name);
/// Sum of everything, a number.
Variable sum_all(Autograd& g, const Variable& x, const char* name);

/// Two tensors as the rows of a new one; the gradients are views.
Variable stack(Autograd& g, const Variable& a, const Variable& b, const Shape& shape, const char* name);
/// x in another memory order; the gradient passes through.
Variable reordered(Autograd& g, const Variable& x, const Shape& shape, const char* name);
/// x[index] over the first dimension, by index_select: backward adds into zeros of x's shape without sorting.
Variable select_rows(Autograd& g, const Variable& x, const Tensor& index, Dim rows, const char* name);
/// x with one more row, of zeros; the gradient is a view.
Variable with_zero_row(Autograd& g, const Variable& x, const char* name);
/// Sum over the first dimension of [k, N, h]; the gradient is expanded without a copy.
Variable sum_first(Autograd& g, const Variable& x, const char* name);
/// Sum over the middle dimension of [N, k, h]; the gradient is expanded without a copy.
Variable sum_middle(Autograd& g, const Variable& x, const char* name);
/// Parts of x of equal shape, as views; backward joins their gradients.
std::vector<Variable> split(Autograd& g, const Variable& x, std::int64_t parts, const Shape& shape);
/// Tensors joined into one; the gradients are views.
Variable join(Autograd& g, const std::vector<Variable>& parts, const Shape& shape, const char* name);
/// An all-to-all over `group`; the gradient goes the other way.
Variable all_to_all(Autograd& g, const Variable& x, const Shape& received, GroupId group, const char* name);

/// x[index] over the first dimension.  Backward sorts the indices and adds into zeros of x's shape.
Variable index_rows(Autograd& g, const Variable& x, const Tensor& index, Dim rows, const char* name);
/// Sum over the middle dimension of [N, k, h]; backward copies the expanded gradient once.
Variable sum_routes(Autograd& g, const Variable& x, Dim tokens, Dim routes, const char* name);

/// x.masked_fill(mask, value): a copy each way; keeps the mask.
Variable masked_fill(Autograd& g, const Variable& x, const Tensor& mask, const char* name);
/// x.masked_fill_(mask, value): in place, with a copy in backward.
Variable masked_fill_in_place(Autograd& g, const Variable& x, const Tensor& mask);

/// The two halves of the last dimension as views; backward joins their gradients.
std::array<Variable, 2> halves(Autograd& g, const Variable& x);

/// Rows sorted by expert times each expert's weight: [R, in] x [E, out, in] -> [R, out] in one launch; `input_major`
/// weights are [E, in, out].  fp32 operands run as one product per expert.  Keeps the weight, the offsets and the rows.
struct GroupedOptions {
  bool input_major = false;
  const char* output_name = "expert output";
  const char* role = "mlp.experts";
  GroupRows groups = {};
};
Variable grouped_mm(Autograd& g, const Variable& rows, Parameter& weight, const Tensor& offsets,
                    const GroupedOptions& options);

/// Rows by expert times each expert's weight, or the weights' gradient.  In 16 bits one launch, to which CUTLASS adds the
/// problems' pointers and strides, 60 bytes a group, and 512 bytes per multiprocessor.  In fp32 PyTorch has no such kernel: the
/// host reads where the groups end, for which it waits, and launches a product for each.
void multiply_groups(Autograd& g, Kernel kernel, const Tensor& left, const Tensor& right, const Tensor& ends,
                     const Tensor& result, const char* role);

}  // namespace plimsoll::ops
