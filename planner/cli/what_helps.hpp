// Where no plan fits: would more GPUs help, or a longer search, or neither?
#pragma once

#include <chrono>
#include <string>

#include "planner/cli/evaluate.hpp"

namespace plimsoll {

/// A sentence.  What every GPU holds for itself (a sequence's activations) and what every process holds of its host's memory is
/// no less on more of them.
/// @param nearest the plan that lacks least
/// @param proven no plan fits; else the time was up
/// @param deadline of looking whether any plan runs on many more GPUs
std::string what_would_help(const Inputs& inputs, const Evaluation& nearest, bool proven,
                            std::chrono::steady_clock::time_point deadline);

}  // namespace plimsoll
