// How fast do collectives proceed that share links?  Max-min fair: all bandwidths rise together until a link is full or a
// flow has all that it asks for; flows through a full link keep what they have, the others rise on.  Small flows get what
// they ask, what they leave goes to the large ones (Bertsekas and Gallager, Data Networks, 6.5.2).
#pragma once

#include <array>
#include <span>

#include "planner/spec/topology.hpp"

namespace plimsoll {

/// What a flow takes of a GPU's bandwidth to each tier when it is alone (0 to 1).
using Demand = std::array<double, tier_count>;

/// Rates (0 to 1 of its speed alone) for flows of one GPU at once.
/// @param rates receives one a flow; as long as demands
void fair_rates(std::span<const Demand* const> demands, std::span<double> rates);

}  // namespace plimsoll
