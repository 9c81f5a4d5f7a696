// The pieces that the fused layers share: products, the activation, and variables with a graph.
#pragma once

#include "planner/step/autograd/ops.hpp"
#include "planner/step/layers/fused.hpp"

namespace plimsoll {

inline Variable as_variable(Tensor tensor, NodeRef node) {
  Variable result{std::move(tensor)};
  result.grad_fn = std::move(node);
  return result;
}

/// y = x W^T for one or several weights side by side (q, k, v; gate, up): one product, one gradient of all.
Variable fused_product(FusedContext& c, const Variable& x, const std::vector<Parameter*>& weights, Dim columns,
                       const char* name);

/// Which rows of a routed buffer hold something.
struct CountedRows {
  Tensor counts;              ///< [sources, El]; none: all rows
  std::int64_t expected = 0;  ///< rows that the plan's routing brings; the buffer may have room for more
};

/// silu(gate) * up of the joined product, times a weight per row where there is one; keeps its inputs alone.
Variable fused_swiglu(FusedContext& c, const Variable& joined, const Variable& row_weights, Dim width,
                      const CountedRows& rows = {});

Variable fused_mlp(FusedContext& c, MlpModule& module, const Variable& x);
Variable fused_experts(FusedContext& c, MoeModule& module, const Variable& x);

}  // namespace plimsoll
