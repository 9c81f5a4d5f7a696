// The rounds of a search and what they found (planner/search/search.hpp).
//
// The main round looks for the fastest plan.  Where it finds none that fits, a second one accepts tight plans.  What is left of
// the budget goes to plans to compare it with, and to the front: the fastest plan with half the GPUs, a quarter, ..., and
// with three quarters, half and a quarter of the best plan's device memory.  What that leaves goes on with the main round.
//
// Where short models tell nothing, short rounds come first: among the plans whose states and activations leave half of the
// memory, or three quarters, for a first plan that fits, since the fastest bounds are those of plans that hardly do; then
// without accumulation.
#include "planner/search/search.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "planner/search/nearest.hpp"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the budget, for the best plan; the rest is for plans to compare it with.
constexpr double share_of_the_best = 0.8;
constexpr double share_of_a_first_plan = 0.2;
constexpr double share_without_accumulation = 0.5;
/// At least, for the plan that comes nearest where none fits.
constexpr double share_of_nearest = 0.3;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<PlanBounds> bounds_of(const Space& space, const PeakRates& peaks) {
  std::vector<PlanBounds> bounds;
  bounds.reserve(space.choices().size());
  const Scenario& asked = space.asked();
  for (const Choice& choice : space.choices())
    bounds.emplace_back(asked.model, asked.cluster, peaks, space.plan(choice, space.micro_batches().front(), 1));
  return bounds;
}

Found found_of(const Space& space, const CandidateId& id, const Evaluated& evaluated) {
  Found found;
  found.choice = space.choices()[id.choice];
  found.micro_batch = space.micro_batches()[id.micro];
  found.accumulation = id.accumulation;
  found.seconds_per_token = seconds_per_token(space, id, evaluated.step_time_s);
  found.evaluated = evaluated;
  found.plan = space.plan(found.choice, found.micro_batch, found.accumulation);
  return found;
}

/// The fastest evaluated plans were not judged where a faster one was known; some of them are to be shown.
void judge_runners_up(RoundContext& context) {
  std::vector<std::pair<double, CandidateId>> waiting;
  std::set<std::uint32_t> shown;
  for (const auto& [id, evaluated] : context.memo.all()) {
    if (evaluated.judged && evaluated.verdict == Verdict::fits) shown.insert(id.choice);
    if (!evaluated.judged && !evaluated.refused)
      waiting.emplace_back(seconds_per_token(context.space, id, evaluated.step_time_s), id);
  }
  std::sort(waiting.begin(), waiting.end());
  Scenario scenario = context.space.asked();
  for (const auto& [time, id] : waiting) {
    if (static_cast<int>(shown.size()) > context.options.runners_up || context.is_over(context.deadline)) return;
    if (shown.count(id.choice) != 0) continue;
    const Space& space = context.space;
    scenario.plan = space.plan(space.choices()[id.choice], space.micro_batches()[id.micro], id.accumulation);
    const Evaluated evaluated = context.evaluate(scenario, std::numeric_limits<double>::infinity());
    context.memo.add(id, evaluated);
    if (evaluated.verdict == Verdict::fits) shown.insert(id.choice);
  }
}

/// A plan that fits, where one is found at once; `limit` as the main round has it.
void look_for_a_first_plan(RoundContext& context, const RoundLimit& limit, Clock::time_point deadline) {
  for (const int quarters : {2, 1}) {
    RoundContext soon = context;
    soon.deadline = soon.last_moment = deadline;
    RoundLimit roomy = limit;
    roomy.device_memory = Bytes(limit.device_memory.count / 4 * quarters);
    roomy.first_is_enough = true;
    roomy.once = true;
    if (Round(soon, roomy).run().best) return;
  }
}

/// The best plan without accumulation of each stage, with as much of it as there is and still fits: less time a token, and by how
/// much depends on the stage.
void accumulate_more(RoundContext& context) {
  const Space& space = context.space;
  std::map<int, std::pair<double, CandidateId>> best;
  for (const auto& [id, evaluated] : context.memo.all()) {
    if (id.accumulation != 1 || !evaluated.judged || evaluated.verdict != Verdict::fits) continue;
    const std::pair<double, CandidateId> plan(seconds_per_token(space, id, evaluated.step_time_s), id);
    const auto [found, is_new] = best.try_emplace(space.choices()[id.choice].stage, plan);
    if (!is_new) found->second = std::min(found->second, plan);
  }
  Scenario scenario = space.asked();
  for (const auto& [stage, plan] : best) {
    const CandidateId& once = plan.second;
    const std::int64_t micro = space.micro_batches()[once.micro];
    for (const std::int64_t accumulation : space.accumulations(space.choices()[once.choice], micro)) {
      if (accumulation == 1 || context.is_over(context.deadline)) break;
      const CandidateId id{once.choice, once.micro, accumulation};
      scenario.plan = space.plan(space.choices()[id.choice], micro, accumulation);
      if (context.memo.find(id) != nullptr || !space.is_legal(scenario.plan)) continue;
      const Evaluated evaluated = context.evaluate(scenario, std::numeric_limits<double>::infinity());
      context.memo.add(id, evaluated);
      if (evaluated.verdict == Verdict::fits) break;
    }
  }
}

/// The fastest plan without accumulation, then with it: a good plan to beat, found among short programs.
void look_without_accumulation(RoundContext& context, const RoundLimit& limit, Clock::time_point deadline) {
  RoundContext soon = context;
  soon.deadline = soon.last_moment = deadline;
  RoundLimit once = limit;
  once.once = true;
  Round(soon, once).run();
  accumulate_more(context);
}

/// Further rounds, for plans that give up time for memory or GPUs.
void look_for_front(RoundContext& context, const RoundLimit& first, const CandidateId& best) {
  const auto time_is_up = [&] { return context.is_over(context.deadline); };
  std::set<int, std::greater<>> worlds;
  for (const Choice& choice : context.space.choices()) worlds.insert(choice.world);
  for (const int world : worlds) {
    if (time_is_up()) return;
    if (world == context.space.choices()[best.choice].world) continue;
    RoundLimit limit = first;
    limit.world = world;
    Round(context, limit).run();
  }
  const Bytes peak = context.memo.find(best)->job_device_peak;
  for (const int quarters : {3, 2, 1}) {
    if (time_is_up()) return;
    RoundLimit limit = first;
    limit.world = context.space.choices()[best.choice].world;
    limit.device_memory = Bytes(peak.count / 4 * quarters);
    limit.caps_peak = true;
    Round(context, limit).run();
  }
}

/// A model of few layers, or of layers all different, cannot be cut short.
bool tell_something(const Space& space, const Outliner& outline) {
  if (!outline || space.choices().empty()) return false;
  Scenario scenario = space.asked();
  scenario.plan = space.plan(space.choices().front(), space.micro_batches().front(), 1);
  return outline(scenario, OutlineOf::layers).layers.longest_s() > 0;
}

std::vector<Found> judged_plans(RoundContext& context) {
  std::vector<Found> plans;
  for (const auto& [id, evaluated] : context.memo.all())
    if (evaluated.judged && evaluated.verdict != Verdict::oom) plans.push_back(found_of(context.space, id, evaluated));
  std::sort(plans.begin(), plans.end(), [](const Found& a, const Found& b) {
    const auto key = [](const Found& f) {
      return std::tuple(f.seconds_per_token, f.choice, f.micro_batch, f.accumulation);
    };
    return key(a) < key(b);
  });
  return plans;
}

}  // namespace

std::vector<Found> pareto_front(const std::vector<Found>& plans) {
  const auto key = [](const Found& f) {
    return std::array<double, 4>{f.seconds_per_token, static_cast<double>(f.evaluated.job_device_peak.count),
                                 static_cast<double>(f.choice.world),
                                 static_cast<double>(f.evaluated.host_per_node.count)};
  };
  std::vector<Found> front;
  for (const Found& plan : plans) {
    const auto mine = key(plan);
    const bool beaten = std::any_of(plans.begin(), plans.end(), [&](const Found& other) {
      if (&other == &plan) return false;
      const auto theirs = key(other);
      for (std::size_t i = 0; i < mine.size(); ++i)
        if (theirs[i] > mine[i]) return false;
      return theirs != mine || &other < &plan;
    });
    if (!beaten) front.push_back(plan);
  }
  return front;
}

SearchResult search_plans(const Space& space, const Evaluator& evaluate, const SearchOptions& asked) {
  const Clock::time_point start = Clock::now();
  SearchOptions options = asked;
  if (!tell_something(space, options.outline)) options.outline = {};
  SearchResult result;
  result.considered = space.size();
  result.excluded = space.refused();
  const std::vector<PlanBounds> bounds = bounds_of(space, options.peaks);
  Memo memo(space, options);
  const auto after = [&](double seconds) {
    return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  RoundContext context{space,
                       evaluate,
                       options,
                       bounds,
                       memo,
                       after(share_of_the_best * options.budget_s),
                       after(1.5 * options.budget_s)};
  RoundLimit limit{0, space.asked().cluster.device.memory, false, options.accept_tight};
  if (!options.outline) {
    look_for_a_first_plan(context, limit, after(share_of_a_first_plan * options.budget_s));
    look_without_accumulation(context, limit, after(share_without_accumulation * options.budget_s));
  }
  RoundResult round = Round(context, limit).run();
  if (!round.best && !limit.accept_tight) {
    limit.accept_tight = true;
    RoundResult tight = Round(context, limit).run();
    if (tight.best) round = std::move(tight);
  }
  if (!round.best) {
    context.deadline = std::max(context.deadline,
                                Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(share_of_nearest * options.budget_s)));
    const Nearest nearest = nearest_to_fit(context);
    if (nearest.id) result.nearest = found_of(space, *nearest.id, *memo.find(*nearest.id));
    result.nearest_proven = nearest.proven;
    // The time was up before it was evaluated, and it may be the answer.
    if (result.nearest && result.nearest->evaluated.verdict != Verdict::oom) {
      round = Round(context, limit).run();
      result.nearest.reset();
      result.nearest_proven = false;
    }
  }
  if (round.best) {
    context.deadline = after(options.budget_s);
    judge_runners_up(context);
    if (options.want_front) look_for_front(context, limit, *round.best);
    if (!round.proven && !context.is_over(context.deadline)) round = Round(context, limit).run();
    result.best = found_of(space, *round.best, *memo.find(*round.best));
    if (!round.proven) {
      result.gap = std::max(0.0, 1 - round.least_bound / round.best_seconds_per_token);
      result.expected_gap = std::max(0.0, 1 - round.least_expected / round.best_seconds_per_token);
    }
  }
  result.proven = round.proven;
  for (const auto& [reason, count] : round.excluded) result.excluded.push_back({reason, count});
  std::stable_sort(result.excluded.begin(), result.excluded.end(),
                   [](const Exclusion& a, const Exclusion& b) { return a.count > b.count; });
  result.judged = judged_plans(context);
  result.front = pareto_front(result.judged);
  result.evaluated = static_cast<std::int64_t>(memo.all().size());
  result.estimated = static_cast<std::int64_t>(memo.estimates());
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace plimsoll
