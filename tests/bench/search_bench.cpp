// How many plans a second does a search consider?  The space alone; branch and bound with an evaluator that costs nothing; and
// whole searches with step programs, ledgers and the simulator.
#include <benchmark/benchmark.h>

#include "planner/cli/plan_evaluator.hpp"
#include "planner/search/search.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"

namespace plimsoll {
namespace {

Scenario scenario_of(const char* model_name, const char* cluster_name, bool all_gpus) {
  ModelSpec model = *load_model(model_name);
  ClusterSpec cluster = *preset_cluster(cluster_name);
  PlanContext context;
  context.cluster_world = cluster.world();
  context.model = &model;
  if (all_gpus) context.overrides = {"world_size=" + std::to_string(cluster.world())};
  Plan plan = *read_plan(nullptr, context);
  return {std::move(model), std::move(cluster), std::move(plan)};
}

void list_space(benchmark::State& state) {
  const Scenario scenario = scenario_of("qwen3-30b-a3b", "64xh100", false);
  std::int64_t size = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Space space(scenario, 0);
    size = space.size();
  }
  state.counters["plans"] = static_cast<double>(size);
}
BENCHMARK(list_space)->Unit(benchmark::kMillisecond);

/// A step that takes a third longer than its bound, and fits if its closed form does.
void bound_only(benchmark::State& state) {
  const Scenario scenario = scenario_of("qwen3-30b-a3b", "64xh100", false);
  const Space space(scenario, 0);
  SearchOptions options;
  options.peaks = published_peaks(scenario.cluster.device);
  options.want_front = false;
  options.budget_s = 60;
  const Evaluator evaluator = [&](const Scenario& asked, double) {
    const PlanBounds bounds(asked.model, asked.cluster, options.peaks, asked.plan);
    Evaluated evaluated;
    evaluated.step_time_s = 1.33 * bounds.step_seconds(asked.plan.micro_batch, asked.plan.gradient_accumulation);
    evaluated.judged = true;
    evaluated.job_device_peak = bounds.device_memory(asked.plan.micro_batch);
    const bool fits = evaluated.job_device_peak <= asked.cluster.device.memory;
    evaluated.verdict = fits ? Verdict::fits : Verdict::oom;
    return evaluated;
  };
  SearchResult result;
  for ([[maybe_unused]] auto _ : state) result = search_plans(space, evaluator, options);
  state.counters["considered"] = static_cast<double>(result.considered);
  state.counters["evaluated"] = static_cast<double>(result.evaluated);
  state.SetItemsProcessed(state.iterations() * result.considered);
}
BENCHMARK(bound_only)->Unit(benchmark::kMillisecond);

void whole_search(benchmark::State& state, const char* model, const char* cluster, std::int64_t global_batch) {
  const Scenario scenario = scenario_of(model, cluster, true);
  const Calibration calibration = *load_calibration("", scenario.cluster);
  SearchOptions options = search_options(calibration, scenario.cluster);
  options.budget_s = 120;
  options.want_front = false;
  SearchResult result;
  for ([[maybe_unused]] auto _ : state)
    result = search_plans(Space(scenario, global_batch), plan_evaluator(calibration), options);
  state.counters["considered"] = static_cast<double>(result.considered);
  state.counters["evaluated"] = static_cast<double>(result.evaluated);
  state.counters["proven"] = result.proven ? 1 : 0;
  state.SetItemsProcessed(state.iterations() * result.considered);
}
BENCHMARK_CAPTURE(whole_search, dense, "llama-3.1-8b", "8xh100", 0)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(whole_search, mixture, "qwen3-30b-a3b", "8xh100", 0)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(whole_search, mixture_64, "qwen3-30b-a3b", "64xh100", 1024)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
}  // namespace plimsoll
