// Which optimizer does DeepSpeed build from a ds_config.json?  Internal to planner/spec/read_ds_config.cpp.
#pragma once

#include "planner/spec/plan_draft.hpp"

namespace plimsoll {

/// Reads the section optimizer, for the offload that the draft ends with.
void read_ds_optimizer(const Node& root, PlanDraft& draft);

}  // namespace plimsoll
