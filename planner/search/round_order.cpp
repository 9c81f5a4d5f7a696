// What does a search look at next?  The choice whose most promising candidate is expected to take least time a token:
//
//   estimated       by short models (planner/search/short_model.hpp); far more where it is not expected to fit
//   a relative was  a little more than the same plan with the engine's own buckets; or than the best estimate of its choice
//   nothing known   its lower bound, times how much more than their bounds plans of its kind were seen to take
//
// Estimates look for the largest micro-batch that is expected to fit.  Once a plan is known, the layers' own time comes before an
// estimate: it costs a tenth of one, and decides about all choices of the same layers.  A target that is expected to be better
// than the best plan found is estimated more closely, then evaluated.  Of what is not, those come first whose bounds are the
// weakest: short models tell what they take at least, in time and in memory, which may decide them; else they are evaluated.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "planner/account/tight.hpp"
#include "planner/search/round.hpp"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// Tasks of like length: with a few a thread none waits long for the others.  An evaluation takes as long as a dozen outlines.
constexpr std::size_t tasks_a_thread = 3, tasks_beside_evaluations = 12;

/// Small buckets, and micro-batches that are not the best of their choice, seldom take less time.
constexpr double more_for_small_buckets = 0.02, more_for_another_micro_batch = 0.02;
/// One between the largest that fits and the smallest that does not often takes a little less.
constexpr double less_for_a_larger_micro_batch = 0.02;

/// What is not expected to fit waits the longer the more it lacks, and at last until everything else has had its turn.
constexpr double more_for_what_lacks = 2, most_for_what_lacks = 2;

/// Before a plan of its kind was seen: offload seldom costs less than a fifth of a step.
constexpr double more_for_offload = 0.2;

double small_ones(const Choice& choice) {
  return static_cast<double>(choice.small_buckets) + static_cast<double>(choice.small_gathers);
}

}  // namespace

double Round::missed_by(const Choice& choice) const {
  const auto missed = missed_by_.find(kind_of(choice));
  const double kind =
      missed != missed_by_.end() ? missed->second : 1 + more_for_offload * static_cast<double>(choice.offload);
  return kind + more_for_small_buckets * small_ones(choice);
}

double Round::turn_of(const Open& open) const { return open.bound * missed_by(context_.space.choices()[open.choice]); }

/// How much longer than its closed form a plan of its kind takes, at least, of those seen.
void Round::learn(const CandidateId& id, double step_s) {
  const Choice& choice = context_.space.choices()[id.choice];
  const double bound =
      context_.bounds[id.choice].step_seconds(context_.space.micro_batches()[id.micro], id.accumulation);
  if (bound <= 0 || step_s < bound || !std::isfinite(step_s)) return;
  const double ratio = step_s / bound;
  double& missed = missed_by_.try_emplace(kind_of(choice), ratio).first->second;
  missed = std::min(missed, ratio);
}

/// At most 1 if it is expected to fit.
double Round::share_of_room(const Memo::Estimate& estimate) const {
  const double accepted = limit_.accept_tight ? 1 - tight_share : 1;
  return accepted * (estimate.to_fit / room());
}

bool Round::is_expected_to_fit(const Memo::Estimate& estimate) const { return share_of_room(estimate) <= 1; }

/// Seconds a token, by its estimate; infinite if it has none or is not expected to fit.
double Round::expected_if_it_fits(const CandidateId& id) const {
  const Memo::Estimate* estimate = context_.memo.estimate(id);
  if (estimate == nullptr || estimate->step_s <= 0 || !is_expected_to_fit(*estimate))
    return std::numeric_limits<double>::infinity();
  return seconds_per_token(context_.space, id, estimate->step_s);
}

/// Seconds a token, of a candidate that was not estimated.
double Round::guessed(const Open& open, const CandidateId& id, double lower) const {
  const Space& space = context_.space;
  const Choice& choice = space.choices()[open.choice];
  const Memo::Estimate* plain = context_.memo.plain_estimate(id);
  if (plain != nullptr && plain->step_s > 0)
    return seconds_per_token(space, id, plain->step_s) * (1 + more_for_small_buckets * small_ones(choice));
  const Known& known = open.known[Memo::kind_of(id)];
  const double least = known.least_that_fits_s > 0 ? known.least_that_fits_s : known.least_s;
  if (least > 0)
    return least *
           (known.next_to_try() == id.micro ? 1 - less_for_a_larger_micro_batch : 1 + more_for_another_micro_batch);
  const std::int64_t micro = space.micro_batches()[id.micro];
  const double bound = context_.bounds[open.choice].step_seconds(micro, id.accumulation);
  return std::max(lower, seconds_per_token(space, id, bound) * missed_by(choice));
}

/// Seconds a token.
double Round::expected(const Open& open, const CandidateId& id, double lower) const {
  const Memo::Estimate* estimate = context_.memo.estimate(id);
  if (estimate != nullptr && estimate->step_s > 0) {
    const double lacks = std::max(0.0, share_of_room(*estimate) - 1);
    const double more = std::min(most_for_what_lacks, 1 + more_for_what_lacks * lacks);
    return std::max(lower, more * seconds_per_token(context_.space, id, estimate->step_s));
  }
  const Known& known = open.known[Memo::kind_of(id)];
  const bool breaks = known.breaks_from >= 0 && id.micro >= known.breaks_from;
  return std::max(lower, (breaks ? most_for_what_lacks : 1) * guessed(open, id, lower));
}

/// Makes the candidate its choice's target if it is expected to take less time; a larger one if it takes as much.
void Round::aim(Open& open, const CandidateId& id, double lower) const {
  constexpr double rounding = 1e-9;
  const double time = expected(open, id, lower);
  const bool is_first = std::isinf(open.turn);
  const bool as_good = !is_first && std::abs(time - open.turn) <= rounding * open.turn;
  if (as_good ? id > open.target : is_first || time < open.turn) {
    open.target = id;
    open.turn = time;
  }
}

/// Enters what short models told.
void Round::enter_outlines(Task& task) {
  for (const Outlined& found : task.outlined) {
    switch (task.what) {
      case OutlineOf::layers: context_.memo.add_floor(found.id, found.outline); break;
      case OutlineOf::memory: context_.memo.add_memory(found.id, found.outline); break;
      case OutlineOf::step:
      case OutlineOf::close_step:
        context_.memo.add_estimate(found.id, found.outline, task.what == OutlineOf::close_step);
        if (found.outline.expected_s > 0) learn_of(task.open, found.id);
        break;
    }
  }
}

/// From the estimate of one of its candidates.
void Round::learn_of(Open& open, const CandidateId& id) {
  const Memo::Estimate& estimate = *context_.memo.estimate(id);
  learn(id, estimate.step_s);
  Known& known = open.known[Memo::kind_of(id)];
  const double time = seconds_per_token(context_.space, id, estimate.step_s);
  const auto take_least = [&](double& least) { least = least > 0 ? std::min(least, time) : time; };
  take_least(known.least_s);
  if (!is_expected_to_fit(estimate)) return known.breaks_at(id.micro);
  take_least(known.least_that_fits_s);
  known.fits_to = std::max(known.fits_to, static_cast<int>(id.micro));
}

/// Without outlines: the two smallest micro-batches, from which the memory of the others follows; then the largest that may
/// fit, since large micro-batches are fast; then the one with the least bound.
std::vector<CandidateId> Round::choose(const Open& open) const {
  if (has_outlines()) return {open.target};
  std::uint16_t smallest = open.live.front().micro, largest = 0;
  for (const CandidateId& id : open.live) {
    smallest = std::min(smallest, id.micro);
    largest = std::max(largest, id.micro);
  }
  const bool above = static_cast<int>(largest) > open.fits_up_to;
  const std::uint16_t micro = context_.memo.known_sizes(open.choice) < 2 ? smallest
                              : above                                    ? largest
                                                                         : open.target.micro;
  std::vector<CandidateId> ids;
  for (const CandidateId& id : open.live)
    if (id.micro == micro) ids.push_back(id);
  // Where more accumulation bounds less, the most of it decides about the rest.
  if (context_.options.larger_steps_bound && ids.size() > 1) {
    const auto most = *std::max_element(ids.begin(), ids.end());
    ids = {most};
  }
  return ids;
}

/// From half of the time on plans are evaluated, even if some that are not estimated seem more promising; and sooner where
/// there is no answer yet.
bool Round::evaluations_are_due() const {
  return Clock::now() >= start_ + (context_.deadline - start_) / (result_.best ? 2 : 4);
}

/// Aims at the estimated candidate that is expected to fit and to take least time.
/// @return seconds per token; infinite: there is none
double Round::aim_at_what_fits(Open& open) const {
  double least = std::numeric_limits<double>::infinity();
  for (const CandidateId& id : open.live) {
    const double time = expected_if_it_fits(id);
    if (time >= least) continue;
    least = time;
    open.target = id;
  }
  return least;
}

/// The best of what was estimated so far and beats the best plan found: estimated closely, then evaluated, a plan a thread.
std::vector<Round::Task> Round::take_what_fits(std::size_t threads) {
  std::vector<std::pair<double, Open>> opens;
  for (; !begun_.empty(); begun_.pop()) {
    Open open = begun_.top();
    if (!refresh(open)) continue;
    const double time = aim_at_what_fits(open);
    opens.emplace_back(time, std::move(open));
  }
  std::stable_sort(opens.begin(), opens.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Task> tasks;
  std::size_t evaluations = 0;
  for (auto& [time, open] : opens) {
    const bool is_worth_it = std::isfinite(time) && !is_beaten(time, open.target);
    if (!is_worth_it || evaluations == threads || tasks.size() == tasks_a_thread * threads) {
      begun_.push(std::move(open));
      continue;
    }
    Task& task = tasks.emplace_back();
    if (context_.memo.estimate(open.target)->is_close) {
      task.ids = {open.target};
      ++evaluations;
    } else {
      task.what = OutlineOf::close_step;
      task.asked = {open.target};
    }
    task.open = std::move(open);
  }
  return tasks;
}

/// By their turns; without outlines half of the tasks go on with choices that were begun, so that good plans are found early.
std::vector<Round::Task> Round::next_tasks() {
  std::vector<Task> tasks;
  const auto threads = static_cast<std::size_t>(std::max(1, context_.options.threads));
  if (!has_outlines()) {
    const std::size_t most = tasks_a_thread * threads;
    take(begun_, queue_.empty() ? most : most / 2, tasks);
    take(queue_, most, tasks);
    return tasks;
  }
  if (evaluations_are_due()) tasks = take_what_fits(threads);
  auto evaluations = static_cast<std::size_t>(
      std::count_if(tasks.begin(), tasks.end(), [](const Task& task) { return !task.ids.empty(); }));
  while (evaluations < threads && !(queue_.empty() && begun_.empty())) {
    if (tasks.size() >= threads * (evaluations > 0 ? tasks_beside_evaluations : tasks_a_thread)) break;
    const bool go_on =
        queue_.empty() || (!begun_.empty() && (begun_.top().turn <= queue_.top().turn || evaluations_are_due()));
    if (take_one(go_on ? begun_ : queue_, tasks) && !tasks.back().ids.empty()) ++evaluations;
  }
  std::stable_partition(tasks.begin(), tasks.end(), [](const Task& task) { return !task.ids.empty(); });
  return tasks;
}

void Round::take(Queue& queue, std::size_t most, std::vector<Task>& tasks) {
  while (tasks.size() < most && !queue.empty()) take_one(queue, tasks);
}

/// The first of the queue; false if it is decided by now or its turn comes later.
bool Round::take_one(Queue& queue, std::vector<Task>& tasks) {
  Open open = queue.top();
  queue.pop();
  const double before = open.turn;
  if (!refresh(open)) return false;
  if (open.turn > before) {
    queue.push(std::move(open));
    return false;
  }
  Task task;
  task.open = std::move(open);
  if (!plan_outlines(task)) task.ids = choose(task.open);
  tasks.push_back(std::move(task));
  return true;
}

/// Whose layers to lay out so that something is known of the target's: where nothing is known down to half its micro-batch, those
/// of that half, which bound all between the two; else its own.
CandidateId Round::to_lay_out(const Open& open) const {
  const std::vector<std::int64_t>& sizes = context_.space.micro_batches();
  CandidateId half = open.target;
  for (const CandidateId& id : open.live) {
    if (id.micro >= open.target.micro || 2 * sizes[id.micro] < sizes[open.target.micro]) continue;
    if (context_.memo.knows_floor(id)) return open.target;
    if (id.micro < half.micro) half = id;
  }
  return half;
}

/// True if short models are to be asked before the target is evaluated.
bool Round::plan_outlines(Task& task) const {
  if (!has_outlines()) return false;
  const Memo& memo = context_.memo;
  const CandidateId& target = task.open.target;
  const auto ask = [&](OutlineOf what) {
    task.what = what;
    task.asked = {target};
    return true;
  };
  // What the layers alone take costs less than an estimate, and decides about all choices whose layers are the same.
  if (result_.best && !memo.knows_floor(target)) {
    task.what = OutlineOf::layers;
    task.asked = {to_lay_out(task.open)};
    return true;
  }
  const Memo::Estimate* estimate = memo.estimate(target);
  if (!is_beaten(task.open.turn, target)) {
    if (estimate == nullptr) return ask(OutlineOf::step);
    if (is_expected_to_fit(*estimate) || !result_.best)
      return !estimate->is_close && estimate->step_s > 0 && ask(OutlineOf::close_step);
  }
  std::map<std::uint16_t, CandidateId> alike;  // of the target's kind, by micro-batch
  for (const CandidateId& id : task.open.live)
    if (Memo::kind_of(id) == Memo::kind_of(target)) alike.try_emplace(id.micro, id);
  if (!memo.knows_outline(alike.rbegin()->second)) {
    task.what = OutlineOf::memory;
    for (const auto& [micro, id] : alike) task.asked.push_back(id);
    return true;
  }
  return estimate == nullptr && ask(OutlineOf::step);
}

/// For memory, halves the micro-batches until the largest with room is known: what they take grows.
void Round::outline(Task& task) const {
  const Space& space = context_.space;
  Scenario scenario{space.asked().model, space.asked().cluster, {}};
  const auto has_room = [&](const CandidateId& id) {
    scenario.plan = space.plan(space.choices()[id.choice], space.micro_batches()[id.micro], id.accumulation);
    task.outlined.push_back({id, {}});
    const bool is_legal = space.is_legal(scenario.plan);
    // Outlines of that kind hold for two micro-batches, too.
    if (task.what == OutlineOf::memory && Memo::kind_of(id) == 0) scenario.plan.gradient_accumulation = 1;
    if (is_legal) task.outlined.back().outline = context_.options.outline(scenario, task.what);
    const Outline& found = task.outlined.back().outline;
    const bool tight_at_best = !limit_.accept_tight && found.least_to_fit > space.asked().cluster.device.memory;
    return found.least_memory <= room() && !tight_at_best;
  };
  if (task.what != OutlineOf::memory) {
    for (const CandidateId& id : task.asked) has_room(id);
    return;
  }
  std::size_t first = 0, end = task.asked.size();  // all before `first` have room, all from `end` on have none
  while (first < end) {
    const std::size_t middle = (first + end) / 2;
    if (has_room(task.asked[middle]))
      first = middle + 1;
    else
      end = middle;
  }
}

}  // namespace plimsoll
