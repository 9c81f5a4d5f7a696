// Predicted against run: memory, bytes on the wire and step time of a plan beside the log that plimsoll-run wrote of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/cli/evaluate.hpp"
#include "planner/spec/document.hpp"
#include "planner/spec/read_calibration.hpp"

namespace plimsoll {

/// What a log of JSON lines says: its head, then one line a step.
struct RunLog {
  std::string digest, backend;
  std::vector<double> step_times_s;  ///< of all steps but the first, which is another program's
  std::int64_t high_water_bytes = 0;
  std::int64_t sent_bytes = 0;  ///< of the last step; 0: not counted
  double first_loss = 0, last_loss = 0;
};

/// @return errors: a line that is no object, a head without a digest, no step
Result<RunLog> read_run_log(const std::shared_ptr<const SourceFile>& file);

/// A figure, predicted and measured.
struct RunFigure {
  std::string name;
  double predicted = 0;
  std::optional<double> measured;  ///< none: the backend does not count it, or it means nothing there
  double error() const { return measured ? predicted / *measured - 1 : 0; }
};

/// @return an error if the log is of another program: the digests differ
Result<std::vector<RunFigure>> compare_run(const Evaluation& evaluation, const RunLog& log,
                                           const Calibration& calibration);

std::string run_comparison_text(const std::vector<RunFigure>& figures, const RunLog& log);
std::string run_comparison_json(const std::vector<RunFigure>& figures, const RunLog& log);

}  // namespace plimsoll
