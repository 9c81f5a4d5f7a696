// Which tables does the window show, and what stands in them?  Every figure is taken over from an answer as it is.
#pragma once

#include <string>
#include <vector>

#include "gui/models/table.hpp"
#include "gui/session/answer.hpp"
#include "planner/cli/diff_terms.hpp"
#include "planner/cli/explain_number.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/cli/trace_comparison.hpp"

namespace plimsoll::gui {

/// "fits: 115.60 of 139.80 GiB on the device, margin 24.20 GiB (17.3 %)", or what else is to be said.
std::string verdict_in_words(const Answer& answer);
/// The second line: what breaks and the smallest change that fits, else how long a step takes.
std::string reason_in_words(const Answer& answer);

// Memory.  Ids of rows are names of numbers, as `explain --number` takes them.
TableData ledger_table(const Answer& answer);
TableData figures_table(const Answer& answer);
TableData phases_table(const Answer& answer);
TableData host_table(const Answer& answer);
/// @param category of the ledger; empty: all
TableData live_table(const Answer& answer, const std::string& category);
TableData explained_table(const ExplainedNumber& number);
TableData assumptions_table(const Answer& answer);
TableData parameters_table(const Answer& answer);
TableData checkpoint_table(const Answer& answer);

// Communication.
TableData volume_table(const Answer& answer);
TableData loads_table(const Answer& answer);

// Time.
TableData exposed_table(const SimulatedStep& step);
TableData lanes_table(const SimulatedStep& step);
TableData kernels_table(const SimulatedStep& step);
TableData path_table(const Evaluation& evaluation, const SimulatedStep& step);
std::string step_in_words(const SimulatedStep& step);

// Problems; ids are keys of the plan, "" where the place is none of its.
TableData problems_table(const Diagnostics& diagnostics);
std::string problems_in_words(const Diagnostics& diagnostics);

// Recommendations; ids are indices.
TableData plans_table(const std::vector<Listed>& plans);
TableData exclusions_table(const SearchResult& search);
std::string recommendation_in_words(const Recommendation& recommendation);

// Two plans.
TableData diff_table(const Answer& a, const Answer& b);
TableData settings_table(const Answer& a, const Answer& b);

// A measured step.
TableData comparison_table(const TraceComparison& comparison);
TableData differing_tensors_table(const TraceComparison& comparison);
std::string comparison_in_words(const TraceComparison& comparison);

}  // namespace plimsoll::gui
