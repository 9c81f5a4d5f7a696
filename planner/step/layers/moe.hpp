// The implementations of a mixture of experts; planner/step/layers/layers.hpp has the one that dispatches on the plan.
#pragma once

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// Whether the fused weights are [E, h, 2I] and [E, I, h]; where 2I = h only the second tells them from [E, 2I, h] and
/// [E, h, I].
inline bool is_input_major(const MoeModule& module, std::int64_t hidden) {
  return module.gate_up->shape.dim(1).size == hidden &&
         module.down->shape.dim(1).size == module.spec->expert_intermediate;
}

/// Hugging Face's block: router, experts (as one grouped product, or expert by expert in a loop), shared experts.
Variable grouped_mixture(LayerContext& c, MoeModule& module, const Variable& input,
                         std::vector<Variable>* router_logits);
/// transformers 4's loop over the experts that were hit; x [N, h], weights and experts of each token [N, k].
Variable looped_experts(LayerContext& c, MoeModule& module, const Variable& x, const Tensor& experts,
                        const Variable& weights);
/// Llama-4's block, in which every expert computes every token.
Variable every_expert_mixture(LayerContext& c, MoeModule& module, const Variable& input);
/// Native DeepSpeed MoE: capacity buffers, all-to-alls of equal parts, this rank's experts one after the other.
Variable native_mixture(LayerContext& c, MoeModule& module, const Variable& input);
/// DeepSpeed's AutoEP layer: dropless, all-to-alls of uneven parts, one grouped product over the local experts.
Variable autoep_mixture(LayerContext& c, MoeModule& module, const Variable& input,
                        std::vector<Variable>* router_logits);

}  // namespace plimsoll
