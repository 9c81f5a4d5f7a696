// How does the reference runtime run a decoder layer?  With few, fused kernels: residual add and RMSNorm in one, q, k and v in
// one product, rotary in place, gate and up in one product, experts grouped, the loss in chunks without fp32 logits.
// Backward is derived from the same statements; weight gradients are written where the reduction reads them.
// Every launch states what it computes (planner/step/call.hpp), so that the runtime executes this very program.
#pragma once

#include <functional>
#include <vector>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// Where a weight's gradient goes: a view of its group's gradient buffer.
struct GradientPlace {
  Tensor tensor;
  bool add = false;  ///< to what an earlier use in this buffer's life left there
};

struct FusedContext {
  LayerContext& layers;
  /// Place for the gradient of parameters that lie side by side in their group, as one.
  std::function<GradientPlace(const std::vector<Parameter*>&)> gradient_of;
  std::int64_t loss_chunk = 0;        ///< tokens whose logits exist at once
  double loss_scale = 1;              ///< of one token's loss in the step's loss: 1 / all its tokens
  Tensor labels;                      ///< [N], of the current micro-batch
  Tensor report;                      ///< the step's report
  std::int64_t rotary_constants = 0;  ///< first of the rotary frequencies in RankProgram::constants
};

/// The residual stream after the layer.
Variable fused_decoder_layer(FusedContext& c, DecoderLayerModule& module, const Variable& x);
Variable fused_embedding(FusedContext& c, TorchModel& model, const Variable& ids);
/// Final norm, head and cross-entropy in chunks; the logits' gradient is formed with the loss, so backward keeps only d hidden.
Variable fused_loss(FusedContext& c, TorchModel& model, const Variable& x);

/// Angles per position of the pairs of a head's elements: theta^(-2 i / d), stretched as Llama 3.1 does if the model says so.
std::vector<double> rotary_frequency_table(const ModelSpec& model, std::int64_t head_dim);

}  // namespace plimsoll
