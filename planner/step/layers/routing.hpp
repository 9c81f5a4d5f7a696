// How many rows does each rank's set of local experts receive, layer by layer?  From the plan's routing.
#pragma once

#include <vector>

#include "planner/step/layers/layers.hpp"

namespace plimsoll {

/// Rows of every MoE layer for `rank`.  Capacities are those of native DeepSpeed MoE.
std::vector<RoutedRows> route(const Scenario& scenario, int rank);

}  // namespace plimsoll
