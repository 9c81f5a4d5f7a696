// What does the search learn of a plan?  Its step time on the clock of a calibration and its ledger, as `simulate` and `ledger`
// give them; from the cheapest figure to the dearest, and no further than it takes to discard the plan.
#pragma once

#include "planner/search/search.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll {

/// The evaluator of a search.
/// @param calibration must outlive it
Evaluator plan_evaluator(const Calibration& calibration);

/// What the prices of a calibration allow a search to assume, and outlines from short models.
/// @param calibration must outlive them
SearchOptions search_options(const Calibration& calibration);

}  // namespace plimsoll
