// The loop of a branch and bound (planner/search/round.hpp).
//
// The queue holds choices by the least lower bound of their undecided candidates.  The first is taken, its candidates
// are judged by what is known by now.  If any is left, short models tell the time of its layers and up to which micro-batch
// there may be room; if any is left then, one micro-batch of it is evaluated.  Several choices are taken at once, and their
// results are entered in order, so that the answer does not depend on timing.
#include "planner/search/round.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <set>
#include <thread>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// Tasks differ by ten in length: with a few a thread none waits long for the others.
constexpr std::size_t tasks_a_thread = 3;

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
      for (const Outlined& found : task.outlined) {
        if (task.by_micro.empty())
          context_.memo.add_floor(found.id, found.outline);
        else
          context_.memo.add_memory(found.id, found.outline);
      }
      learn(task);
      for (std::size_t i = 0; i < task.results.size(); ++i) context_.memo.add(task.ids[i], task.results[i]);
    }
    for (Task& task : tasks) {
      if (refresh(task.open)) begun_.push(std::move(task.open));
    }
    if (context_.options.progress) {
      const double best = result_.best ? 1 / result_.best_seconds_per_token : 0;
      const std::size_t open = queue_.size() + begun_.size();
      context_.options.progress({static_cast<std::int64_t>(context_.memo.all().size()), best, open});
    }
    if (limit_.first_is_enough && result_.best) break;
    if (time_is_up()) break;
  }
  close_rest();
  return std::move(result_);
}

bool Round::time_is_up() const { return Clock::now() >= (result_.best ? context_.deadline : context_.last_moment); }

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
            count(static_cast<std::size_t>(last + 1), sizes.size()));
    if (last < 0) continue;
    Open open;
    open.choice = i;
    open.closed_form_to = last + 1;
    const CandidateId first{i, 0, 1};
    open.bound = seconds_per_token(space, first, bounds.step_seconds(sizes.front(), 1));
    open.turn = turn_of(open);
    queue_.push(std::move(open));
  }
}

/// Choices of one kind miss their bounds by much the same.  Before any is evaluated: offload seldom costs less than a fifth of
/// a step, more recomputation of some layers less than of all.
double Round::turn_of(const Open& open) const {
  const Choice& choice = context_.space.choices()[open.choice];
  const double smaller = 0.02 * (static_cast<double>(choice.small_buckets) + static_cast<double>(choice.small_gathers));
  const auto missed = missed_by_.find({choice.stage, choice.experts, choice.offload, choice.recompute_every});
  const double more = missed != missed_by_.end() ? missed->second : 1 + 0.2 * static_cast<double>(choice.offload);
  return open.bound * (more + smaller);
}

/// How much longer than its bound an evaluated plan takes, at least, of its kind.
void Round::learn(const Task& task) {
  const Choice& choice = context_.space.choices()[task.open.choice];
  for (std::size_t i = 0; i < task.results.size(); ++i) {
    const double time = seconds_per_token(context_.space, task.ids[i], task.results[i].step_time_s);
    if (task.open.bound <= 0 || time < task.open.bound || !std::isfinite(time)) continue;
    const double ratio = time / task.open.bound;
    double& missed =
        missed_by_.try_emplace({choice.stage, choice.experts, choice.offload, choice.recompute_every}, ratio)
            .first->second;
    missed = std::min(missed, ratio);
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
  const std::int64_t micro = context_.space.micro_batches()[id.micro];
  const Lower found = context_.memo.lower(id, context_.bounds[open.choice].step_seconds(micro, id.accumulation));
  lower = seconds_per_token(context_.space, id, found.step_s);
  if (!is_beaten(lower, id)) return false;
  exclude(found.reason != nullptr ? found.reason : reason::bound);
  return true;
}

/// Drops what is decided by now; false if nothing is left.
bool Round::refresh(Open& open) {
  if (!open.listed) list(open);
  double least = std::numeric_limits<double>::infinity();
  // What was evaluated counts before what is judged by it.
  std::stable_partition(open.live.begin(), open.live.end(),
                        [&](const CandidateId& id) { return context_.memo.find(id) != nullptr; });
  std::erase_if(open.live, [&](const CandidateId& id) {
    double lower = 0;
    if (decide(open, id, lower)) return true;
    least = std::min(least, lower);
    return false;
  });
  open.bound = std::max(open.bound, least);
  open.turn = turn_of(open);
  return !open.live.empty();
}

/// One micro-batch of the choice: where short models tell what has room, the one with the least bound; else the two smallest, from which the memory of the others follows; then the largest that may
/// fit, since large micro-batches are fast; then the one with the least bound.
std::vector<CandidateId> Round::choose(const Open& open) const {
  std::uint16_t smallest = open.live.front().micro, largest = 0, fastest = smallest;
  double least = std::numeric_limits<double>::infinity();
  for (const CandidateId& id : open.live) {
    smallest = std::min(smallest, id.micro);
    largest = std::max(largest, id.micro);
    const double closed =
        context_.bounds[open.choice].step_seconds(context_.space.micro_batches()[id.micro], id.accumulation);
    const double lower = seconds_per_token(context_.space, id, context_.memo.lower(id, closed).step_s);
    if (lower < least) fastest = id.micro;
    least = std::min(least, lower);
  }
  const bool above = static_cast<int>(largest) > open.fits_up_to;
  std::uint16_t micro = context_.memo.known_sizes(open.choice) < 2 ? smallest : above ? largest : fastest;
  if (context_.options.outline && !limit_.first_is_enough) micro = fastest;
  std::vector<CandidateId> ids;
  for (const CandidateId& id : open.live)
    if (id.micro == micro) ids.push_back(id);
  // Where more accumulation bounds less, the most of it decides about the rest.
  if (context_.options.accumulation_bounds && ids.size() > 1) {
    const auto most = *std::max_element(ids.begin(), ids.end());
    ids = {most};
  }
  return ids;
}

/// Half of the tasks go on with choices that were begun, the most promising first, so that good plans are found early.
std::vector<Round::Task> Round::next_tasks() {
  std::vector<Task> tasks;
  const std::size_t most = tasks_a_thread * static_cast<std::size_t>(std::max(1, context_.options.threads));
  take(begun_, queue_.empty() ? most : most / 2, tasks);
  take(queue_, most, tasks);
  return tasks;
}

void Round::take(Queue& queue, std::size_t most, std::vector<Task>& tasks) {
  while (tasks.size() < most && !queue.empty()) {
    Open open = queue.top();
    queue.pop();
    const double before = open.turn;
    if (!refresh(open)) continue;
    if (open.turn > before) {
      queue.push(std::move(open));
      continue;
    }
    Task task;
    task.open = std::move(open);
    if (!plan_outlines(task)) task.ids = choose(task.open);
    tasks.push_back(std::move(task));
  }
}

/// True if short models are to be laid out before anything of the choice is evaluated: for memory, then for the time at what
/// has room.
bool Round::plan_outlines(Task& task) const {
  if (!context_.options.outline || limit_.first_is_enough) return false;
  for (const std::size_t kind : {0, 1}) {
    std::map<std::uint16_t, CandidateId> by_micro;
    for (const CandidateId& id : task.open.live)
      if (Memo::kind_of(id) == kind) by_micro.try_emplace(id.micro, id);
    if (by_micro.empty() || context_.memo.knows_outline(by_micro.rbegin()->second)) continue;
    for (const auto& [micro, id] : by_micro) task.by_micro.push_back(id);
    return true;
  }
  std::set<std::uint16_t> asked;
  for (const CandidateId& id : task.open.live)
    if (!context_.memo.knows_floor(id) && asked.insert(id.micro).second) task.floors.push_back(id);
  return !task.floors.empty();
}

/// Halves the micro-batches until the largest with room is known: what they take grows.
void Round::outline(Task& task) const {
  const Space& space = context_.space;
  Scenario scenario{space.asked().model, space.asked().cluster, {}};
  const auto find = [&](const CandidateId& id, bool of_memory) {
    scenario.plan = space.plan(space.choices()[id.choice], space.micro_batches()[id.micro], id.accumulation);
    task.outlined.push_back({id, {}});
    const bool is_legal = space.is_legal(scenario.plan);
    if (Memo::kind_of(id) == 0) scenario.plan.gradient_accumulation = 1;  // holds for two micro-batches, too
    if (is_legal) task.outlined.back().outline = context_.options.outline(scenario, of_memory);
    const Outline& found = task.outlined.back().outline;
    const bool tight_at_best = !limit_.accept_tight && found.least_to_fit > space.asked().cluster.device.memory;
    return found.least_memory <= room() && !tight_at_best;
  };
  for (const CandidateId& id : task.floors) find(id, false);
  std::size_t first = 0, end = task.by_micro.size();  // all before `first` have room, all from `end` on have none
  while (first < end) {
    const std::size_t middle = (first + end) / 2;
    if (find(task.by_micro[middle], true))
      first = middle + 1;
    else
      end = middle;
  }
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
  std::vector<std::exception_ptr> failures(tasks.size());
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t index = next++; index < tasks.size(); index = next++) {
      if (index > 0 && time_is_up()) return;
      try {
        outline(tasks[index]);
        evaluate(tasks[index], best);
      } catch (...) {
        failures[index] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < context_.options.threads; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

/// What is still in the queue was not looked at, or cannot be better.
void Round::close_rest() {
  result_.proven = true;
  result_.least_bound = std::numeric_limits<double>::infinity();
  for (; !begun_.empty(); begun_.pop()) queue_.push(begun_.top());
  while (!queue_.empty()) {
    Open open = queue_.top();
    queue_.pop();
    if (!refresh(open)) continue;
    result_.proven = false;
    result_.least_bound = std::min(result_.least_bound, open.bound);
    exclude(reason::time_up, static_cast<std::int64_t>(open.live.size()));
  }
}

}  // namespace plimsoll
