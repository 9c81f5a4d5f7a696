// Builds the step program of the rank that was asked for, and its ledger (planner/cli/evaluate.hpp).
//
// Which ranks differ?  By the rows that routing sends to their experts, and at ZeRO stages 1 and 2 by the parameters in their
// partitions: the first holds an embedding, one tensor, where others hold a hundred, whose gradients and updates cost the
// host a launch each; and those that straddle the ends are kept whole.  So the candidates are the rank with most rows, and
// the first, a middle and the last partition, the middle one for all between.  The one with the highest device peak is told
// of; the step takes as long as the slowest of them.
#include "planner/cli/evaluate.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "planner/base/in_parallel.hpp"
#include "planner/search/bounds.hpp"
#include "planner/spec/devices.hpp"
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

bool partitions_differ(const Plan& plan) {
  return plan.engine == Engine::deepspeed && (plan.zero.stage == 1 || plan.zero.stage == 2);
}

/// Adds one more rank to those that stand for the world, by taking it from those of the sample with most.
void single_out(int rank, std::vector<RankSample>& samples) {
  if (std::any_of(samples.begin(), samples.end(), [&](const RankSample& sample) { return sample.rank == rank; }))
    return;
  RankSample& most = *std::max_element(samples.begin(), samples.end(),
                                       [](const RankSample& a, const RankSample& b) { return a.ranks < b.ranks; });
  --most.ranks;
  samples.push_back({rank, 1});
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

}  // namespace

std::vector<RankSample> distinct_ranks(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const int world = plan.world_size;
  const int most_rows = routing_differs(plan) ? hottest_rank(scenario) : 0;
  // As counted, another rank may have most rows in each layer, and the step waits for each of them in turn.
  // Those of one node, most often: every rank that is on the clock costs as much as the first.
  constexpr int most_singled_out = devices_per_server;
  const bool counted = plan.routing.kind == Routing::Kind::histogram && plan.expert_parallel > 1;
  if (counted && plan.engine == Engine::plimsoll) {
    std::vector<RankSample> samples{{most_rows, world}};
    for (int rank = 0; rank < std::min(plan.expert_parallel, most_singled_out); ++rank) single_out(rank, samples);
    return samples;
  }
  if (!partitions_differ(plan) || world == 1) return {{most_rows, world}};
  std::vector<RankSample> samples{{0, 1}};
  if (world > 2) samples.push_back({world / 2, world - 2});
  samples.push_back({world - 1, 1});
  single_out(most_rows, samples);
  return samples;
}

void add_other_ranks(const Scenario& scenario, StepProgram& program) {
  const int known = program.classes.front().example_rank;
  std::vector<RankSample> samples = distinct_ranks(scenario);
  single_out(known, samples);
  for (const RankSample& sample : samples) {
    if (sample.rank == known) {
      program.classes.front().ranks = sample.ranks;
      continue;
    }
    StepProgram other = build_unstamped(scenario, sample.rank);
    other.classes.front().ranks = sample.ranks;
    program.classes.push_back(std::move(other.classes.front()));
  }
}

std::size_t hottest_class(const StepProgram& program, const LedgerContext& context) {
  if (program.classes.size() == 1) return 0;
  const auto key = [&](const RankClass& ranks) {
    return std::pair(replay_job(ranks.program, context).job_reserved_peak, -ranks.example_rank);
  };
  std::size_t best = 0;
  auto most = key(program.classes.front());
  for (std::size_t c = 1; c < program.classes.size(); ++c) {
    const auto mine = key(program.classes[c]);
    if (mine <= most) continue;
    most = mine;
    best = c;
  }
  return best;
}

Evaluation build_alone(Scenario scenario, int rank) {
  Evaluation evaluation;
  evaluation.context = ledger_context(scenario);
  evaluation.rank = rank;
  evaluation.program = build_unstamped(scenario, rank);
  evaluation.scenario = std::move(scenario);
  return evaluation;
}

void complete(Evaluation& alone, bool hottest) {
  StepProgram& program = alone.program;
  add_other_ranks(alone.scenario, program);
  if (hottest) std::swap(program.classes.front(), program.classes[hottest_class(program, alone.context)]);
  alone.rank = program.classes.front().example_rank;
  stamp(alone.scenario, program);
}

Evaluation build(Scenario scenario, RankChoice choice) {
  const bool hottest = choice.kind == RankChoice::Kind::hottest;
  const int rank = hottest                                 ? distinct_ranks(scenario).front().rank
                   : choice.kind == RankChoice::Kind::mean ? mean_rank(scenario)
                                                           : choice.rank;
  Evaluation evaluation = build_alone(std::move(scenario), rank);
  complete(evaluation, hottest);
  return evaluation;
}

Evaluation evaluate(Scenario scenario, RankChoice choice, bool bistable) {
  Evaluation evaluation = build(std::move(scenario), choice);
  evaluation.context.bistable = bistable;
  evaluation.context.threads = all_cores();
  evaluation.ledger = make_ledger(evaluation.rank_program(), evaluation.context);
  return evaluation;
}

Fit fit_of(const Scenario& scenario) {
  LedgerContext context = ledger_context(scenario);
  const auto beyond = [&](Bytes least) {
    return Fit{Verdict::oom, context.capacity - (least + context.outside.total()), true};
  };
  const PlanBounds bounds(scenario.model, scenario.cluster, published_peaks(scenario.cluster.device), scenario.plan);
  const Fit by_bound = beyond(bounds.device_memory(scenario.plan.micro_batch));
  if (by_bound.margin.count < 0) return by_bound;
  Evaluation evaluation = build_alone(scenario, distinct_ranks(scenario).front().rank);
  const Fit by_sizes = beyond(peak_of_sizes(evaluation.rank_program()));
  if (by_sizes.margin.count < 0) return by_sizes;
  complete(evaluation, true);
  context.bistable = false;
  Ledger ledger = make_ledger(evaluation.rank_program(), context);
  if (ledger.verdict == Verdict::fits) {  // other histories only ever take more
    context.bistable = true;
    ledger = make_ledger(evaluation.rank_program(), context);
  }
  return {ledger.verdict, ledger.margin, false};
}

}  // namespace plimsoll
