// The step with a clock: when does each op run, what does it wait for, what bounds the step?
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "simulator/prices.hpp"

namespace plimsoll {

/// Why an op did not start earlier: its lane was busy, an op that it waits for ran, its host had not issued it, its peers had
/// not arrived, or they had not because of their host.
enum class Cause : std::uint8_t { start, lane, edge, host, peers, peer_host };

/// One op of a rank's program on the clock.
struct TimedOp {
  OpId op = 0;
  std::uint16_t class_index = 0;
  Lane lane = Lane::compute;
  Cause cause = Cause::start;
  std::uint32_t waited_for = ~0u;  ///< index into Timeline::ops of what ended last before it started
  SimTime start = 0, end = 0;
};

struct LaneUse {
  std::string name;
  SimTime busy = 0;
  double share = 0;
};

struct Timeline {
  std::vector<TimedOp> ops;  ///< in order of their ends within a lane
  SimTime step_time = 0;
  std::map<std::string, SimTime> exposed;  ///< by cause: "all_gather", ..., "host", "offload", "bubble"
  SimTime idle = 0;                        ///< nothing is on the device, not even a collective that waits for its peers
  std::uint16_t slowest = 0;               ///< the class that ends last, of which all that follows is told
  std::vector<LaneUse> lanes;
  std::vector<std::uint32_t> critical_path;  ///< indices into ops, first to last
  /// "compute", "communication", "host" or "offload": what most of the critical path is.
  std::string bound_by;
  Evidence evidence = Evidence::measured;  ///< the weakest of what was used
  std::vector<std::string> unfinished;     ///< who waits for what, if ops were left over (a deadlock)
};

struct SimulateOptions {
  std::map<int, double> stragglers;  ///< rank -> factor on its compute
  double host_factor = 1;            ///< on all host costs
  double kernel_factor = 1;          ///< on all kernel times
  /// A second class of ranks whose hosts take 1 + host_skew times as long, since a step follows the slowest of its ranks'
  /// hosts; negative: what is expected of the slowest of n hosts drawn evenly from 1 - spread to 1 + spread, which is
  /// spread (n - 1) / (n + 1).
  double host_skew = -1;
};

/// Simulates the steady step of every rank class.  Every group is taken to hold members of every class.
Timeline simulate_step(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                       const SimulateOptions& options = {});

}  // namespace plimsoll
