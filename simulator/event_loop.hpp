// In which order do the ops of all rank classes run, and when?
//
// The host of each class issues its ops in order: a launch, a hook, a sync each take host time; it runs ahead of the device
// until it must wait (a sync, a full queue).  A lane starts its next op when the lane is free, the op has been issued, every
// op that it waits for has ended, and, for a collective, every class has arrived.  Ops in progress share what they share:
// compute is stretched while a collective is resident, collectives on one tier share it max-min fairly.  Events are taken in
// order of (time, class, lane), durations are rounded once.
//
// A full queue has room for an op as soon as the one that is a queue's depth before it on its lane has ended; ops that only wait
// for such room are issued many at a time, as all that their lane needs is that it never runs dry before they are.
//
// Cost: a lane goes on by itself until another's event is due; who is next is looked for only where events elsewhere may have
// changed, among the lanes of one class and the earliest of each other.  Shares are solved anew when a collective begins or
// ends.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "simulator/priced_program.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

/// Ranks that run one list at one speed.
struct RanksOnClock {
  std::shared_ptr<const PricedProgram> priced;
  std::uint16_t of_class = 0;  ///< of the StepProgram
  std::string name;
  double compute_factor = 1, host_factor = 1, memory_factor = 1;
};

class EventLoop {
 public:
  /// @param groups how many the program has
  EventLoop(std::vector<RanksOnClock> ranks, const Prices& prices, std::size_t groups, int tell_of);

  /// May be run again, at another sag.
  Timeline& run(double sag);

 private:
  static constexpr std::uint32_t none = ~0u;
  static constexpr SimTime never = INT64_MAX;
  static constexpr SimTime not_ended = -1;
  static constexpr std::size_t lanes_on_device = lane_count - 1;

  struct LaneState {
    std::uint32_t head = 0, issued = 0;  ///< into the program's list of the lane
    const PricedOp* op = nullptr;        ///< the head's, where it is issued
    std::uint32_t instance = none;       ///< likewise
    std::uint32_t waited_for = none, last = none;
    Cause cause = Cause::start;
    bool running = false;
    bool arrived = false;  ///< at a collective, waiting for other classes
    SimTime started = 0, free_at = 0;
    SimTime updated = 0;  ///< when `remaining` was so much
    double remaining = 0, rate = 1;
    double share = 1;  ///< of a collective: its rate for what it shares with others
  };
  /// An instance of an op, written when the host issues it.
  struct Issued {
    SimTime at = never, ended = not_ended;
    std::uint32_t mark = none;  ///< the host op before its issue, then its index in the timeline
  };
  struct ClassState {
    RanksOnClock ranks;
    std::array<LaneState, lanes_on_device> lanes;
    std::array<SimTime, lanes_on_device> next;  ///< event of each lane
    /// Of each lane: the instance whose end the head waits for.
    std::array<std::uint32_t, lanes_on_device> blocked_on;
    int blocked = 0;           ///< lanes whose head waits for an end
    SimTime earliest = never;  ///< of these
    std::size_t earliest_lane = 0;
    std::vector<Issued> instances;
    std::uint32_t at = 0;               ///< next instance that the host issues
    int host_waits_for = -1;            ///< lane
    std::uint32_t host_goes_on_at = 0;  ///< as soon as so few ops of that lane are issued and have not ended
    SimTime host_free = 0, host_busy = 0;
    std::uint32_t last_sync = none;
    int resident = 0;            ///< collectives running or arrived whose kernels hold multiprocessors
    int running = 0;             ///< lanes
    bool flows_changed = false;  ///< since the shares were solved
    SimTime idle_since = 0, idle = 0;
  };

  void reset(double sag);
  void run_host(std::size_t c);
  std::uint32_t like_next(const ClassState& state, std::uint32_t most) const;
  void note_host(std::size_t c, const PricedOp& op, SimTime took, std::uint32_t waited_for);
  void note(std::size_t c, const PricedOp& op, Lane lane, Cause cause, std::uint32_t waited_for, SimTime start,
            SimTime end);
  void refresh(ClassState& state, std::size_t l);
  void find_earliest(ClassState& state);
  SimTime due_elsewhere(std::size_t c, std::size_t l) const;
  void step(std::size_t c, std::size_t l);
  void start(std::size_t c, std::size_t l);
  void meet(std::size_t c, std::size_t l, const PricedOp& op);
  void begin(ClassState& state, std::size_t l, const PricedOp& op);
  void finish(std::size_t c, std::size_t l);
  void set_rates(ClassState& state);
  void solve_shares(ClassState& state);
  void set_rate(ClassState& state, std::size_t l, double rate);
  void finalise();
  /// Collectives of a group meet by lane.
  static std::size_t meeting_of(const PricedOp& op) {
    return std::size_t{op.group} * lane_count + static_cast<std::size_t>(op.lane);
  }
  std::string missing_at(std::size_t place) const;
  void note_unfinished(const ClassState& state);

  std::vector<ClassState> classes_;
  const Prices& prices_;
  const SimTime gap_, latency_;
  const std::uint32_t depth_;
  const int tell_of_;
  double sag_ = 1;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> arrivals_;  ///< by group and lane: (class, lane)
  Timeline timeline_;
  SimTime now_ = 0;
  bool disturbed_ = false;  ///< events of other lanes may have changed since they were last looked at
};

}  // namespace plimsoll
