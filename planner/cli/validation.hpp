// How far are the predictions from what was measured?  Every row of the tables is evaluated for its rank 0, and each figure
// that both sides have is compared.
//
//   error = (predicted - measured) / measured
//
// Of bytes below 1 MB the error is a share of the prediction, or of 1 MB: what was measured as nothing is 100 % off.
//
// Construction and the first step are compared where the row had its process to itself ("fresh"), host memory always.  Where
// the routing is given it is the steady step's, so the first step is left out; and what the pool had reserved by then hangs
// on the routing of earlier steps, so reserved and device memory are compared apart, with the interval that should hold them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/account/ledger.hpp"
#include "planner/cli/measured_table.hpp"

namespace plimsoll {

struct Comparison {
  std::string id, figure;
  double predicted = 0, measured = 0;  ///< bytes; seconds for "step_time"
  double error = 0;                    ///< relative
  std::optional<Interval> interval;    ///< of the prediction, where the ledger states one
  Place place;                         ///< of the measured value

  bool is_time() const { return figure == "step_time"; }
  /// Does the prediction's interval hold the measured value?  Nothing where there is none.
  std::optional<bool> within() const {
    if (!interval) return std::nullopt;
    return measured >= static_cast<double>(interval->low.count) &&
           measured <= static_cast<double>(interval->high.count);
  }
};

struct FigureSummary {
  std::string figure;
  int n = 0;
  double mean = 0;    ///< of |error|
  double max = 0;     ///< of |error|
  double bias = 0;    ///< mean of the error with its sign
  std::string worst;  ///< id of the row with the largest |error|
};

struct Validation {
  std::vector<Comparison> rows;   ///< in the order of the tables
  std::vector<Comparison> apart;  ///< reserved and device memory of rows with a given routing
  std::size_t first_steps = 0;    ///< figures of first steps of such rows: what is given is the steady step's routing
  std::vector<Unanswered> unanswered;
  Diagnostics diagnostics;
};

/// @param calibration of --calibration; empty: each cluster's own
Validation validate(std::vector<MeasuredTable> tables, const std::string& calibration = {});

/// One line a figure, in the order of the job.
std::vector<FigureSummary> summaries_by_figure(const std::vector<Comparison>& rows);

/// The figures of one kind together: "allocated, peak of a phase of the steady step".
std::vector<FigureSummary> summaries_by_kind(const std::vector<Comparison>& rows);

std::string validation_json(const Validation& validation);

}  // namespace plimsoll
