// Hosts, lanes, meetings and rates (simulator/event_loop.hpp).
#include "simulator/event_loop.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/base/give_up.hpp"
#include "simulator/summary.hpp"

namespace plimsoll {

namespace {

constexpr auto compute = static_cast<std::size_t>(Lane::compute);
constexpr auto copy_in = static_cast<std::size_t>(Lane::copy_in);

SimTime nearest(double time) {
  return static_cast<SimTime>(time + 0.5);  // NOLINT(bugprone-incorrect-roundings): no time is negative
}

}  // namespace

EventLoop::EventLoop(std::vector<RanksOnClock> ranks, const Prices& prices, std::size_t groups, int tell_of)
    : classes_(ranks.size()),
      prices_(prices),
      gap_(prices.kernel_gap()),
      latency_(prices.launch_latency()),
      depth_(static_cast<std::uint32_t>(prices.queue_depth())),
      tell_of_(tell_of),
      arrivals_(groups * lane_count) {
  for (std::size_t c = 0; c < ranks.size(); ++c) {
    classes_[c].ranks = std::move(ranks[c]);
    classes_[c].instances.resize(classes_[c].ranks.priced->order.size());
  }
}

Timeline& EventLoop::run(double sag) {
  reset(sag);
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    run_host(c);
    find_earliest(classes_[c]);
  }
  while (true) {
    std::size_t c = 0;
    SimTime best = never;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      if (classes_[i].earliest >= best) continue;
      best = classes_[i].earliest;
      c = i;
    }
    if (best == never) break;
    give_up_if_unwanted();
    now_ = best;
    step(c, classes_[c].earliest_lane);
  }
  finalise();
  return timeline_;
}

void EventLoop::reset(double sag) {
  sag_ = sag;
  now_ = 0;
  std::vector<TimedOp> ops = std::move(timeline_.ops);
  timeline_ = {};
  timeline_.ops = std::move(ops);
  timeline_.ops.clear();
  for (auto& meeting : arrivals_) meeting.clear();
  std::size_t count = 0;
  for (ClassState& state : classes_) {
    state.lanes = {};
    state.next.fill(never);
    state.blocked_on.fill(none);
    state.blocked = 0;
    state.at = 0;
    state.host_waits_for = -1;
    state.host_free = state.host_busy = state.idle_since = state.idle = 0;
    state.last_sync = none;
    state.resident = state.running = 0;
    count += state.instances.size();
    timeline_.evidence = std::max(timeline_.evidence, state.ranks.priced->evidence);
    timeline_.classes.push_back({state.ranks.of_class, state.ranks.name});
  }
  timeline_.ops.reserve(count);
}

// ---- host ----

void EventLoop::run_host(std::size_t c) {
  ClassState& state = classes_[c];
  const PricedProgram& program = *state.ranks.priced;
  const auto count = static_cast<std::uint32_t>(program.order.size());
  unsigned woken = 0;  // lanes that had nothing to do, a bit each
  state.host_waits_for = -1;
  for (; state.at < count; ++state.at) {
    const PricedOp& op = program.of(state.at);
    const double factor = op.by_memory ? state.ranks.memory_factor : state.ranks.host_factor;
    const SimTime cost = factor == 1 ? op.host : static_cast<SimTime>(static_cast<double>(op.host) * factor);
    if (op.what == PricedOp::What::host_work) {
      state.host_free += cost;
      state.host_busy += cost;
      if (op.noted) note_host(c, op, cost, none);
      continue;
    }
    const auto l = static_cast<std::size_t>(op.lane);
    LaneState& lane = state.lanes[l];
    const std::uint32_t outstanding = lane.issued - lane.head;
    if (op.what == PricedOp::What::host_sync) {
      if (outstanding > 0) {
        state.host_waits_for = static_cast<int>(l);
        state.host_goes_on_at = 0;
        break;
      }
      const SimTime began = state.host_free;
      state.host_free = std::max(state.host_free, lane.free_at) + cost;
      state.host_busy += cost;
      note_host(c, op, state.host_free - began, lane.last);
      continue;
    }
    if (outstanding >= depth_) {
      state.host_waits_for = static_cast<int>(l);
      state.host_goes_on_at = depth_ - like_next(state, std::max(1U, depth_ / 2));
      break;
    }
    if (lane.issued >= depth_)
      state.host_free = std::max(state.host_free, state.instances[program.lanes[l][lane.issued - depth_]].ended);
    state.host_free += cost;
    state.host_busy += cost;
    // The first of several kernels runs while the host launches the others, and the last is not done before it is launched.
    const SimTime launched = state.host_free - std::min(op.repeats, op.work);
    state.instances[state.at] = {launched + latency_, not_ended, state.last_sync};
    if (outstanding == 0) woken |= 1U << l;
    ++lane.issued;
  }
  for (std::size_t l = 0; woken != 0; ++l, woken >>= 1) {
    if ((woken & 1U) == 0) continue;
    refresh(state, l);
    disturbed_ = true;
  }
}

/// How many ops from the next one on are of one lane, as far as it matters: they can be issued together.
std::uint32_t EventLoop::like_next(const ClassState& state, std::uint32_t most) const {
  const PricedProgram& program = *state.ranks.priced;
  const auto end = std::min<std::size_t>(state.at + most, program.order.size());
  const Lane lane = program.of(state.at).lane;
  std::uint32_t next = state.at + 1;
  while (next < end && program.of(next).what == PricedOp::What::device && program.of(next).lane == lane) ++next;
  return next - state.at;
}

void EventLoop::note_host(std::size_t c, const PricedOp& op, SimTime took, std::uint32_t waited_for) {
  ClassState& state = classes_[c];
  const std::uint32_t before = waited_for == none ? state.last_sync : waited_for;
  state.last_sync = static_cast<std::uint32_t>(timeline_.ops.size());
  note(c, op, Lane::host, Cause::host, before, state.host_free - took, state.host_free);
}

/// Adds an op to the timeline, written where it stays: a copy of what was just written waits until that is there.
void EventLoop::note(std::size_t c, const PricedOp& op, Lane lane, Cause cause, std::uint32_t waited_for, SimTime start,
                     SimTime end) {
  TimedOp& timed = timeline_.ops.emplace_back();
  timed.op = op.op;
  timed.class_index = static_cast<std::uint16_t>(c);
  timed.lane = lane;
  timed.cause = cause;
  timed.share = op.share;
  timed.waited_for = waited_for;
  timed.start = start;
  timed.end = end;
}

// ---- device ----

void EventLoop::find_earliest(ClassState& state) {
  state.earliest = never;
  for (std::size_t l = 0; l < lanes_on_device; ++l) {
    if (state.next[l] >= state.earliest) continue;
    state.earliest = state.next[l];
    state.earliest_lane = l;
  }
}

/// When the next event is that is not this lane's.
SimTime EventLoop::due_elsewhere(std::size_t c, std::size_t l) const {
  SimTime due = never;
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    if (i != c) due = std::min(due, classes_[i].earliest);
  }
  for (std::size_t j = 0; j < lanes_on_device; ++j) {
    if (j != l) due = std::min(due, classes_[c].next[j]);
  }
  return due;
}

/// When the lane's head can start and what it will have waited for; never if that is not known yet.  The lane is idle.
void EventLoop::refresh(ClassState& state, std::size_t l) {
  LaneState& lane = state.lanes[l];
  if (lane.head >= lane.issued) return;
  const PricedProgram& program = *state.ranks.priced;
  const std::uint32_t head = program.lanes[l][lane.head];
  const Issued& issued = state.instances[head];
  lane.instance = head;
  lane.op = &program.of(head);
  SimTime at = lane.head > 0 ? lane.free_at + gap_ : lane.free_at;
  Cause cause = lane.head > 0 ? Cause::lane : Cause::start;
  std::uint32_t waited_for = lane.last;
  if (issued.at > at) {
    at = issued.at;
    cause = Cause::host;
    waited_for = issued.mark;
  }
  for (std::uint32_t e = program.first_edge[head]; e < program.first_edge[head + 1]; ++e) {
    const std::uint32_t from = program.edges[e];
    const Issued& before = state.instances[from];
    if (before.ended == not_ended) {
      state.blocked_on[l] = from;
      ++state.blocked;
      return;
    }
    if (before.ended > at) {
      at = before.ended;
      cause = Cause::edge;
      waited_for = before.mark;
    }
  }
  lane.cause = cause;
  lane.waited_for = waited_for;
  state.next[l] = std::max(now_, at);
}

/// An event of the lane, and those that follow it there before one is due elsewhere.
void EventLoop::step(std::size_t c, std::size_t l) {
  ClassState& state = classes_[c];
  SimTime due = 0;
  disturbed_ = true;
  while (true) {
    if (state.lanes[l].running) {
      finish(c, l);
    } else {
      start(c, l);
    }
    if (std::exchange(disturbed_, false)) due = due_elsewhere(c, l);
    if (state.next[l] >= due) break;
    now_ = state.next[l];
  }
  find_earliest(state);
}

void EventLoop::start(std::size_t c, std::size_t l) {
  ClassState& state = classes_[c];
  const PricedOp& op = *state.lanes[l].op;
  state.lanes[l].started = now_;
  if (op.collective) return meet(c, l, op);
  begin(state, l, op);
  if (state.resident > 0 || l == copy_in || state.lanes[copy_in].running) set_rates(state);
}

/// A collective begins when the last class has arrived.
void EventLoop::meet(std::size_t c, std::size_t l, const PricedOp& op) {
  ClassState& state = classes_[c];
  LaneState& lane = state.lanes[l];
  lane.arrived = disturbed_ = true;
  state.next[l] = never;
  if ((op.resident && state.resident++ == 0) || classes_.size() > 1) set_rates(state);
  auto& meeting = arrivals_[meeting_of(op)];
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
    begin(classes_[i], j, *peer.op);
    classes_[i].flows_changed = true;
  }
  for (const auto& member : meeting) {
    set_rates(classes_[member.first]);
    find_earliest(classes_[member.first]);
  }
  meeting.clear();
}

void EventLoop::begin(ClassState& state, std::size_t l, const PricedOp& op) {
  LaneState& lane = state.lanes[l];
  const double alone = static_cast<double>(op.work) + static_cast<double>(op.sagging) * (sag_ - 1);
  if (state.running++ == 0) state.idle += now_ - state.idle_since;
  lane.arrived = false;
  lane.running = true;
  lane.updated = now_;
  lane.remaining = op.collective ? alone : alone * state.ranks.compute_factor;
  lane.rate = 1;
  state.next[l] = now_ + nearest(lane.remaining);
}

void EventLoop::finish(std::size_t c, std::size_t l) {
  ClassState& state = classes_[c];
  LaneState& lane = state.lanes[l];
  const std::uint32_t instance = lane.instance;
  const PricedOp& op = *lane.op;
  Issued& issued = state.instances[instance];
  issued.ended = now_;
  lane.last = issued.mark = static_cast<std::uint32_t>(timeline_.ops.size());
  note(c, op, static_cast<Lane>(l), lane.cause, lane.waited_for, lane.started, now_);
  lane.running = false;
  lane.free_at = now_;
  ++lane.head;
  state.next[l] = never;
  if (--state.running == 0) state.idle_since = now_;
  if (op.resident) --state.resident;
  if (op.collective) state.flows_changed = true;
  if (op.collective || state.resident > 0 || l == copy_in) set_rates(state);
  refresh(state, l);
  for (std::size_t j = 0; state.blocked > 0 && j < lanes_on_device; ++j) {
    if (state.blocked_on[j] != instance) continue;
    state.blocked_on[j] = none;
    --state.blocked;
    refresh(state, j);
    disturbed_ = true;
  }
  if (state.host_waits_for == static_cast<int>(l) && lane.issued - lane.head <= state.host_goes_on_at) run_host(c);
}

// ---- rates ----

/// Rates of what runs now: fair shares of each tier, and compute beside resident collectives.
void EventLoop::set_rates(ClassState& state) {
  disturbed_ = true;
  if (std::exchange(state.flows_changed, false)) solve_shares(state);
  std::array<const PricedOp*, lanes_on_device> running{};
  const PricedOp* computing = nullptr;
  bool exchanging = false;
  for (std::size_t l = 0; l < lanes_on_device; ++l) {
    if (!state.lanes[l].running) continue;
    running[l] = state.lanes[l].op;
    if (!computing && !running[l]->collective) computing = running[l];
    // An exchange may run on any lane: DeepSpeed's are on the one that computes.
    exchanging = exchanging || (running[l]->collective && running[l]->share == Share::all_to_all);
  }
  const bool beside_copy =
      running[copy_in] != nullptr && running[compute] != nullptr && Prices::memory_bound(running[compute]->kind);
  for (std::size_t l = 0; l < lanes_on_device; ++l) {
    if (running[l] == nullptr) continue;
    if (running[l]->collective) {
      const double stretched = computing && running[l]->resident ? prices_.collective_interference(computing->kind) : 1;
      set_rate(state, l, state.lanes[l].share / stretched);
      continue;
    }
    double rate = state.resident > 0 ? 1 / prices_.interference(running[l]->kind, exchanging) : 1;
    if (beside_copy && (l == compute || l == copy_in)) rate /= Prices::copy_in_interference;
    set_rate(state, l, rate);
  }
}

void EventLoop::solve_shares(ClassState& state) {
  std::array<const Demand*, lanes_on_device> demands{};
  std::array<std::size_t, lanes_on_device> flows{};
  std::size_t n = 0;
  for (std::size_t l = 0; l < lanes_on_device; ++l) {
    if (!state.lanes[l].running || !state.lanes[l].op->collective) continue;
    flows[n] = l;
    demands[n++] = &state.ranks.priced->demands[state.lanes[l].op->demand];
  }
  std::array<double, lanes_on_device> shares{};
  if (n > 0) fair_rates({demands.data(), n}, {shares.data(), n});
  for (std::size_t i = 0; i < n; ++i) state.lanes[flows[i]].share = shares[i];
}

void EventLoop::set_rate(ClassState& state, std::size_t l, double rate) {
  LaneState& lane = state.lanes[l];
  if (lane.rate == rate) return;
  lane.remaining -= static_cast<double>(now_ - lane.updated) * lane.rate;
  lane.updated = now_;
  lane.rate = rate;
  state.next[l] = now_ + nearest(std::max(0.0, lane.remaining) / rate);
}

// ---- results ----

void EventLoop::finalise() {
  for (ClassState& state : classes_) {
    note_unfinished(state);
    timeline_.step_time = std::max({timeline_.step_time, state.host_free, now_});
  }
  timeline_.kernel_gap = gap_;
  summarise(timeline_, tell_of_, gap_);
  const ClassState& told = classes_[timeline_.told];
  timeline_.idle = told.idle;
  if (timeline_.step_time > 0 && !timeline_.lanes.empty()) {
    // Launches are no ops of their own, and what waits for the device is not at work.
    LaneUse& host = timeline_.lanes[static_cast<std::size_t>(Lane::host)];
    host.busy = told.host_busy;
    host.share = static_cast<double>(host.busy) / static_cast<double>(timeline_.step_time);
  }
  if (told.running == 0) timeline_.idle += timeline_.step_time - told.idle_since;
}

/// The ranks that have not come to a collective.
std::string EventLoop::missing_at(std::size_t place) const {
  std::vector<std::string> missing;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    const auto& meeting = arrivals_[place];
    if (std::any_of(meeting.begin(), meeting.end(), [c](const auto& member) { return member.first == c; })) continue;
    missing.push_back(classes_[c].ranks.name);
  }
  return fmt::format("{}", fmt::join(missing, " and "));
}

/// Who still waits, and for what: a deadlock, or a program that verify_step() refuses.
void EventLoop::note_unfinished(const ClassState& state) {
  const PricedProgram& priced = *state.ranks.priced;
  const auto named = [&](const PricedOp& op) {
    return fmt::format("{} (op {}) on the {} lane", priced.program->ops[op.op].role, op.op, name_of(op.lane));
  };
  for (std::size_t l = 0; l < lanes_on_device; ++l) {
    const LaneState& lane = state.lanes[l];
    if (lane.head >= lane.issued) continue;
    const PricedOp& head = *lane.op;
    const std::uint32_t blocked_on = state.blocked_on[l];
    const std::string what = blocked_on != none ? named(priced.of(blocked_on)) : missing_at(meeting_of(head));
    timeline_.unfinished.push_back(fmt::format("{}: {} waits for {}", state.ranks.name, named(head), what));
  }
  if (state.host_waits_for >= 0)
    timeline_.unfinished.push_back(fmt::format("{}: the host waits for the {} lane", state.ranks.name,
                                               name_of(static_cast<Lane>(state.host_waits_for))));
}

}  // namespace plimsoll
