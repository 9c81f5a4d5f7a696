// Which formula stands behind a number?  A name as it is in the JSON of `ledger` or `volumes`
// ("gpu.categories_at_peak.gradients") becomes the terms that sum to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/cli/evaluate.hpp"

namespace plimsoll {

/// Equal tensors, or any other part of a number.
struct Term {
  std::string name, formula, category;
  std::int64_t value = 0;  ///< of all of them
  int count = 1;
  int first_layer = -1, last_layer = -1;  ///< -1: outside the layers
};

struct ExplainedNumber {
  std::string name;
  std::int64_t value = 0;
  std::string unit;         ///< "B", "parameters", or what a rank is of
  std::string formula;      ///< in words
  std::vector<Term> terms;  ///< largest first; they sum to the value
};

/// Errors: cli.number, with the nearest name.
Result<ExplainedNumber> explain_number(const Evaluation& evaluation, std::string_view name);

/// What is alive at the peak of a steady step.
/// @param least tensors below it (each) are left out
ExplainedNumber explain_peak(const Evaluation& evaluation, Bytes least);

/// Every name that explain_number() knows for this scenario.
std::vector<std::string> number_names(const Evaluation& evaluation);

}  // namespace plimsoll
