// Builds the step program of the rank that was asked for, and its ledger (planner/cli/evaluate.hpp).
//
// Which rank is the hottest?  Ranks differ by the rows that routing sends to their experts, and at ZeRO stages 1 and 2 by
// the parameters that straddle the ends of their partitions (gradients are kept whole there).  So the candidates are the
// rank with most rows, and the first, a middle and the last partition; the one with the highest device peak is taken.
#include "planner/cli/evaluate.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>

#include "planner/search/bounds.hpp"
#include "planner/step/build_step.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

/// Rows that a rank's experts receive, summed over the layers.
std::int64_t sum_of_rows(const std::vector<RoutedRows>& layers) {
  return std::accumulate(layers.begin(), layers.end(), std::int64_t{0},
                         [](std::int64_t sum, const RoutedRows& rows) { return sum + rows.received; });
}

bool routing_differs(const Plan& plan) { return plan.routing.kind != Routing::Kind::balanced && plan.world_size > 1; }

std::set<int> candidates_for_hottest(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (routing_differs(plan)) return {hottest_rank(scenario)};
  if (plan.engine != Engine::deepspeed || plan.zero.stage == 0 || plan.zero.stage == 3) return {0};
  return {0, plan.world_size / 2, plan.world_size - 1};
}

/// The rank whose experts receive the number of rows that is nearest to the mean.
int mean_rank(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (!routing_differs(plan)) return plan.world_size / 2;
  const bool by_rank = plan.routing.kind == Routing::Kind::histogram && plan.routing.counts.front().size() > 1;
  const int ranks = by_rank ? plan.world_size : plan.expert_parallel;
  const std::int64_t mean = sum_of_rows(mean_route(scenario));
  int nearest = 0;
  std::int64_t distance = std::numeric_limits<std::int64_t>::max();
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t off = std::llabs(sum_of_rows(route(scenario, rank)) - mean);
    if (off >= distance) continue;
    distance = off;
    nearest = rank;
  }
  return nearest;
}

StepProgram hottest(const Scenario& scenario, const LedgerContext& context, int& rank_found) {
  const std::set<int> ranks = candidates_for_hottest(scenario);
  StepProgram best;
  Bytes most{-1};
  for (const int rank : ranks) {
    StepProgram program = build_step(scenario, rank);
    Bytes peak;
    if (ranks.size() > 1)
      peak =
          replay_allocator(program.classes.front().program, {context.rules, 3, Bytes(0), false, 0}).job_reserved_peak;
    if (peak <= most) continue;
    most = peak;
    best = std::move(program);
    rank_found = rank;
  }
  return best;
}

}  // namespace

Evaluation build(Scenario scenario, RankChoice choice) {
  Evaluation evaluation;
  evaluation.context = ledger_context(scenario);
  switch (choice.kind) {
    case RankChoice::Kind::hottest: evaluation.program = hottest(scenario, evaluation.context, evaluation.rank); break;
    case RankChoice::Kind::mean: evaluation.rank = mean_rank(scenario); break;
    case RankChoice::Kind::one: evaluation.rank = choice.rank; break;
  }
  if (choice.kind != RankChoice::Kind::hottest) evaluation.program = build_step(scenario, evaluation.rank);
  evaluation.scenario = std::move(scenario);
  return evaluation;
}

Evaluation evaluate(Scenario scenario, RankChoice choice, bool bistable) {
  Evaluation evaluation = build(std::move(scenario), choice);
  evaluation.context.bistable = bistable;
  evaluation.ledger = make_ledger(evaluation.rank_program(), evaluation.context);
  return evaluation;
}

Fit fit_of(const Scenario& scenario) {
  const LedgerContext context = ledger_context(scenario);
  const auto beyond = [&](Bytes least) {
    return Fit{Verdict::oom, context.capacity - (least + context.outside.total())};
  };
  const PlanBounds bounds(scenario.model, scenario.cluster, published_peaks(scenario.cluster.device), scenario.plan);
  const Fit by_bound = beyond(bounds.device_memory(scenario.plan.micro_batch));
  if (by_bound.margin.count < 0) return by_bound;
  const Evaluation one = build(scenario, {RankChoice::Kind::one, 0});
  const Fit by_sizes = beyond(peak_of_sizes(one.rank_program()));
  if (by_sizes.margin.count < 0) return by_sizes;
  const Ledger ledger = evaluate(scenario, {}, false).ledger;
  return {ledger.verdict, ledger.margin};
}

}  // namespace plimsoll
