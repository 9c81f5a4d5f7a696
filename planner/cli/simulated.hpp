// What does a simulated step mean to its user?  Step time with its interval, throughput, utilisation, by class of kernel.
#pragma once

#include <map>
#include <string>

#include "planner/spec/read_calibration.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

struct KernelUse {
  std::int64_t count = 0;
  SimTime busy = 0;
};

struct SimulatedStep {
  Timeline timeline;
  double step_time_s = 0, low_s = 0, high_s = 0;
  double tokens_per_s_per_gpu = 0, model_tflops_per_gpu = 0, mfu = 0, idle_share = 0;
  std::map<std::string, KernelUse> kernels;  ///< of the class that is told of, by kind; collectives too
  std::string calibration;                   ///< its name
};

/// The interval spans the spread of hosts (all host costs scaled by 1 -+ spread) and 5 % of kernel times (15 % where prices
/// are assumed): the same program simulated with both bounds.  Where curves of collectives are of other groups, or published,
/// by 15 % of their time, too.
/// @param tell_of as in SimulateOptions
SimulatedStep simulated(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                        const std::map<int, double>& stragglers = {}, int tell_of = -1);

}  // namespace plimsoll
