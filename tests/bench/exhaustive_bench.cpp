// Is the answer of the search that of evaluating every plan?  Spaces of 10^4 plans and more, with step programs, ledgers and
// the simulator; `equal` is 1 where both find the same time, `plans` how many candidates were evaluated.
#include <benchmark/benchmark.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

#include "planner/cli/plan_evaluator.hpp"
#include "planner/search/search.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"

namespace plimsoll {
namespace {

struct Asked {
  const char* model;
  const char* cluster;
  double gibibytes;  ///< of a GPU: so much that some plans fit and some do not
  std::vector<std::string> sets;
  std::int64_t global_batch;
};

Scenario scenario_of(const Asked& asked) {
  ModelSpec model = *load_model(asked.model);
  ClusterSpec cluster = *load_cluster(asked.cluster);
  cluster.device.memory = Bytes(static_cast<std::int64_t>(asked.gibibytes * (1 << 30)));
  PlanContext context;
  context.cluster_world = cluster.world();
  context.model = &model;
  context.overrides = asked.sets;
  Plan plan = *read_plan(nullptr, context);
  return {std::move(model), std::move(cluster), std::move(plan)};
}

struct Candidate {
  std::uint32_t choice;
  std::int64_t micro_batch, accumulation;
};

std::vector<Candidate> candidates_of(const Space& space) {
  std::vector<Candidate> all;
  for (std::uint32_t choice = 0; choice < space.choices().size(); ++choice)
    for (const std::int64_t micro : space.micro_batches())
      for (const std::int64_t accumulation : space.accumulations(space.choices()[choice], micro))
        all.push_back({choice, micro, accumulation});
  return all;
}

/// Seconds a token of the fastest that fits.
double best_of_all(const Space& space, const std::vector<Candidate>& all, const Evaluator& evaluate) {
  std::atomic<std::size_t> next{0};
  std::vector<double> best(std::max(1U, std::thread::hardware_concurrency()), std::numeric_limits<double>::infinity());
  std::vector<std::thread> threads;
  for (double& least : best) {
    threads.emplace_back([&] {
      Scenario scenario = space.asked();
      for (std::size_t i = next++; i < all.size(); i = next++) {
        const Choice& choice = space.choices()[all[i].choice];
        scenario.plan = space.plan(choice, all[i].micro_batch, all[i].accumulation);
        if (!space.is_legal(scenario.plan)) continue;
        const Evaluated found = evaluate(scenario, std::numeric_limits<double>::infinity());
        if (!found.judged || found.verdict != Verdict::fits) continue;
        const auto tokens = static_cast<double>(all[i].micro_batch * all[i].accumulation * choice.world) *
                            static_cast<double>(scenario.plan.sequence);
        least = std::min(least, found.step_time_s / tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::min_element(best.begin(), best.end());
}

void same_as_exhaustive(benchmark::State& state, const Asked& asked) {
  const Scenario scenario = scenario_of(asked);
  const Calibration calibration = *load_calibration("", scenario.cluster);
  const Space space(scenario, asked.global_batch);
  const Evaluator evaluate = plan_evaluator(calibration);
  SearchOptions options = search_options(calibration);
  options.budget_s = 3600;
  options.want_front = false;
  SearchResult result;
  for ([[maybe_unused]] auto _ : state) result = search_plans(space, evaluate, options);
  const std::vector<Candidate> all = candidates_of(space);
  const double best = best_of_all(space, all, evaluate);
  state.counters["plans"] = static_cast<double>(all.size());
  state.counters["evaluated"] = static_cast<double>(result.evaluated);
  state.counters["proven"] = result.proven ? 1 : 0;
  state.counters["equal"] = result.best && result.best->seconds_per_token == best ? 1 : 0;
}

#define SAME_AS_EXHAUSTIVE(name, ...) \
  BENCHMARK_CAPTURE(same_as_exhaustive, name, Asked{__VA_ARGS__})->Unit(benchmark::kMillisecond)->Iterations(1)
SAME_AS_EXHAUSTIVE(dense_deepspeed, "sparrow-dense", "2xh100", 2.2, {"sequence=512"}, 0);
SAME_AS_EXHAUSTIVE(mixture_deepspeed, "sparrow-moe", "4xh100", 2.4, {"sequence=256", "world_size=4", "zero.stage=3"},
                   0);
SAME_AS_EXHAUSTIVE(mixture_below_3, "sparrow-moe", "4xh100", 2.4, {"sequence=256", "zero.stage=1"}, 0);
SAME_AS_EXHAUSTIVE(dense_fsdp2, "sparrow-dense", "32xh100", 2.2, {"sequence=128", "engine=fsdp2"}, 0);
SAME_AS_EXHAUSTIVE(mixture_batch, "sparrow-moe", "8xh100", 2.4, {"sequence=256"}, 5040);
#undef SAME_AS_EXHAUSTIVE

}  // namespace
}  // namespace plimsoll
