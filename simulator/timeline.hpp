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

/// What an op's time counts as.
enum class Share : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  host,
  offload,
  bubble,  ///< no op: a rank waits for one that still computes
  compute
};
inline constexpr std::size_t share_count = 9;

/// One op of a rank's program on the clock.
struct TimedOp {
  OpId op = 0;
  std::uint16_t class_index = 0;
  Lane lane = Lane::compute;
  Cause cause = Cause::start;
  Share share = Share::compute;
  std::uint32_t waited_for = ~0u;  ///< index into Timeline::ops of what ended last before it started
  SimTime start = 0, end = 0;
};

struct LaneUse {
  std::string name;
  SimTime busy = 0;  ///< sum of its ops; of the host, of all that it does: launches too, and no waiting
  double share = 0;
};

/// Ranks that run one list at one speed.
struct TimedClass {
  std::uint16_t program = 0;  ///< whose list, of StepProgram::classes
  std::string name;           ///< "rank 0", "rank 0, slowest host"
};

struct Timeline {
  std::vector<TimedOp> ops;         ///< in order of their ends within a lane
  std::vector<TimedClass> classes;  ///< by class_index
  SimTime step_time = 0;
  SimTime kernel_gap = 0;  ///< between kernels of a lane; an op of several launches holds those between them
  std::map<std::string, SimTime> exposed;  ///< by cause: "all_gather", ..., "host", "offload", "bubble"
  SimTime idle = 0;        ///< nothing runs on the device; a collective that waits for its peers does not
  std::uint16_t told = 0;  ///< the class of which exposed and idle time and lanes are told
  std::vector<LaneUse> lanes;
  std::vector<std::uint32_t> critical_path;  ///< indices into ops, first to last
  /// "compute", "communication", "host" or "offload": what most of the critical path is.
  std::string bound_by;
  Evidence evidence = Evidence::measured;  ///< the weakest of what was used
  std::vector<std::string> unfinished;     ///< who waits for what, if ops were left over (a deadlock)
};

struct SimulateOptions {
  std::map<int, double>
      stragglers;            ///< rank -> factor on its compute; a rank that no class names runs the commonest one
  double host_factor = 1;    ///< on all host costs
  double kernel_factor = 1;  ///< on all kernel times
  /// One more class, of the program whose host has most to do, on a host that takes 1 + host_skew times as long, since a step
  /// follows the slowest of its ranks' hosts; negative: what is expected where each rank's host is drawn evenly from
  /// 1 - spread to 1 + spread (simulator/simulate.cpp).
  double host_skew = -1;
  int tell_of = -1;  ///< index into StepProgram::classes of the class to tell of; negative: the one that ends last
};

/// Simulates the steady step of all rank classes together: collectives wait for the last of them, and the step ends with the
/// slowest.  Every group is taken to hold members of every class.
Timeline simulate_step(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                       const SimulateOptions& options = {});

/// The program that a timed op is of.
inline const RankProgram& program_of(const StepProgram& program, const Timeline& timeline, const TimedOp& op) {
  return program.classes[timeline.classes[op.class_index].program].program;
}

}  // namespace plimsoll
