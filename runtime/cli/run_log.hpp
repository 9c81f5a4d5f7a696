// What does a run say?  A line a step for people, JSON lines for programs, the last step as a trace.
#pragma once

#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "runtime/core/execute_step.hpp"

namespace plimsoll {

/// One step as it is told.
struct StepLine {
  std::int64_t step = 0;
  StepReport report;
  double time_s = 0;
  Bytes arena, high_water;
  Bytes sent;  ///< by this rank, in this step; 0 where the backend does not count
};

/// Expert load over all MoE layers: the fullest expert over the mean, entropy over its largest possible value.
struct ExpertLoad {
  double max_over_mean = 1, entropy = 1, largest_share = 0;
};
ExpertLoad load_of(const StepReport& report, std::int64_t layers, std::int64_t experts);

/// One line; a second one where one expert takes most of a layer's tokens.
std::string line_of(const StepLine& step, const StepProgram& program, double peak_flops);

/// The first line of a log: what was run.
std::string log_head(const StepProgram& program, const std::string& backend, Bytes arena);
std::string log_line(const StepLine& step, const StepProgram& program);

/// The digest that an existing log states; empty: there is no log, or it is empty.  Errors: it is no log.
Result<std::string> digest_of_log(const std::string& path);

/// Chrome trace of the last step's ops, one rank after the other.
std::string trace_of(const StepProgram& program, const std::vector<std::vector<MeasuredOp>>& ranks);

}  // namespace plimsoll
