// How is a list of points measured?  Google Benchmark runs them (its filter and output options work), each point once, in
// manual time; inside, a point is warmed up and repeated until the 95 % interval of its median is narrow.  Every finished
// point is appended to the log at once.  With several ranks, rank 0 decides what comes next and the others follow.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "calibrate/bench/backend.hpp"
#include "calibrate/bench/catalogue.hpp"
#include "calibrate/bench/ranks.hpp"
#include "calibrate/samples/sample_log.hpp"

namespace plimsoll::calibrate {

struct MeasureOptions {
  double budget_s = 0;  ///< 0: no limit; no point is begun later than this after `began`
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  double narrow = 0.01;                      ///< half width of the interval over the median at which repetition ends
  double point_s = 0.3;                      ///< longest repetition of one point
  std::vector<std::string> benchmark_flags;  ///< "--benchmark_filter=...", ...
};

struct MeasureReport {
  int measured = 0, failed = 0, already_there = 0, left = 0;  ///< left: the budget was spent
  double seconds = 0;
  bool any = false;  ///< Google Benchmark's filter chose a point; where it does not, it says so
};

/// Measures one prepared point; all ranks of a shared one call it together.
Sample measure_point(const Point& point, Work& work, Ranks& ranks, bool shared, const MeasureOptions& options);

/// @param log null on all ranks but 0
/// @throws MachineError if a rank or the backend is lost
MeasureReport measure_all(const std::vector<Case>& cases, Backend& backend, Ranks& ranks, SampleLog* log,
                          const MeasureOptions& options);

}  // namespace plimsoll::calibrate
