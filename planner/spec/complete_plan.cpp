// Defaults taken again around keys that were set (planner/spec/complete_plan.hpp).
#include "planner/spec/complete_plan.hpp"

#include <utility>

#include "planner/spec/plan_draft.hpp"

namespace plimsoll {

Plan complete_plan(Plan plan, const std::vector<std::string>& set, const ModelSpec& model) {
  PlanContext context;
  context.model = &model;
  context.cluster_world = plan.world_size;
  PlanDraft draft(context);
  draft.plan = std::move(plan);
  draft.plan.defaults_taken.clear();
  for (const std::string& pointer : set) draft.plan.places.try_emplace(pointer);
  take_defaults(draft);
  return std::move(draft.plan);
}

}  // namespace plimsoll
