// The operations of which layers are made, as PyTorch runs them: what each allocates, keeps and gives back.
// Every function records its launch, and a backward that follows PyTorch's own: derivatives are computed in the alphabetical
// order of the operator's argument names (so `mul(self, other)` and `mm(self, mat2)` start with the second operand).
// Names are literals; they say which tensor the result is.
#pragma once

#include <array>
#include <vector>

#include "planner/step/autograd/autograd.hpp"

namespace plimsoll::ops {

/// x in another type; x itself if it has that type already.
Variable cast(Autograd& g, const Variable& x, DType dtype, const char* name);
/// a + b; the wider type wins.  The gradient passes to both without a copy.
Variable add(Autograd& g, const Variable& a, const Variable& b, const char* name,
             KernelKind kind = KernelKind::vectorized);
/// a * b with broadcasting; the wider type and shape win.
Variable mul(Autograd& g, const Variable& a, const Variable& b, const char* name, KernelKind kind);
Variable square(Autograd& g, const Variable& x, const char* name);
/// Mean over the last dimension, kept as size 1.
Variable mean_last(Autograd& g, const Variable& x, const char* name);
/// x + constant.
Variable add_constant(Autograd& g, const Variable& x, const char* name);
Variable rsqrt(Autograd& g, const Variable& x, const char* name);
Variable silu(Autograd& g, const Variable& x, const char* name);
Variable sigmoid(Autograd& g, const Variable& x, const char* name);
/// x with some elements zeroed and the others scaled; keeps a mask of one byte an element.
Variable dropout(Autograd& g, const Variable& x, const char* name);
Variable negate(Autograd& g, const Variable& x, const char* name);
/// Half of the last dimension, a view; its gradient is a full tensor of zeros with the half copied in.
Variable slice_half(Autograd& g, const Variable& x);
/// Two halves of the last dimension joined; the gradients are views of the incoming one.
Variable concatenate(Autograd& g, const Variable& a, const Variable& b, const char* name);
/// Softmax over the last dimension, in fp32 if `fp32`.
Variable softmax(Autograd& g, const Variable& x, DType dtype, const char* name);
/// A view under another shape; `copies_gradient`: the gradient comes in another memory order and is copied once.
Variable view(Autograd& g, const Variable& x, const Shape& shape, bool copies_gradient = false);

/// y[N, out] = x[N, in] W^T (+ bias).  Under autocast an fp32 input and an fp32 weight are cast to bf16 first, the weight
/// once per region.  `zero3`: DeepSpeed's replacement, which keeps the parameter and not its storage, computes the input's
/// gradient first, and owns it.
struct LinearOptions {
  bool zero3 = false;
  bool flat = false;  ///< x has two dimensions: its gradient is no view of another
  const char* output_name = "linear output";
  const char* role = "linear";
};
Variable linear(Autograd& g, const Variable& x, Parameter& weight, Parameter* bias, const LinearOptions& options);
/// The same on fp32 copies of x and of the weight; under autocast the product is cast to bf16 all the same.
Variable linear_fp32(Autograd& g, const Variable& x, Parameter& weight, const LinearOptions& options);

/// Rows of the table for N indices.  Backward makes the table's full gradient.
Variable embedding(Autograd& g, const Variable& indices, Parameter& table, const char* name);

/// Scaled-dot-product attention, causal: q [b, S, A d], k and v [b, S, K d] -> [b, S, A d].
struct AttentionShape {
  std::int64_t batch = 1, sequence = 1, q_heads = 1, kv_heads = 1, head_dim = 1, value_dim = 1;
};
Variable scaled_dot_product_attention(Autograd& g, const Variable& q, const Variable& k, const Variable& v,
                                      const AttentionShape& shape);
/// Its two kernels alone, for layers that have a graph of their own: the output and what backward needs beside q, k and v; and
/// dq, dk, dv.
struct Attended {
  Tensor seed, offset, out, lse;
};
Attended attention_forward(Trace& trace, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionShape& shape);
std::array<Tensor, 3> attention_backward(Trace& trace, const Tensor& gradient, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& out, const Tensor& lse,
                                         const AttentionShape& shape);

/// The products of a linear layer's backward: d W[out, in] = dy^T x, and d x[N, in] = dy W, over the memory of `into` if given.
Tensor weight_gradient(Autograd& g, const Tensor& dy, const Tensor& x, const Shape& weight, const char* role);
Tensor input_gradient(Autograd& g, const Tensor& dy, const Tensor& weight, const Shape& input, const char* role,
                      Tensor into = {});

/// A backward function for an op without gradient-sized memory: passes its gradient through.
void pass_through(BackwardCall& call);

/// Launches a pointwise kernel that reads and writes whole tensors.
void launch(Trace& trace, KernelKind kind, std::initializer_list<const Tensor*> reads, const Tensor& result,
            const char* role, const Call& call = {});

}  // namespace plimsoll::ops
