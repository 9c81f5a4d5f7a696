// The event loop (simulator/timeline.hpp).
//
// The host of each class issues its ops in order: a launch, a hook, a sync each take host time; it runs ahead of the device
// until it must wait (a sync, a full queue).  A lane starts its next op when the lane is free, the op has been issued, every
// op that it waits for has ended, and, for a collective, every class has arrived.  Ops in progress share what they share:
// compute is stretched while a collective is resident, collectives on one tier share it max-min fairly.  Events are taken in
// order of (time, class, lane), durations are rounded once.
//
// Cost: every lane keeps the time of its next event, so that an event looks at a handful of integers and at the lanes of its
// own class that wait for the op that ended.
#include <algorithm>
#include <limits>
#include <memory>

#include "simulator/priced_program.hpp"
#include "simulator/summary.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

namespace {

constexpr SimTime never = std::numeric_limits<SimTime>::max();
constexpr SimTime not_ended = -1;
constexpr std::uint32_t none = ~0u;

struct LaneState {
  std::uint32_t head = 0, issued = 0;  ///< into the program's list of the lane
  std::uint32_t blocked_on = none;     ///< instance whose end the head waits for
  std::uint32_t waited_for = none, last = none;
  Cause cause = Cause::start;
  bool running = false;
  bool arrived = false;  ///< at a collective, waiting for other classes
  SimTime started = 0, free_at = 0;
  SimTime updated = 0;  ///< when `remaining` was so much
  double remaining = 0, rate = 1;
};

struct ClassState {
  std::shared_ptr<const PricedProgram> priced;
  std::array<LaneState, lane_count> lanes;
  std::array<SimTime, lane_count> next;  ///< event of each lane
  std::vector<SimTime> issued, ended;    ///< by instance
  std::vector<std::uint32_t> mark;       ///< by instance: the host op before its issue, then its index in the timeline
  std::uint32_t at = 0;                  ///< next instance that the host issues
  int host_waits_for = -1;               ///< lane
  SimTime host_free = 0;
  std::uint32_t last_sync = none;
  double compute_factor = 1, host_factor = 1, memory_factor = 1;
  int resident = 0;   ///< collectives running or arrived
  int on_device = 0;  ///< lanes running or arrived
  SimTime idle_since = 0, idle = 0;
};

class Simulation {
 public:
  Simulation(std::vector<ClassState> classes, const Prices& prices, std::size_t groups)
      : classes_(std::move(classes)),
        prices_(prices),
        gap_(prices.kernel_gap()),
        latency_(prices.launch_latency()),
        depth_(static_cast<std::uint32_t>(prices.queue_depth())),
        arrivals_(groups) {}

  /// May be run again, at another sag.
  Timeline& run(double sag) {
    reset(sag);
    for (std::size_t c = 0; c < classes_.size(); ++c) run_host(c);
    while (true) {
      std::size_t c = 0, l = 0;
      SimTime best = never;
      for (std::size_t i = 0; i < classes_.size(); ++i) {
        for (std::size_t j = 0; j < lane_count; ++j) {
          if (classes_[i].next[j] >= best) continue;
          best = classes_[i].next[j];
          c = i;
          l = j;
        }
      }
      if (best == never) break;
      now_ = best;
      if (classes_[c].lanes[l].running) {
        finish(c, l);
      } else {
        start(c, l);
      }
    }
    finalise();
    return timeline_;
  }

 private:
  void reset(double sag) {
    sag_ = sag;
    now_ = 0;
    std::vector<TimedOp> ops = std::move(timeline_.ops);
    timeline_ = {};
    timeline_.ops = std::move(ops);
    timeline_.ops.clear();
    for (auto& meeting : arrivals_) meeting.clear();
    std::size_t count_of_all = 0;
    for (ClassState& state : classes_) {
      const std::size_t count = state.priced->order.size();
      state.lanes = {};
      state.next.fill(never);
      state.issued.assign(count, never);
      state.ended.assign(count, not_ended);
      state.mark.assign(count, none);
      state.at = 0;
      state.host_waits_for = -1;
      state.host_free = state.idle_since = state.idle = 0;
      state.last_sync = none;
      state.resident = state.on_device = 0;
      count_of_all += count;
      timeline_.evidence = std::max(timeline_.evidence, state.priced->evidence);
    }
    timeline_.ops.reserve(count_of_all);
  }

  // ---- host ----
  void run_host(std::size_t c) {
    ClassState& state = classes_[c];
    const PricedProgram& program = *state.priced;
    const auto count = static_cast<std::uint32_t>(program.order.size());
    state.host_waits_for = -1;
    for (; state.at < count; ++state.at) {
      const PricedOp& op = program.of(state.at);
      const double factor = op.by_memory ? state.memory_factor : state.host_factor;
      const auto cost = static_cast<SimTime>(static_cast<double>(op.host) * factor);
      LaneState& lane = state.lanes[static_cast<std::size_t>(op.lane)];
      if (op.what == PricedOp::What::host_work) {
        state.host_free += cost;
        if (op.noted) note_host(c, op.op, cost, none);
        continue;
      }
      const std::uint32_t outstanding = lane.issued - lane.head;
      const bool full = op.what == PricedOp::What::device && outstanding >= depth_;
      if (full || (op.what == PricedOp::What::host_sync && outstanding > 0)) {
        state.host_waits_for = static_cast<int>(op.lane);
        break;
      }
      if (op.what == PricedOp::What::host_sync) {
        const SimTime began = state.host_free;
        state.host_free = std::max(state.host_free, lane.free_at) + cost;
        note_host(c, op.op, state.host_free - began, lane.last);
        continue;
      }
      state.host_free += cost;
      state.issued[state.at] = state.host_free + latency_;
      state.mark[state.at] = state.last_sync;
      ++lane.issued;
    }
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (state.next[l] == never && state.lanes[l].blocked_on == none) refresh(state, l);
    }
  }

  void note_host(std::size_t c, OpId id, SimTime took, std::uint32_t waited_for) {
    ClassState& state = classes_[c];
    const std::uint32_t before = waited_for == none ? state.last_sync : waited_for;
    state.last_sync = static_cast<std::uint32_t>(timeline_.ops.size());
    timeline_.ops.push_back(
        {id, static_cast<std::uint16_t>(c), Lane::host, Cause::host, before, state.host_free - took, state.host_free});
  }

  // ---- device ----
  /// When the lane's head can start and what it will have waited for; never if that is not known yet.
  void refresh(ClassState& state, std::size_t l) {
    LaneState& lane = state.lanes[l];
    lane.blocked_on = none;
    if (lane.running || lane.arrived || lane.head >= lane.issued) return;
    const PricedProgram& program = *state.priced;
    const std::uint32_t head = program.lanes[l][lane.head];
    SimTime at = lane.free_at + (lane.head > 0 ? gap_ : 0);
    lane.cause = lane.head > 0 ? Cause::lane : Cause::start;
    lane.waited_for = lane.last;
    if (state.issued[head] > at) {
      at = state.issued[head];
      lane.cause = Cause::host;
      lane.waited_for = state.mark[head];
    }
    for (std::uint32_t e = program.first_edge[head]; e < program.first_edge[head + 1]; ++e) {
      const std::uint32_t from = program.edges[e];
      if (state.ended[from] == not_ended) {
        lane.blocked_on = from;
        state.next[l] = never;
        return;
      }
      if (state.ended[from] > at) {
        at = state.ended[from];
        lane.cause = Cause::edge;
        lane.waited_for = state.mark[from];
      }
    }
    state.next[l] = std::max(now_, at);
  }

  void start(std::size_t c, std::size_t l) {
    ClassState& state = classes_[c];
    LaneState& lane = state.lanes[l];
    const PricedOp& op = state.priced->of(state.priced->lanes[l][lane.head]);
    if (state.on_device++ == 0) state.idle += now_ - state.idle_since;
    lane.started = now_;
    if (!op.collective) {
      begin(state, l, op);
      if (state.resident > 0 || l == copy_in || state.lanes[copy_in].running) set_rates(state);
      return;
    }
    lane.arrived = true;
    state.next[l] = never;
    if (state.resident++ == 0 || classes_.size() > 1) set_rates(state);
    const auto& action = std::get<Collective>(state.priced->program->ops[op.op].action);
    auto& meeting = arrivals_[action.group];
    meeting.emplace_back(c, l);
    if (meeting.size() < classes_.size()) return;
    for (const auto& [i, j] : meeting) {
      LaneState& peer = classes_[i].lanes[j];
      if (now_ > peer.started) {
        const bool host = lane.cause == Cause::host || lane.cause == Cause::peer_host;
        peer.cause = host ? Cause::peer_host : Cause::peers;
        peer.waited_for = lane.waited_for;
      }
      peer.started = now_;
      begin(classes_[i], j, classes_[i].priced->of(classes_[i].priced->lanes[j][peer.head]));
    }
    const auto met = std::exchange(meeting, {});
    for (const auto& member : met) set_rates(classes_[member.first]);
  }

  void begin(ClassState& state, std::size_t l, const PricedOp& op) {
    LaneState& lane = state.lanes[l];
    const double alone = static_cast<double>(op.work) + static_cast<double>(op.sagging) * (sag_ - 1);
    lane.arrived = false;
    lane.running = true;
    lane.updated = now_;
    lane.remaining = op.collective ? alone : alone * state.compute_factor;
    lane.rate = 1;
    state.next[l] = now_ + static_cast<SimTime>(lane.remaining + 0.5);
  }

  void finish(std::size_t c, std::size_t l) {
    ClassState& state = classes_[c];
    LaneState& lane = state.lanes[l];
    const std::uint32_t instance = state.priced->lanes[l][lane.head];
    const PricedOp& op = state.priced->of(instance);
    state.ended[instance] = now_;
    lane.last = state.mark[instance] = static_cast<std::uint32_t>(timeline_.ops.size());
    timeline_.ops.push_back(
        {op.op, static_cast<std::uint16_t>(c), static_cast<Lane>(l), lane.cause, lane.waited_for, lane.started, now_});
    lane.running = false;
    lane.free_at = now_;
    ++lane.head;
    state.next[l] = never;
    if (--state.on_device == 0) state.idle_since = now_;
    if (op.collective) --state.resident;
    if (op.collective || state.resident > 0 || l == copy_in) set_rates(state);
    for (std::size_t j = 0; j < lane_count; ++j) {
      if (j == l || state.lanes[j].blocked_on == instance) refresh(state, j);
    }
    if (state.host_waits_for == static_cast<int>(l)) {
      // A full queue has room again: the host goes on from here.  A sync takes the lane's end itself.
      const PricedOp& next = state.priced->of(state.at);
      if (next.what == PricedOp::What::device) state.host_free = std::max(state.host_free, now_);
      if (next.what == PricedOp::What::device || lane.head == lane.issued) run_host(c);
    }
  }

  // ---- rates ----
  const PricedOp& head_of(const ClassState& state, std::size_t l) const {
    return state.priced->of(state.priced->lanes[l][state.lanes[l].head]);
  }

  /// Rates of what runs now: fair shares of each tier, and compute beside resident collectives.
  void set_rates(ClassState& state) {
    std::array<const Demand*, lane_count> demands{};
    std::array<std::size_t, lane_count> flows{};
    std::size_t n = 0;
    bool computing = false;
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (!state.lanes[l].running) continue;
      const PricedOp& op = head_of(state, l);
      if (op.collective) {
        flows[n] = l;
        demands[n++] = &state.priced->demands[op.demand];
      } else {
        computing = true;
      }
    }
    std::array<double, lane_count> shares{};
    if (n > 0) fair_rates({demands.data(), n}, {shares.data(), n});
    for (std::size_t i = 0; i < n; ++i)
      set_rate(state, flows[i], shares[i] / (computing ? prices_.collective_interference() : 1));
    if (!computing) return;
    const bool beside_copy = state.lanes[copy_in].running && state.lanes[compute].running &&
                             Prices::memory_bound(head_of(state, compute).kind);
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (!state.lanes[l].running) continue;
      const PricedOp& op = head_of(state, l);
      if (op.collective) continue;
      double rate = state.resident > 0 ? 1 / prices_.interference(op.kind) : 1;
      if (beside_copy && (l == compute || l == copy_in)) rate /= prices_.copy_in_interference();
      set_rate(state, l, rate);
    }
  }

  void set_rate(ClassState& state, std::size_t l, double rate) {
    LaneState& lane = state.lanes[l];
    if (lane.rate == rate) return;
    lane.remaining -= static_cast<double>(now_ - lane.updated) * lane.rate;
    lane.updated = now_;
    lane.rate = rate;
    state.next[l] = now_ + static_cast<SimTime>(std::max(0.0, lane.remaining) / rate + 0.5);
  }

  // ---- results ----
  void finalise() {
    std::vector<const RankProgram*> programs;
    for (ClassState& state : classes_) {
      programs.push_back(state.priced->program);
      note_unfinished(state);
      timeline_.step_time = std::max({timeline_.step_time, state.host_free, now_});
    }
    summarise(timeline_, programs, gap_);
    const ClassState& slowest = classes_[timeline_.slowest];
    timeline_.idle = slowest.idle;
    if (slowest.on_device == 0) timeline_.idle += timeline_.step_time - slowest.idle_since;
  }

  /// Who still waits, and for what: a deadlock, or a program that verify_step() refuses.
  void note_unfinished(const ClassState& state) {
    for (std::size_t l = 0; l < lane_count; ++l) {
      const LaneState& lane = state.lanes[l];
      if (lane.head >= lane.issued) continue;
      const RankProgram& program = *state.priced->program;
      std::string text = std::string(program.ops[head_of(state, l).op].role) + " on " + name_of(static_cast<Lane>(l));
      if (lane.blocked_on != none)
        text += std::string(" waits for ") + program.ops[state.priced->of(lane.blocked_on).op].role;
      if (lane.arrived) text += " waits for its peers";
      timeline_.unfinished.push_back(std::move(text));
    }
  }

  static constexpr auto compute = static_cast<std::size_t>(Lane::compute);
  static constexpr auto copy_in = static_cast<std::size_t>(Lane::copy_in);
  std::vector<ClassState> classes_;
  const Prices& prices_;
  const SimTime gap_, latency_;
  const std::uint32_t depth_;
  double sag_ = 1;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> arrivals_;  ///< by group: (class, lane)
  Timeline timeline_;
  SimTime now_ = 0;
};

}  // namespace

Timeline simulate_step(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                       const SimulateOptions& options) {
  const Prices prices(calibration, cluster, program, 1), doubled(calibration, cluster, program, 2);
  std::vector<ClassState> classes;
  for (const RankClass& ranks : program.classes) {
    ClassState& state = classes.emplace_back();
    state.priced = std::make_shared<const PricedProgram>(
        priced_program(ranks.program, program, ranks.example_rank, prices, doubled));
    state.compute_factor = options.kernel_factor;
    state.host_factor = state.memory_factor = options.host_factor;
  }
  const double n = program.world_size;
  const double skew = options.host_skew < 0 ? calibration.host.spread * (n - 1) / (n + 1) : options.host_skew;
  if (skew > 0 && program.world_size > 1) {
    classes.push_back(classes.front());
    classes.back().host_factor *= 1 + skew;
  }
  for (const auto& [rank, factor] : options.stragglers) {
    classes.push_back(classes.front());
    classes.back().compute_factor *= factor;
    classes.back().host_factor = options.host_factor;
  }
  // Clocks sag by the matrix work over the step time, which the sag lengthens: from the least time that the step can take,
  // then, where it took longer, from the time that it took.
  const PricedProgram& first = *classes.front().priced;
  const double matrix_s = first.matrix_s;
  const double sag = sag_of(calibration.gemm, matrix_s, least_step_s(first, prices, calibration.gemm));
  Simulation simulation(std::move(classes), prices, program.groups.size());
  Timeline& timeline = simulation.run(sag);
  const double settled = sag_of(calibration.gemm, matrix_s, to_seconds(timeline.step_time));
  constexpr double worth_another_run = 0.002;
  if (sag - settled > worth_another_run && timeline.unfinished.empty()) simulation.run(settled);
  return std::move(timeline);
}

}  // namespace plimsoll
