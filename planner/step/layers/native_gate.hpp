// How does native DeepSpeed MoE choose experts and slots?  The gate runs in fp32: top-1 with random token selection, top-2
// with a sampled second expert, or the general top-k, each with its own masks of N x E.
#pragma once

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// What the gate hands on, by route: expert and slot of each token [k, N], and its weight.
struct GateOutput {
  Tensor experts;
  Tensor slots;
  Variable weights;
};

/// Runs the gate on input [N, h].  The balance loss and the counts of experts stay with the module until its next call.
GateOutput run_native_gate(LayerContext& c, MoeModule& module, const Variable& input);

}  // namespace plimsoll
