// How much does FSDP2 hold beside the parameters, since it cuts each along its first dimension into shards of equal size?
#pragma once

#include <cstdint>
#include <vector>

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// Elements of all parameters with their padding, as gathered: the sum of shards x ceil(rows / shards) x numel / rows.
std::int64_t padded_elements(const ModelSpec& model, std::int64_t shards);

/// Numbers of replicas above the plan's with which its ranks pad clearly less, rising: each less than the one before.
std::vector<int> replicas_that_pad_less(const ModelSpec& model, const Plan& plan);

}  // namespace plimsoll
