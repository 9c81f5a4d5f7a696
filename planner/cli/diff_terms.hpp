// In which terms do two plans differ?  Memory at the peak, bytes on the wire, and time, term by term, for two evaluations.
#pragma once

#include <string>
#include <vector>

#include "planner/cli/json_output.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll {

using DiffTerms = std::vector<DiffTerm>;

/// Bytes: the categories at the peak, then the peaks, the margin and the host.
DiffTerms memory_terms(const Ledger& a, const Ledger& b);
/// Bytes sent by one GPU in a step, by collective, group and tier.
DiffTerms volume_terms(const Evaluation& a, const Evaluation& b);
/// The simulated steps and what they wait for; each term's name ends in its unit.
DiffTerms time_terms(const Evaluation& a, const Evaluation& b, const Calibration& of_a, const Calibration& of_b);

/// A term's name without the unit that it ends in.
std::string name_in_words(const DiffTerm& term);
/// One of its figures, if not bytes: a time in the unit that a person would take, "36,650", "0.3127".
std::string figure_in_words(const DiffTerm& term, double value);

/// B against A: "+12.3 %", "12 x" from ten times on; "" where A is nothing to compare with: below `least`, or one of them a
/// margin that is none.
std::string change_in_words(const DiffTerm& term, double least);

}  // namespace plimsoll
