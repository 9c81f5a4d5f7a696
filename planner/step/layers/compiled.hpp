// What does a decoder layer compiled by torch.compile keep, and what does it launch?  The compiler's partition of forward and
// backward keeps the results of matrix products and recomputes pointwise chains from them, so that per token of a dense
// layer there stay
//   x and its rstd, norm output, rotated q and k, v, attention output and log-sum-exp, residual and its rstd, second norm
//   output, gate, up, product:  8 h + 8 + 4 q + 4 kv + 4 A + 6 I bytes in 16 bits
// (with head norms the q and k before them, too, and their rstd; the silu, the fp32 copies and the normalised tensors of the
// eager layer are not among them).  Pointwise chains are one kernel each and write where they may over what they read last.
//
// Of a dense layer without head norms the order is the compiler's own, read in its programs (compiled_dense.cpp); so it is
// where DeepSpeed's hooks cut the layer into a program a module (compiled_pieces.cpp).  Of the others (head norms, experts,
// autocast) the kept set agrees with measured forward ends, and the order within backward is assumed to be the eager one.
#pragma once

#include <array>
#include <vector>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// A fused pointwise kernel, by what it reads and writes.
void launch_fused(Trace& trace, const std::vector<const Tensor*>& reads, const std::vector<const Tensor*>& writes,
                  const char* role);

/// A shape without its last dimension.
Shape rows_of(const Shape& shape);

/// The tensors among these that are there.
std::vector<const Tensor*> defined(std::initializer_list<const Tensor*> tensors);

/// Partial sums of the weight gradients of `norms` norms, one of every sixteen rows, in fp32; and their sums.
struct NormSums {
  NormSums(Trace& trace, const Shape& weight, std::int64_t rows, std::int64_t norms);
  /// One norm's gradient.
  Tensor sum(Trace& trace, DType dtype) const;
  Shape weight;
  Tensor partial;
};

/// The residual stream after a fused norm, and the norm's output once for each product that reads it.
struct NormedStream {
  Variable stream;
  std::array<Variable, 3> normed;
};

/// One kernel: stream = x (+ branch, over whose memory it is written), then its norm.  Keeps the stream and the rstd of each
/// row; backward adds the norm's gradient to the stream's in one kernel, over the first of the gradients that it reads.
/// @param branch null: the stream is x itself
NormedStream fused_norm(LayerContext& c, NormModule& module, const Variable& x, const Variable* branch);

/// silu(gate) up in one kernel; keeps both, and writes the gate's gradient over the incoming one.
Variable fused_swiglu(LayerContext& c, const Variable& gate, const Variable& up, const char* name);

/// stream + branch, over the branch's memory.
Variable fused_residual(LayerContext& c, const Variable& stream, const Variable& branch);

/// Whether the layer is one of those whose program is known (dense, no head norms, no biases, not under autocast).
bool is_one_program(const LayerContext& c, const DecoderLayerModule& module);
Variable compiled_dense_layer(LayerContext& c, DecoderLayerModule& module, const Variable& x,
                              const RotaryTables& tables);

/// Whether an engine's hooks cut compiled layers into a program a module, and such a layer and its modules.
bool compiles_modules(const Scenario& scenario);
Variable layer_of_pieces(LayerContext& c, DecoderLayerModule& module, const Variable& x, const RotaryTables& tables,
                         std::vector<Variable>* router_logits);
Variable norm_piece(LayerContext& c, NormModule& module, const Variable& x);
Variable linear_piece(LayerContext& c, LinearModule& module, const Variable& x, const char* output_name);

/// A mixture of grouped experts as two programs, its router and its experts.
Variable mixture_pieces(LayerContext& c, MoeModule& module, const Variable& input,
                        std::vector<Variable>* router_logits);

/// The compiled decoder layer, without the hooks around it.
Variable compiled_decoder_layer(LayerContext& c, DecoderLayerModule& module, const Variable& x,
                                const RotaryTables& tables, std::vector<Variable>* router_logits);

/// The mixture of experts inside a compiled layer: grouped products; kept are the rows, the gate and up products, their
/// activation, the experts' output, the router's logits in the model's type and the index tensors.
/// @param x the norm's output, once for the router and once for the experts (and for shared experts)
Variable compiled_mixture(LayerContext& c, MoeModule& module, const std::array<Variable, 3>& x,
                          std::vector<Variable>* router_logits);

}  // namespace plimsoll
