// The event loop (simulator/timeline.hpp).
//
// The host of each class issues its ops in order: a launch, a hook, a sync each take host time; it runs ahead of the device
// until it must wait (a sync, a full queue).  A lane starts its next op when the lane is free, the op has been issued, every op
// in `after` has ended, and, for a collective, every class has arrived.  Ops in progress share what they share: compute is
// stretched while a collective is resident, collectives on one tier are slowed when together they ask for more than it has
// (max-min fair).  Events are taken in order of (time, lane), durations are rounded once.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "simulator/summary.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {

namespace {

constexpr SimTime never = std::numeric_limits<SimTime>::max();
constexpr std::uint32_t none = ~0u;

struct Instance {
  OpId op = 0;
  SimTime issued = never;
  SimTime work = 0;  ///< duration alone
  float share = 0;   ///< of its tier, collectives
  Tier tier = Tier::nvlink;
  bool collective = false;
  KernelKind kind = KernelKind::small;
  std::uint32_t first_wait = 0;
  std::uint16_t waits = 0;
  bool ended = false;
  SimTime end = 0;
  std::uint32_t timed = none;   ///< index into Timeline::ops
  std::uint32_t synced = none;  ///< the host op on which its issue depended last
};

struct LaneState {
  std::vector<std::uint32_t> queue;  ///< instances in issue order
  std::size_t head = 0;
  bool running = false;
  bool arrived = false;  ///< at a collective, waiting for other classes
  SimTime started = 0, free_at = 0;
  Cause cause = Cause::start;
  std::uint32_t waited_for = none, last = none;
  double remaining = 0, rate = 1;
};

struct ClassState {
  const RankProgram* program = nullptr;
  std::vector<OpId> order;  ///< ops of the step with repeats unrolled
  std::size_t next = 0;
  std::vector<Instance> instances;
  std::vector<std::uint32_t> latest;  ///< by op: its latest instance
  std::vector<std::uint32_t> waits;
  std::array<LaneState, lane_count> lanes;
  SimTime host_free = 0;
  std::uint32_t last_sync = none;
  std::map<GroupId, std::size_t> sequence;  ///< collectives reached, by group
  double compute_factor = 1;
  double host_factor = 1;
  int rank = 0;
};

std::vector<OpId> unrolled(const RankProgram& program) {
  std::vector<OpId> order;
  order.reserve(program.steady_end - program.steady_first);
  const auto append = [&](OpId first, OpId end) {
    for (OpId id = first; id < end; ++id) {
      const Action& action = program.ops[id].action;
      if (!std::holds_alternative<Alloc>(action) && !std::holds_alternative<Free>(action) &&
          !std::holds_alternative<EmptyCache>(action)) {
        order.push_back(id);
      }
    }
  };
  OpId next = program.steady_first;
  for (const Repeat& repeat : program.repeats) {
    if (repeat.first < program.steady_first || repeat.end > program.steady_end) continue;
    append(next, repeat.first);
    for (std::int64_t i = 0; i < repeat.count; ++i) append(repeat.first, repeat.end);
    next = repeat.end;
  }
  append(next, program.steady_end);
  return order;
}

class Simulation {
 public:
  Simulation(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
             const SimulateOptions& options, double sag)
      : prices_(calibration, cluster, program, sag), options_(options) {
    for (const RankClass& ranks : program.classes) {
      ClassState& state = classes_.emplace_back();
      state.program = &ranks.program;
      state.rank = ranks.example_rank;
      state.compute_factor = options.kernel_factor;
      state.host_factor = options.host_factor;
    }
    const double n = program.world_size;
    const double skew = options.host_skew < 0 ? calibration.host.spread * (n - 1) / (n + 1) : options.host_skew;
    if (skew > 0 && program.world_size > 1) {
      classes_.push_back(classes_.front());
      classes_.back().host_factor *= 1 + skew;
    }
    for (const auto& [rank, factor] : options.stragglers) {
      ClassState& state = classes_.emplace_back();
      state.program = &program.classes.front().program;
      state.rank = rank;
      state.compute_factor = options.kernel_factor * factor;
      state.host_factor = options.host_factor;
    }
    for (ClassState& state : classes_) {
      state.order = unrolled(*state.program);
      state.instances.reserve(state.order.size());
      state.latest.assign(state.program->ops.size(), none);
    }
  }

  Timeline run() {
    while (true) {
      for (ClassState& state : classes_) run_host(state);
      std::size_t c = 0, l = 0;
      const SimTime next = next_event(c, l);
      if (next == never) break;
      advance(next);
      LaneState& lane = classes_[c].lanes[l];
      if (lane.running) {
        finish(classes_[c], c, l);
      } else {
        start(classes_[c], l);
      }
    }
    finalise();
    return std::move(timeline_);
  }

 private:
  // ---- host ----
  void run_host(ClassState& state) {
    while (state.next < state.order.size()) {
      const OpId id = state.order[state.next];
      const Op& op = state.program->ops[id];
      if (const auto* sync = std::get_if<HostSync>(&op.action)) {
        const LaneState& lane = state.lanes[static_cast<std::size_t>(sync->waits_for)];
        if (lane.head < lane.queue.size()) return;  // still busy: the host waits
        const SimTime began = state.host_free;
        state.host_free = std::max(state.host_free, lane.free_at) + scaled(state, prices_.sync());
        note_host(state, id, began, lane.last);
        ++state.next;
        continue;
      }
      if (const auto* work = std::get_if<HostWork>(&op.action)) {
        const SimTime began = state.host_free;
        state.host_free += scaled(state, prices_.host_work(*work));
        if (op.lane != Lane::host || work->kind == HostWorkKind::cpu_adam) note_host(state, id, began, none);
        ++state.next;
        continue;
      }
      LaneState& lane = state.lanes[static_cast<std::size_t>(op.lane)];
      if (lane.queue.size() - lane.head >= static_cast<std::size_t>(prices_.queue_depth())) return;
      issue(state, id, op, lane);
      ++state.next;
    }
  }

  static SimTime scaled(const ClassState& state, SimTime host) {
    return static_cast<SimTime>(static_cast<double>(host) * state.host_factor);
  }

  void note_host(ClassState& state, OpId id, SimTime began, std::uint32_t waited_for) {
    const auto index = static_cast<std::uint32_t>(timeline_.ops.size());
    const auto c = static_cast<std::uint16_t>(&state - classes_.data());
    timeline_.ops.push_back(
        {id, c, Lane::host, Cause::host, waited_for == none ? state.last_sync : waited_for, began, state.host_free});
    state.last_sync = index;
  }

  void issue(ClassState& state, OpId id, const Op& op, LaneState& lane) {
    Instance instance;
    instance.op = id;
    if (const auto* compute = std::get_if<Compute>(&op.action)) {
      const Kernel& kernel = state.program->kernels[compute->kernel];
      instance.kind = kernel.kind;
      instance.work = static_cast<SimTime>(static_cast<double>(prices_.kernel(kernel)) * state.compute_factor);
      state.host_free +=
          scaled(state, prices_.launch(op.issuer, kernel.compiled ? KernelKind::compiled_pointwise : kernel.kind) *
                            kernel.launches);
      if (kernel.launches > 1) instance.work += prices_.kernel_gap() * (kernel.launches - 1);
    } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
      const CollectiveCost cost = prices_.collective(*collective, state.rank);
      instance.work = cost.time;
      instance.share = static_cast<float>(cost.share);
      instance.tier = cost.tier;
      instance.collective = cost.time > 0;
      if (cost.time > 0) timeline_.evidence = std::max(timeline_.evidence, cost.evidence);
      state.host_free += scaled(state, prices_.launch(op.issuer, KernelKind::small));
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      instance.work = prices_.copy(*copy);
      state.host_free += scaled(state, prices_.launch(op.issuer, KernelKind::small));
    }
    instance.issued = state.host_free + prices_.launch_latency();
    instance.synced = state.last_sync;
    instance.first_wait = static_cast<std::uint32_t>(state.waits.size());
    for (const OpId from : state.program->waits(op)) {
      if (state.latest[from] == none) continue;  // of an earlier step: it has ended
      state.waits.push_back(state.latest[from]);
      ++instance.waits;
    }
    const auto index = static_cast<std::uint32_t>(state.instances.size());
    state.latest[id] = index;
    state.instances.push_back(instance);
    lane.queue.push_back(index);
  }

  // ---- device ----
  /// When the lane's head could start, and what it would have waited for; never if that is not known yet.
  SimTime ready_at(const ClassState& state, LaneState& lane) const {
    const Instance& head = state.instances[lane.queue[lane.head]];
    SimTime at = lane.free_at + (lane.head > 0 ? prices_.kernel_gap() : 0);
    lane.cause = lane.head > 0 ? Cause::lane : Cause::start;
    lane.waited_for = lane.last;
    if (head.issued > at) {
      at = head.issued;
      lane.cause = Cause::host;
      lane.waited_for = head.synced;
    }
    for (std::uint16_t i = 0; i < head.waits; ++i) {
      const Instance& from = state.instances[state.waits[head.first_wait + i]];
      if (!from.ended) return never;
      if (from.end > at) {
        at = from.end;
        lane.cause = Cause::edge;
        lane.waited_for = from.timed;
      }
    }
    return at;
  }

  SimTime next_event(std::size_t& c, std::size_t& l) {
    SimTime best = never;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      for (std::size_t j = 0; j < lane_count; ++j) {
        LaneState& lane = classes_[i].lanes[j];
        SimTime at = never;
        if (lane.running) {
          at = now_ + static_cast<SimTime>(lane.remaining / lane.rate + 0.5);
        } else if (lane.head < lane.queue.size() && !lane.arrived) {
          at = std::max(now_, ready_at(classes_[i], lane));
          if (at == never) continue;
        }
        if (at < best) {
          best = at;
          c = i;
          l = j;
        }
      }
    }
    return best;
  }

  void advance(SimTime to) {
    const auto passed = static_cast<double>(to - now_);
    if (passed > 0) {
      bool any = false;
      for (std::size_t j = 0; j < lane_count; ++j) any = any || classes_.front().lanes[j].running;
      if (!any) timeline_.idle += to - now_;
      for (ClassState& state : classes_) {
        for (LaneState& lane : state.lanes) {
          if (lane.running) lane.remaining -= passed * lane.rate;
        }
      }
    }
    now_ = to;
  }

  void start(ClassState& state, std::size_t l) {
    LaneState& lane = state.lanes[l];
    const Instance& head = state.instances[lane.queue[lane.head]];
    if (head.collective && classes_.size() > 1) {
      lane.arrived = true;
      lane.started = now_;
      const auto* collective = std::get_if<Collective>(&state.program->ops[head.op].action);
      auto& meeting = meetings_[{collective->group, state.sequence[collective->group]++}];
      meeting.emplace_back(&state - classes_.data(), l);
      if (meeting.size() < classes_.size()) {
        set_rates();
        return;
      }
      for (const auto& [c, lane_index] : meeting) {
        LaneState& peer = classes_[c].lanes[lane_index];
        if (now_ > peer.started) peer.cause = Cause::peers;
        begin(classes_[c], peer);
      }
      meetings_.erase({collective->group, state.sequence[collective->group] - 1});
    } else {
      begin(state, lane);
    }
    if (rates_matter(state, l)) set_rates();
  }

  /// Ops that run alone, or beside nothing that they share, keep their own rate.
  bool rates_matter(const ClassState& state, std::size_t l) const {
    const LaneState& lane = state.lanes[l];
    const bool copying = state.lanes[static_cast<std::size_t>(Lane::copy_in)].running;
    return active_collectives_ > 0 || copying || state.instances[lane.queue[lane.head]].collective;
  }

  void begin(const ClassState& state, LaneState& lane) {
    const Instance& head = state.instances[lane.queue[lane.head]];
    lane.arrived = false;
    lane.running = true;
    lane.started = now_;
    lane.remaining = static_cast<double>(head.work);
    lane.rate = 1;
  }

  void finish(ClassState& state, std::size_t c, std::size_t l) {
    LaneState& lane = state.lanes[l];
    const std::uint32_t index = lane.queue[lane.head];
    Instance& head = state.instances[index];
    head.ended = true;
    head.end = now_;
    head.timed = static_cast<std::uint32_t>(timeline_.ops.size());
    timeline_.ops.push_back({head.op, static_cast<std::uint16_t>(c), static_cast<Lane>(l), lane.cause, lane.waited_for,
                             lane.started, now_});
    lane.running = false;
    lane.free_at = now_;
    lane.last = head.timed;
    ++lane.head;
    if (active_collectives_ > 0 || head.collective || static_cast<Lane>(l) == Lane::copy_in) set_rates();
  }

  /// Rates of what runs now: fair shares of each tier, and compute beside resident collectives.
  void set_rates() {
    active_collectives_ = 0;
    for (ClassState& state : classes_) {
      std::array<double, tier_count> asked{};
      int resident = 0;
      bool computing = false;
      const bool copying = state.lanes[static_cast<std::size_t>(Lane::copy_in)].running;
      const LaneState& main = state.lanes[static_cast<std::size_t>(Lane::compute)];
      const bool beside_copy =
          copying && main.running && Prices::memory_bound(state.instances[main.queue[main.head]].kind);
      for (LaneState& lane : state.lanes) {
        if (!lane.running && !lane.arrived) continue;
        const Instance& head = state.instances[lane.queue[lane.head]];
        if (head.collective) {
          ++resident;
          if (lane.running) asked[static_cast<std::size_t>(head.tier)] += static_cast<double>(head.share);
        } else {
          computing = true;
        }
      }
      active_collectives_ += resident;
      for (LaneState& lane : state.lanes) {
        if (!lane.running) continue;
        const Instance& head = state.instances[lane.queue[lane.head]];
        if (head.collective) {
          const double together = asked[static_cast<std::size_t>(head.tier)];
          lane.rate = (together > 1 ? 1 / together : 1) / (computing ? prices_.collective_interference() : 1);
        } else {
          lane.rate = resident > 0 ? 1 / prices_.interference(head.kind) : 1;
          const auto index = static_cast<std::size_t>(&lane - state.lanes.data());
          const bool shares_memory =
              index == static_cast<std::size_t>(Lane::compute) || index == static_cast<std::size_t>(Lane::copy_in);
          if (beside_copy && shares_memory) lane.rate /= prices_.copy_in_interference();
        }
      }
    }
  }

  // ---- results ----
  void finalise();
  void note_unfinished(const ClassState& state);

  Prices prices_;
  const SimulateOptions options_;
  std::vector<ClassState> classes_;
  std::map<std::pair<GroupId, std::size_t>, std::vector<std::pair<std::size_t, std::size_t>>> meetings_;
  Timeline timeline_;
  SimTime now_ = 0;
  int active_collectives_ = 0;
};

void Simulation::finalise() {
  std::vector<const RankProgram*> programs;
  for (const ClassState& state : classes_) {
    programs.push_back(state.program);
    note_unfinished(state);
    timeline_.step_time = std::max(timeline_.step_time, state.host_free);
  }
  summarise(timeline_, programs, prices_.kernel_gap());
}

/// Who still waits, and for what: a deadlock, or a program that verify_step() refuses.
void Simulation::note_unfinished(const ClassState& state) {
  for (const LaneState& lane : state.lanes) {
    if (lane.head >= lane.queue.size()) continue;
    const Instance& head = state.instances[lane.queue[lane.head]];
    const Op& op = state.program->ops[head.op];
    std::string text = std::string(op.role) + " on " + name_of(op.lane);
    for (std::uint16_t i = 0; i < head.waits; ++i) {
      const Instance& from = state.instances[state.waits[head.first_wait + i]];
      if (!from.ended) text += std::string(" waits for ") + state.program->ops[from.op].role;
    }
    if (lane.arrived) text += " waits for its peers";
    timeline_.unfinished.push_back(std::move(text));
  }
}

std::vector<const RankProgram*> programs_of(const StepProgram& program) {
  std::vector<const RankProgram*> result;
  for (const RankClass& ranks : program.classes) result.push_back(&ranks.program);
  return result;
}

}  // namespace

Timeline simulate_step(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                       const SimulateOptions& options) {
  Timeline timeline = Simulation(program, cluster, calibration, options, 1).run();
  const GemmPrice& gemm = calibration.gemm;
  const double duty = matrix_duty(timeline, programs_of(program));
  const double share = std::clamp((duty - gemm.sag_from) / (gemm.sag_full - gemm.sag_from), 0.0, 1.0);
  if (gemm.sag > 1 && share > 0) {
    timeline = Simulation(program, cluster, calibration, options, 1 + (gemm.sag - 1) * share).run();
  }
  return timeline;
}

}  // namespace plimsoll
