// How long does it take to read and judge a configuration?  A ds_config.json in circulation and a plan, against a model.
#include <benchmark/benchmark.h>

#include "planner/spec/check_configuration.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {
namespace {

ConfigurationInput input_of(bool is_ds_config, const ModelSpec& model) {
  static const auto config = load_source(PLIMSOLL_SOURCE_DIR "/tests/data/ds_configs/alpaca_zero3_offload_all.json");
  static const auto plan = std::make_shared<SourceFile>(
      SourceFile{"plan.json", R"({"world_size": 64, "expert_parallel": 8, "micro_batch": 2, "zero": {"stage": 3}})"});
  ConfigurationInput input;
  input.file = is_ds_config ? config : plan;
  input.is_ds_config = is_ds_config;
  input.overrides = {"world_size=64", "sequence=4096"};
  input.model = &model;
  return input;
}

void check(benchmark::State& state, bool is_ds_config) {
  const auto model = load_model("mixtral-8x7b");
  const ConfigurationInput input = input_of(is_ds_config, *model);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(check_configuration(input));
}

/// What the search asks of every candidate.
void legality(benchmark::State& state) {
  const auto model = load_model("mixtral-8x7b");
  const CheckReport report = check_configuration(input_of(false, *model));
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(is_legal({*report.plan, &*model, nullptr}));
}

BENCHMARK_CAPTURE(check, ds_config, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(check, plan, false)->Unit(benchmark::kMicrosecond);
BENCHMARK(legality)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace plimsoll
