// How is the explanation of a number made?  A table from each number's name to what fills in its value, formula and terms, and
// the groups of numbers that put themselves there; those of the step program: explain_number.cpp.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "planner/cli/explain_number.hpp"

namespace plimsoll {

using NumberMaker = std::function<void(ExplainedNumber&)>;
/// By name; they refer to the evaluation, which must outlive them.
using NumberMakers = std::map<std::string, NumberMaker>;

Term term_of(std::string name, Bytes bytes, std::string formula = {});
void sort_largest_first(std::vector<Term>& terms);

/// What follows from the model and the plan alone: counts of parameters, files of a checkpoint.
void add_parameters(NumberMakers& makers, const Evaluation& evaluation);
void add_checkpoint(NumberMakers& makers, const Evaluation& evaluation);
/// Whose bytes these are.
void add_rank(NumberMakers& makers, const Evaluation& evaluation);

}  // namespace plimsoll
