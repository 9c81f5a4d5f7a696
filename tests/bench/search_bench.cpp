// How many plans a second does a search consider?  The space alone; branch and bound with an evaluator that costs nothing; and
// whole searches with step programs, ledgers and the simulator.  Goals: 100,000 plans a second and core, and 3.2 million in
// less than 16 s on two cores.  A plan counts as considered where it was evaluated or a proven bound excludes it, not where a
// rule of the engine refuses it or the time was up; `undecided` counts the latter.
#include <benchmark/benchmark.h>

#include <ctime>
#include <memory>
#include <stop_token>

#include "planner/cli/plan_evaluator.hpp"
#include "planner/search/search.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/document.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
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

/// @param cores_s ends after so many seconds of all cores together: what a machine that does nothing else takes for it on two
///   cores is half of that
void search(benchmark::State& state, const Scenario& scenario, std::int64_t global_batch, double cores_s) {
  const Calibration calibration = *load_calibration("", scenario.cluster);
  SearchOptions options = search_options(calibration);
  options.budget_s = 120;
  options.want_front = false;
  std::stop_source ended;
  options.stop = ended.get_token();
  const std::clock_t start = std::clock();  // of all threads
  const auto used_s = [start] { return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC; };
  options.progress = [&](const SearchProgress&) {
    if (used_s() >= cores_s) ended.request_stop();
  };
  SearchResult result;
  std::int64_t refused = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Space space(scenario, global_batch);
    result = search_plans(space, plan_evaluator(calibration), options);
    for (const Exclusion& rule : space.refused()) refused += rule.count;
  }
  std::int64_t undecided = 0;
  for (const Exclusion& exclusion : result.excluded)
    if (exclusion.reason.starts_with("not looked at")) undecided += exclusion.count;
  const double cpu_s = used_s();
  const auto considered = static_cast<double>(result.considered - refused - undecided);
  state.counters["plans"] = static_cast<double>(result.considered);
  state.counters["considered"] = considered;
  state.counters["a_second_and_core"] = considered / cpu_s;
  state.counters["cpu_s"] = cpu_s;
  state.counters["undecided"] = static_cast<double>(undecided);
  state.counters["evaluated"] = static_cast<double>(result.evaluated);
  state.counters["gap"] = result.gap;
  state.counters["proven"] = result.proven ? 1 : 0;
}

void whole_search(benchmark::State& state, const char* model, const char* cluster, std::int64_t global_batch) {
  search(state, scenario_of(model, cluster, true), global_batch, 200);
}
BENCHMARK_CAPTURE(whole_search, dense, "llama-3.1-8b", "8xh100", 0)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(whole_search, mixture, "qwen3-30b-a3b", "8xh100", 0)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(whole_search, mixture_64, "qwen3-30b-a3b", "64xh100", 1024)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

/// Any number of GPUs up to all, in the time that a user would wait.
void free_search(benchmark::State& state, const char* model, const char* cluster) {
  search(state, scenario_of(model, cluster, false), 0, 32);
}
BENCHMARK_CAPTURE(free_search, mixture_8, "qwen3-30b-a3b", "8xh100")->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(free_search, mixture_1024, "qwen3-30b-a3b", "1024xh100")
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

/// Qwen3's mixture with many small experts: more ways to spread them than any published model has, 3.5 million plans.
void search_of_millions(benchmark::State& state) {
  auto file = std::make_shared<SourceFile>();
  file->name = "fine-grained.json";
  file->text = R"({"model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 16,
      "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000, "num_experts": 720,
      "num_experts_per_tok": 8, "moe_intermediate_size": 256, "norm_topk_prob": true, "max_position_embeddings": 40960})";
  ModelSpec model = *read_model(*parse_document(file), "fine-grained");
  ClusterSpec cluster = *load_cluster("11520xh100");
  PlanContext context;
  context.cluster_world = cluster.world();
  context.model = &model;
  context.overrides = {"sequence=2048"};
  Plan plan = *read_plan(nullptr, context);
  search(state, {std::move(model), std::move(cluster), std::move(plan)}, 0, 32);
}
BENCHMARK(search_of_millions)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace plimsoll
