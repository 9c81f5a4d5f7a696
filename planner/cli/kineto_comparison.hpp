// Where is the simulated step off?  A measured step's kernels beside those of the simulated timeline, class by class, and
// what the device did in all: busy, idle, communication that nothing hid.
//
// Times are of one rank.  A measured collective's time holds its wait for the peers, so communication is shown but not
// judged; the simulated step is that of ranks in step (no skew between hosts).
#pragma once

#include <array>
#include <string>

#include "planner/cli/profiler_trace.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

struct ClassUse {
  std::int64_t launches = 0;
  double seconds = 0;  ///< summed, whatever ran beside it
};

/// What a device did in a step.
struct DeviceUse {
  std::array<ClassUse, op_class_count> classes{};
  double span_s = 0;     ///< first start to last end
  double idle_s = 0;     ///< nothing ran
  double exposed_s = 0;  ///< nothing but collectives ran
  ClassUse compute() const;
  const ClassUse& of(OpClass op_class) const { return classes[static_cast<std::size_t>(op_class)]; }
};

struct KinetoComparison {
  DeviceUse simulated, measured;
  double compute_error() const;  ///< of summed kernel time, simulated over measured - 1
  /// Share of the compute time that both have in the same classes: what tells whether they are of one step.
  double likeness() const;
};

DeviceUse use_of(const ProfilerTrace& trace);
/// @param program of the timeline's class 0
DeviceUse use_of(const Timeline& timeline, const RankProgram& program);

/// The answer as text and as one JSON object.
std::string kineto_text(const KinetoComparison& comparison);
std::string kineto_json(const KinetoComparison& comparison, const std::string& digest);

}  // namespace plimsoll
