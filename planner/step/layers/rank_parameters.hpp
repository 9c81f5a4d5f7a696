// Which parameters does one rank compute with?  Those of the model, in construction order, with these changes:
//   experts in a loop      transformers 4 holds each expert's gate, up and down as parameters of their own
//   native DeepSpeed MoE   each dense MLP is replaced by a gate and this rank's E / ep copies of that MLP; with a residual
//                          also by a dense copy and a mixing weight
//   AutoEP                 the experts become this rank's w1 [El, I, h], w2 [El, h, I], w3 [El, I, h], after the router
//   LoRA                   A and B follow the layer that they stand beside; in fp32 under plain PyTorch, as PEFT casts them,
//                          else in the type in which the engine casts every parameter
// Names and order are those of named_parameters().  Source: deepspeed 0.19.8, moe/layer.py, module_inject/auto_ep_layer.py.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "planner/step/layers/module.hpp"

namespace plimsoll {

/// The weights of one gated MLP; biases may be null.
struct MlpParameters {
  Parameter* gate = nullptr;
  Parameter* gate_bias = nullptr;
  Parameter* up = nullptr;
  Parameter* up_bias = nullptr;
  Parameter* down = nullptr;
  Parameter* down_bias = nullptr;
};

/// What replaces the dense MLP of a layer under native DeepSpeed MoE.
struct NativeMoeParameters {
  Parameter* gate = nullptr;           ///< wg [E, h]
  std::vector<MlpParameters> experts;  ///< this rank's
  MlpParameters residual;              ///< the dense copy; null without a residual
  Parameter* coefficient = nullptr;    ///< [2, h]
  Parameter* coefficient_bias = nullptr;
};

struct AutoEpParameters {
  Parameter* w1 = nullptr;
  Parameter* w2 = nullptr;
  Parameter* w3 = nullptr;
};

/// The trained matrices beside a frozen linear layer: A [r, in], B [out, r].
struct AdapterParameters {
  Parameter* a = nullptr;
  Parameter* b = nullptr;
};

/// The parameters of a rank by what they are.
struct RankParameters {
  std::map<const Parameter*, AdapterParameters> adapters;  ///< by the weight beside which they stand
  std::map<std::pair<int, Role>, Parameter*> by_role;      ///< those of the model, by layer (-1: outside the layers)
  std::map<int, NativeMoeParameters> native;               ///< by layer
  std::map<int, AutoEpParameters> autoep;                  ///< by layer
  std::map<int, std::vector<MlpParameters>> looped;        ///< by layer: every expert on its own

  Parameter* find(Role role, int layer) const {
    const auto found = by_role.find({layer, role});
    return found == by_role.end() ? nullptr : found->second;
  }
};

/// Fills model.parameters_in_order (and model.replaced, the declarations of what the file does not name).
RankParameters list_rank_parameters(const Scenario& scenario, TorchModel& model);

}  // namespace plimsoll
