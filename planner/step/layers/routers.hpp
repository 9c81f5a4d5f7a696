// Which experts does each token go to, and with what weights?  The routers of Hugging Face's families, as their modules
// compose them.
#pragma once

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// How a family's router scores and weights its experts.
struct RouterKind {
  enum class Scores : std::uint8_t { softmax, sigmoid, softmax_of_chosen };
  Scores scores = Scores::softmax;
  bool fp32_product = false;  ///< input and weight are cast to fp32 before the product
  bool normalise = true;      ///< the chosen weights are divided by their sum
  bool scale = false;         ///< and multiplied by routed_scaling_factor
  bool groups = false;        ///< experts are first limited to the best groups
};
RouterKind router_kind(const Scenario& scenario, const MoeSpec& spec);

/// What a router hands on: logits [N, E] (for the auxiliary loss), weights and experts of each token [N, k].
struct RouterOutput {
  Tensor counts;  ///< rows per expert, int32 [E]; AutoEP only
  Tensor experts;
  Variable weights;
  Variable logits;  ///< the last member dies first, as the first name does in Python
};

/// Runs the router of a mixture of experts on input [N, h].
RouterOutput run_router(LayerContext& c, MoeModule& module, const Variable& input);

/// AutoEP's own router: scores in fp32, the choice apart from the weights, which are normalised and scaled.
RouterOutput run_autoep_router(LayerContext& c, MoeModule& module, const Variable& input,
                               std::vector<Variable>* router_logits);

}  // namespace plimsoll
