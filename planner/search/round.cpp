// The loop of a branch and bound (planner/search/round.hpp).
//
// The queue holds choices by the time that the most promising of their undecided candidates is expected to take
// (planner/search/round_order.cpp).  The first is taken, its candidates are judged by what is known by now, and what is left
// of it is asked of short models or evaluated.  Several choices are taken at once, and their results are entered in order, so
// that the answer does not depend on timing where the time suffices.
#include "planner/search/round.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/base/in_parallel.hpp"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

namespace reason {
constexpr const char* states = "parameters and optimizer states alone exceed the GPU's memory";
constexpr const char* activations = "states and what a micro-batch keeps for its backward exceed the GPU's memory";
constexpr const char* host = "what is offloaded exceeds the node's memory";
constexpr const char* smaller =
    "its tensors alone exceed the GPU, by those of smaller micro-batches, shorter models or thriftier plans";
constexpr const char* device_breaks = "evaluated: it does not fit the GPU";
constexpr const char* host_breaks = "evaluated: it does not fit the node's memory";
constexpr const char* tight = "evaluated: it fits only tightly";
constexpr const char* tight_at_best = "its tensors leave so little of the GPU's memory that it fits tightly at best";
constexpr const char* bound = "a plan already found is faster than its bound";
constexpr const char* slower = "evaluated: its step takes longer than that of the best plan";
constexpr const char* illegal = "refused for the size of its batch";
constexpr const char* time_up = "not looked at: the time was up";
constexpr const char* other = "more GPUs or memory than asked for";
}  // namespace reason

}  // namespace

double seconds_per_token(const Space& space, const CandidateId& id, double step_s) {
  const std::int64_t sequences = space.micro_batches()[id.micro] * id.accumulation * space.choices()[id.choice].world;
  return step_s / (static_cast<double>(sequences) * static_cast<double>(space.asked().plan.sequence));
}

Round::Round(RoundContext& context, const RoundLimit& limit) : context_(context), limit_(limit) {}

/// The best plan that earlier rounds found within these limits is what the others have to beat.
void Round::take_known() {
  for (const auto& [id, evaluated] : context_.memo.all()) {
    if (!fits(evaluated) || (limit_.world > 0 && context_.space.choices()[id.choice].world != limit_.world)) continue;
    const double time = seconds_per_token(context_.space, id, evaluated.step_time_s);
    if (is_beaten(time, id)) continue;
    result_.best = id;
    result_.best_seconds_per_token = time;
  }
}

RoundResult Round::run() {
  take_known();
  open_choices();
  while (true) {
    std::vector<Task> tasks = next_tasks();
    if (tasks.empty()) break;
    work(tasks);
    for (Task& task : tasks) {
      enter_outlines(task);
      for (std::size_t i = 0; i < task.results.size(); ++i) {
        context_.memo.add(task.ids[i], task.results[i]);
        learn(task.ids[i], task.results[i].step_time_s);
      }
    }
    for (Task& task : tasks) {
      if (refresh(task.open)) begun_.push(std::move(task.open));
    }
    if (context_.options.progress) {
      const double best = result_.best ? 1 / result_.best_seconds_per_token : 0;
      const std::size_t open = queue_.size() + begun_.size();
      const Memo& memo = context_.memo;
      context_.options.progress(
          {static_cast<std::int64_t>(memo.all().size()), static_cast<std::int64_t>(memo.estimates()), best, open});
    }
    if (limit_.first_is_enough && result_.best) break;
    if (time_is_up()) break;
  }
  close_rest();
  return std::move(result_);
}

bool Round::time_is_up() const { return context_.is_over(result_.best ? context_.deadline : context_.last_moment); }

void Round::exclude(const char* why, std::int64_t count) {
  if (count > 0) result_.excluded[why] += count;
}

/// Index of the last micro-batch that the closed form does not exclude; -1: none.
int Round::last_micro_in_memory(const PlanBounds& bounds) const {
  const auto& sizes = context_.space.micro_batches();
  const auto beyond = std::partition_point(sizes.begin(), sizes.end(), [&](std::int64_t micro) {
    return bounds.device_memory(micro) <= limit_.device_memory;
  });
  return static_cast<int>(beyond - sizes.begin()) - 1;
}

/// Seconds per token, of any candidate of the choice up to a micro-batch.
double Round::least_bound(std::uint32_t choice, int last_micro) const {
  const Space& space = context_.space;
  double least = std::numeric_limits<double>::infinity();
  for (int m = 0; m <= last_micro; ++m) {
    const auto micro = static_cast<std::uint16_t>(m);
    const std::int64_t size = space.micro_batches()[micro];
    for (const std::int64_t accumulation : space.accumulations(space.choices()[choice], size)) {
      const double step_s = context_.bounds[choice].step_seconds(size, accumulation);
      least = std::min(least, seconds_per_token(space, {choice, micro, accumulation}, step_s));
    }
  }
  return least;
}

void Round::open_choices() {
  const Space& space = context_.space;
  const auto& sizes = space.micro_batches();
  const Bytes host_capacity = space.asked().cluster.host_memory;
  for (std::uint32_t i = 0; i < space.choices().size(); ++i) {
    const Choice& choice = space.choices()[i];
    const PlanBounds& bounds = context_.bounds[i];
    const auto count = [&](std::size_t from, std::size_t to) {
      std::int64_t candidates = 0;
      for (std::size_t m = from; m < to; ++m)
        candidates += static_cast<std::int64_t>(space.accumulations(choice, sizes[m]).size());
      return candidates;
    };
    if (limit_.world > 0 && choice.world != limit_.world) {
      exclude(reason::other, count(0, sizes.size()));
      continue;
    }
    if (host_capacity.count > 0 && bounds.host_memory() > host_capacity) {
      exclude(reason::host, count(0, sizes.size()));
      continue;
    }
    const int last = last_micro_in_memory(bounds);
    exclude(bounds.states() > limit_.device_memory ? reason::states : reason::activations,
            count(static_cast<std::size_t>(last) + 1, sizes.size()));
    if (last < 0) continue;
    Open open;
    open.choice = i;
    open.closed_form_to = last + 1;
    open.bound = least_bound(i, last);
    open.turn = turn_of(open);
    queue_.push(std::move(open));
  }
}

/// Writes down the candidates of a choice, once it is its turn.
void Round::list(Open& open) {
  const Space& space = context_.space;
  open.listed = true;
  for (int m = 0; m < open.closed_form_to; ++m) {
    const auto micro = static_cast<std::uint16_t>(m);
    const auto accumulations = space.accumulations(space.choices()[open.choice], space.micro_batches()[micro]);
    for (const std::int64_t accumulation : accumulations) {
      if (limit_.once && accumulation != accumulations.back()) continue;
      open.live.push_back({open.choice, micro, accumulation});
    }
  }
}

bool Round::fits(const Evaluated& evaluated) const {
  if (!evaluated.judged) return false;
  if (limit_.caps_peak && evaluated.job_device_peak > limit_.device_memory) return false;
  return evaluated.verdict == Verdict::fits || (limit_.accept_tight && evaluated.verdict == Verdict::tight);
}

bool Round::is_beaten(double time, const CandidateId& id) const {
  if (!result_.best) return false;
  if (time != result_.best_seconds_per_token) return time > result_.best_seconds_per_token;
  return id > *result_.best;
}

/// Takes an evaluation into account.
void Round::settle(Open& open, const CandidateId& id, const Evaluated& evaluated) {
  if (evaluated.refused) return exclude(reason::illegal);
  const auto micro = static_cast<int>(id.micro);
  const bool holds = !evaluated.judged || evaluated.verdict != Verdict::oom;
  if (holds) open.fits_up_to = std::max(open.fits_up_to, micro);
  const double time = seconds_per_token(context_.space, id, evaluated.step_time_s);
  if (fits(evaluated)) {
    const bool is_the_best = result_.best && *result_.best == id;
    if (!is_the_best) {
      if (is_beaten(time, id)) return exclude(reason::slower);
      if (best_is_settled_) exclude(reason::slower);  // the one that was the best so far
    }
    result_.best = id;
    result_.best_seconds_per_token = time;
    best_is_settled_ = true;
    return;
  }
  if (!evaluated.judged) return exclude(reason::slower);
  open.known[Memo::kind_of(id)].breaks_at(micro);
  if (evaluated.verdict == Verdict::tight) return exclude(reason::tight);
  if (evaluated.verdict == Verdict::fits) return exclude(reason::other);
  exclude(evaluated.host_breaks ? reason::host_breaks : reason::device_breaks);
}

Bytes Round::room() const {
  const Bytes capacity = context_.space.asked().cluster.device.memory;
  return limit_.caps_peak ? std::min(capacity, limit_.device_memory) : capacity;
}

/// By what is known of smaller micro-batches, of choices that save more, and of short models.
bool Round::has_no_room(const CandidateId& id) const { return context_.memo.least_memory(id) > room(); }

/// It may fit tightly, which is not asked for.
bool Round::is_tight_at_best(const CandidateId& id) const {
  return !limit_.accept_tight && context_.memo.least_to_fit(id) > context_.space.asked().cluster.device.memory;
}

/// True if the candidate needs no evaluation; else its lower bound.
bool Round::decide(Open& open, const CandidateId& id, double& lower) {
  const Evaluated* known = context_.memo.find(id);
  if (known != nullptr) {
    const bool enough =
        known->judged || known->refused || is_beaten(seconds_per_token(context_.space, id, known->step_time_s), id);
    if (enough) {
      settle(open, id, *known);
      return true;
    }
  }
  if (has_no_room(id)) {
    exclude(reason::smaller);
    return true;
  }
  if (is_tight_at_best(id)) {
    exclude(reason::tight_at_best);
    return true;
  }
  const Lower found = context_.memo.lower(id, context_.bounds[open.choice]);
  lower = seconds_per_token(context_.space, id, found.step_s);
  if (!is_beaten(lower, id)) return false;
  exclude(found.reason != nullptr ? found.reason : reason::bound);
  return true;
}

/// Drops what is decided by now; false if nothing is left.
bool Round::refresh(Open& open) {
  if (!open.listed) list(open);
  double least = std::numeric_limits<double>::infinity();
  CandidateId weakest;
  open.turn = least;
  // What was evaluated counts before what is judged by it.
  std::stable_partition(open.live.begin(), open.live.end(),
                        [&](const CandidateId& id) { return context_.memo.find(id) != nullptr; });
  std::erase_if(open.live, [&](const CandidateId& id) {
    double lower = 0;
    if (decide(open, id, lower)) return true;
    if (lower < least) {
      least = lower;
      weakest = id;
    }
    aim(open, id, lower);
    return false;
  });
  open.bound = std::max(open.bound, least);
  // Of what is not expected to beat the best plan the weakest bounds come first.
  if (has_outlines() && !open.live.empty() && is_beaten(open.turn, open.target)) {
    open.target = weakest;
    open.turn = result_.best_seconds_per_token + open.bound;
  }
  return !open.live.empty();
}

void Round::evaluate(Task& task, double best) const {
  const Space& space = context_.space;
  Scenario scenario{space.asked().model, space.asked().cluster, {}};
  for (const CandidateId& id : task.ids) {
    scenario.plan = space.plan(space.choices()[id.choice], space.micro_batches()[id.micro], id.accumulation);
    if (!space.is_legal(scenario.plan)) {
      task.results.emplace_back().refused = true;
      continue;
    }
    const double worth = best / seconds_per_token(space, id, 1);
    task.results.push_back(context_.evaluate(scenario, worth));
  }
}

/// What the time does not suffice for stays undone.
void Round::work(std::vector<Task>& tasks) const {
  const double best = result_.best ? result_.best_seconds_per_token : std::numeric_limits<double>::infinity();
  in_parallel(context_.options.threads, tasks.size(), [&](std::size_t index) {
    if (index > 0 && time_is_up()) return;
    outline(tasks[index]);
    evaluate(tasks[index], best);
  });
}

/// What is still in the queue was not looked at, or cannot be better.
void Round::close_rest() {
  result_.proven = true;
  result_.least_bound = result_.least_expected = std::numeric_limits<double>::infinity();
  for (; !begun_.empty(); begun_.pop()) queue_.push(begun_.top());
  while (!queue_.empty()) {
    Open open = queue_.top();
    queue_.pop();
    if (!refresh(open)) continue;
    result_.proven = false;
    result_.least_bound = std::min(result_.least_bound, open.bound);
    for (const CandidateId& id : open.live)
      result_.least_expected = std::min(result_.least_expected, std::max(open.bound, expected_if_it_fits(id)));
    exclude(reason::time_up, static_cast<std::int64_t>(open.live.size()));
  }
}

}  // namespace plimsoll
