// What does --json print?  One object a command, with the fields that the command line's contract fixes; further fields may
// stand beside them.  Every function gives the whole text, ended by a newline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/account/volume.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/explain_number.hpp"
#include "planner/cli/need_search.hpp"
#include "planner/cli/remedy.hpp"

namespace plimsoll {

std::string diagnostics_json(const Diagnostics& diagnostics);  ///< {"diagnostics": [...]}
std::string check_json(const Inputs& inputs);
std::string ledger_json(const Evaluation& evaluation, const SmallestChange& change);
std::string volumes_json(const Evaluation& evaluation, const CommVolume& volume);

/// {"key", "value", "plan", "margin_bytes", "verdict"}
/// @param value 0: not even the smallest fits; the evaluation is then that of the smallest
std::string max_json(const std::string& key, std::int64_t value, const Evaluation& evaluation);

std::string need_json(const std::vector<NeedAnswer>& answers);

/// A row of `sweep`.
struct SweepRow {
  std::vector<std::string> values;  ///< by key
  std::optional<Ledger> ledger;     ///< nothing: refused
  std::string refusal;              ///< why
  Bytes volume;                     ///< sent by one GPU in a step
  Seconds step_time;                ///< simulated
  double tokens_per_s = 0;          ///< of one GPU
};
std::string sweep_json(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows);

/// A term of two plans.
struct DiffTerm {
  std::string name;
  double a = 0, b = 0;
};
std::string diff_json(const Evaluation& a, const Evaluation& b, const std::vector<DiffTerm>& memory,
                      const std::vector<DiffTerm>& volumes, const std::vector<DiffTerm>& time);

std::string listing_json(const Evaluation& evaluation, const std::string& listing);  ///< {"digest", "lines": [...]}
/// {"digest", "name", "value", "unit", "formula", "terms": [...]}
std::string explain_json(const Evaluation& evaluation, const ExplainedNumber& number);

}  // namespace plimsoll
