// Products and attention of forward and backward (planner/step/model_flops.hpp).
#include "planner/step/model_flops.hpp"

#include <algorithm>

#include "planner/spec/held_parameters.hpp"
#include "planner/spec/model_parameters.hpp"
#include "planner/spec/trained.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

/// Where a parameter stands on the way through the model: the embedding, layer 0, 1, ..., what follows the layers.
int place_of(const ModelSpec& model, const ParameterDecl& parameter) {
  if (parameter.role == Role::embedding) return -1;
  return parameter.layer >= 0 ? parameter.layer : static_cast<int>(model.layers.size());
}

/// Weights that a token passes.  Native experts stand for the dense MLPs, top_k of them.
std::int64_t passed_weights(const Scenario& scenario, const ParameterDecl& parameter) {
  if (parameter.role == Role::embedding && !scenario.model.tied_embeddings) return 0;
  const std::int64_t weights = active_numel(scenario.model, parameter);
  if (!is_native(scenario.plan) || !is_mlp(parameter.role)) return weights;
  const auto experts = moe_of_layer(scenario, static_cast<std::size_t>(parameter.layer));
  return experts ? weights * experts->top_k : weights;
}

std::int64_t adapter_weights(const Plan& plan, const ParameterDecl& parameter) {
  if (!is_adapted(plan, parameter)) return 0;
  std::int64_t sides = 0;
  for (const std::int64_t side : parameter.shape) sides += side;
  return plan.lora->rank * sides;
}

}  // namespace

double model_flops(const Scenario& scenario) {
  const auto& [model, cluster, plan] = scenario;
  const auto above = static_cast<int>(model.layers.size());
  int lowest = above;
  for (const ParameterDecl& parameter : model.parameters)
    if (is_trained(plan, parameter) || is_adapted(plan, parameter))
      lowest = std::min(lowest, place_of(model, parameter));
  std::int64_t forward = 0, to_inputs = 0, to_weights = 0;
  for (const ParameterDecl& parameter : model.parameters) {
    const std::int64_t weights = passed_weights(scenario, parameter), adapter = adapter_weights(plan, parameter);
    // A tied embedding is multiplied with as the head.
    const int place = parameter.role == Role::embedding ? above : place_of(model, parameter);
    forward += weights + adapter;
    if (place >= lowest && lowest < above) to_inputs += weights + adapter;
    to_weights += (is_trained(plan, parameter) ? weights : 0) + adapter;
  }
  double per_token = 2 * static_cast<double>(forward + to_inputs + to_weights);
  for (int i = 0; i < above; ++i) {
    const AttentionSpec& spec = model.layers[static_cast<std::size_t>(i)].attention;
    const std::int64_t values = spec.value_head_dim > 0 ? spec.value_head_dim : spec.head_dim;
    const double attention =
        static_cast<double>(spec.q_heads * (spec.head_dim + values)) * static_cast<double>(plan.sequence);
    per_token += attention * (i >= lowest ? 3 : 1);
  }
  return per_token * static_cast<double>(plan.tokens() * plan.gradient_accumulation);
}

}  // namespace plimsoll
