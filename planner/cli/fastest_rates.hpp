// What does no kernel and no collective that a calibration prices exceed?  The rates that its rules
// (planner/spec/price_rules.hpp) approach for large sizes: what the bounds of a search may assume.
#pragma once

#include "planner/search/bounds.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll {

PeakRates fastest_rates(const Calibration& calibration);

}  // namespace plimsoll
