// Padding of shards along the first dimension (planner/spec/padded_shards.hpp).
#include "planner/spec/padded_shards.hpp"

#include "planner/base/quantity.hpp"

namespace plimsoll {

std::int64_t padded_elements(const ModelSpec& model, std::int64_t shards) {
  std::int64_t sum = 0;
  for (const ParameterDecl& parameter : model.parameters) {
    const std::int64_t rows = parameter.shape.empty() ? 1 : parameter.shape.front();
    if (rows > 0) sum += shards * ceil_div(rows, shards) * (parameter.numel / rows);
  }
  return sum;
}

std::vector<int> replicas_that_pad_less(const ModelSpec& model, const Plan& plan) {
  constexpr double clearly = 0.95;
  std::vector<int> replicas;
  std::int64_t least = padded_elements(model, plan.world_size / plan.fsdp.replicate);
  for (int count = plan.fsdp.replicate + 1; count < plan.world_size; ++count) {
    if (plan.world_size % count != 0) continue;
    const std::int64_t padded = padded_elements(model, plan.world_size / count);
    if (static_cast<double>(padded) >= clearly * static_cast<double>(least)) continue;
    least = padded;
    replicas.push_back(count);
  }
  return replicas;
}

}  // namespace plimsoll
