// How does the reference runtime run a decoder layer?  With few, fused kernels: residual add and RMSNorm in one, q, k and v in
// one product, rotary in place, gate and up in one product, experts grouped, the loss in chunks without fp32 logits.
// Backward is derived from the same statements; weight gradients are written where the reduction reads them.
#pragma once

#include <functional>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

struct FusedContext {
  LayerContext& layers;
  /// Where the gradient of a parameter is to be written (added to): a view of its group's gradient buffer.
  std::function<Tensor(Parameter&)> gradient_of;
  std::int64_t loss_chunk = 0;  ///< tokens whose logits exist at once
};

/// The residual stream after the layer.
Variable fused_decoder_layer(FusedContext& c, DecoderLayerModule& module, const Variable& x);
Variable fused_embedding(FusedContext& c, TorchModel& model, const Variable& ids);
/// Final norm, head and cross-entropy in chunks; the logits' gradient is formed with the loss, so backward keeps only d hidden.
Variable fused_loss(FusedContext& c, TorchModel& model, const Variable& x);

}  // namespace plimsoll
