// Optimizer groups and their partitions (planner/step/engines/deepspeed_groups.hpp).
#include "planner/step/engines/deepspeed_groups.hpp"

#include <algorithm>

#include "planner/step/groups.hpp"

namespace plimsoll {

namespace {

OptimizerGroup empty_group(const Plan& plan, int rank, bool expert) {
  OptimizerGroup group;
  group.expert = expert;
  group.ranks = expert ? plan.expert_data_parallel() : plan.world_size;
  group.rank = expert ? rank / plan.expert_parallel : rank;
  group.group = expert ? group_id::expert_data_parallel : group_id::data_parallel;
  return group;
}

// `parameter_alignment` starts every parameter at a multiple of 16 bytes.
void append(OptimizerGroup& group, Parameter& parameter, bool aligned) {
  const std::int64_t step = aligned ? 16 / size_of(parameter.dtype) : 1;
  group.parameters.push_back(&parameter);
  group.offsets.push_back(group.numel);
  group.numel += round_up(parameter.numel(), step);
}

// Every n-th parameter to the same partition: 0, n, 2n, ..., 1, n + 1, ...
void deal_round_robin(OptimizerGroup& group, bool aligned) {
  std::vector<Parameter*> dealt;
  const auto n = static_cast<std::size_t>(group.ranks);
  for (std::size_t first = 0; first < n; ++first) {
    for (std::size_t i = first; i < group.parameters.size(); i += n) dealt.push_back(group.parameters[i]);
  }
  group.parameters.clear();
  group.offsets.clear();
  group.numel = 0;
  for (Parameter* parameter : dealt) append(group, *parameter, aligned);
}

}  // namespace

std::int64_t OptimizerGroup::slice(std::size_t i, std::int64_t owner) const {
  const std::int64_t begin = std::max(offsets[i], owner * partition());
  const std::int64_t end = std::min(offsets[i] + parameters[i]->numel(), (owner + 1) * partition());
  return std::max<std::int64_t>(0, end - begin);
}

bool on_expert_mesh(const Plan& plan, const Parameter& parameter) {
  const bool known =
      plan.moe.implementation == MoeImplementation::native || plan.moe.implementation == MoeImplementation::autoep;
  return known && parameter.group == 1;
}

std::vector<OptimizerGroup> optimizer_groups(const Plan& plan, int rank, std::deque<Parameter>& parameters) {
  const bool flat = plan.zero.stage == 1 || plan.zero.stage == 2;
  const bool aligned = flat && plan.zero.parameter_alignment;
  std::vector<OptimizerGroup> groups{empty_group(plan, rank, false)};
  std::int64_t elements = 0;  // of the expert group being filled
  for (Parameter& parameter : parameters) {
    if (!parameter.trainable) continue;
    if (!on_expert_mesh(plan, parameter)) {
      append(groups.front(), parameter, aligned);
      continue;
    }
    if (groups.size() == 1 || elements + parameter.numel() > expert_group_limit) {
      groups.push_back(empty_group(plan, rank, true));
      elements = 0;
    }
    append(groups.back(), parameter, aligned);
    elements += parameter.numel();
  }
  if (groups.front().parameters.empty()) groups.erase(groups.begin());
  if (flat && plan.zero.round_robin_gradients) {
    for (OptimizerGroup& group : groups) deal_round_robin(group, aligned);
  }
  return groups;
}

}  // namespace plimsoll
