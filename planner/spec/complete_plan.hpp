// What does a plan become when some of its keys are set anew?  Defaults depend on other keys (ZeRO stage 3 overlaps and
// builds with zero.Init, an offloaded optimizer runs on the CPU), so they are taken again, as if the new keys had been
// stated together with what the user states.
#pragma once

#include <string>
#include <vector>

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// @param plan  with the fields of the keys in `set` already changed
/// @param set   their pointers ("/zero/stage"); they keep their values, as do the keys that the plan states
/// @param model decides what follows from it (leaf modules)
Plan complete_plan(Plan plan, const std::vector<std::string>& set, const ModelSpec& model);

}  // namespace plimsoll
