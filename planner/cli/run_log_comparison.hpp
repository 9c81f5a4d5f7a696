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

/// One step as it was logged.
struct RunStep {
  std::int64_t number = 0;
  double loss = 0, time_s = 0;
  double tokens_per_s = 0;                                    ///< of a rank
  bool skipped = false;                                       ///< its gradients were not finite
  std::vector<std::vector<std::int64_t>> expert_tokens = {};  ///< tokens that chose each expert, by layer; may be empty
};

/// What a log of JSON lines says: its head, then one line a step.
struct RunLog {
  std::string digest, backend;
  Place head;  ///< the line that states them
  std::vector<RunStep> steps;
  std::int64_t high_water_bytes = 0;
  std::int64_t sent_bytes = 0;  ///< of the last step; 0: not counted

  /// Median over all steps but the first, which is another program's; 0: there is one step only.
  double step_time_s() const;
  /// The step that took it; null: there is one step only.
  const RunStep* median_step() const;
};

/// True if its first line is the head of such a log.
bool is_run_log(const SourceFile& file);

/// Lines that are no step of a run are told and left out; the last one may be torn, where the run was killed.
/// @return errors: a head without a digest, no step
Result<RunLog> read_run_log(const std::shared_ptr<const SourceFile>& file);

/// A figure, predicted and measured.
struct RunFigure {
  std::string name;
  double predicted = 0;
  std::optional<double> measured;  ///< none: the backend does not count it, or it means nothing there
  double error() const { return measured ? predicted / *measured - 1 : 0; }
};

/// The step time also with the routing that the log's median step had, where rows go to other ranks.
/// @return an error if the log is of another program: the digests differ
Result<std::vector<RunFigure>> compare_run(const Evaluation& evaluation, const RunLog& log,
                                           const Calibration& calibration);

std::string run_comparison_text(const std::vector<RunFigure>& figures, const RunLog& log);
std::string run_comparison_json(const std::vector<RunFigure>& figures, const RunLog& log);

}  // namespace plimsoll
