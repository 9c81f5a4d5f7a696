// How fast are the parts of an answer?  Goals: building a program of 61 layers and 8 micro-batches below 30 ms, a ledger walk
// and the volumes below 1 ms, an allocator replay below 20 ms, one rank's timeline of 32,256 ops below 2 ms.
#include <benchmark/benchmark.h>

#include "planner/account/replay.hpp"
#include "planner/account/volume.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "planner/spec/scenario.hpp"
#include "planner/step/build_step.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

/// 61 layers, 8 micro-batches.
Scenario scenario(const char* engine, const char* stage) {
  auto model = load_model("sketch:dense=20B,hidden=4096,layers=61");
  auto cluster = load_cluster("64xh200");
  PlanContext context;
  context.overrides = {std::string("engine=") + engine, std::string("zero.stage=") + stage, "gradient_accumulation=8",
                       "micro_batch=1", "sequence=4096"};
  context.cluster_world = cluster->world();
  context.model = &*model;
  auto plan = read_plan(nullptr, context);
  return {std::move(*model), std::move(*cluster), std::move(*plan)};
}

void build(benchmark::State& state, const char* engine, const char* stage) {
  const Scenario s = scenario(engine, stage);
  std::size_t ops = 0;
  for (auto _ : state) {
    const StepProgram program = build_step(s, 0);
    ops = program.classes.front().program.ops.size();
    benchmark::DoNotOptimize(ops);
  }
  state.counters["ops"] = static_cast<double>(ops);
}
BENCHMARK_CAPTURE(build, deepspeed_stage2, "deepspeed", "2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, deepspeed_stage3, "deepspeed", "3")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, fsdp2, "fsdp2", "0")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, reference, "plimsoll", "3")->Unit(benchmark::kMillisecond);

void ledger_walk(benchmark::State& state) {
  const StepProgram program = build_step(scenario("deepspeed", "2"), 0);
  for (auto _ : state) {
    Bytes peak = peak_of_sizes(program.classes.front().program);
    benchmark::DoNotOptimize(peak);
  }
}
BENCHMARK(ledger_walk)->Unit(benchmark::kMillisecond);

void allocator_replay(benchmark::State& state) {
  const StepProgram program = build_step(scenario("deepspeed", "2"), 0);
  for (auto _ : state) {
    Bytes peak = replay_allocator(program.classes.front().program).reserved_peak;
    benchmark::DoNotOptimize(peak);
  }
}
BENCHMARK(allocator_replay)->Unit(benchmark::kMillisecond);

void volumes(benchmark::State& state) {
  const Scenario s = scenario("deepspeed", "3");
  const StepProgram program = build_step(s, 0);
  for (auto _ : state) {
    Bytes sent = account_volume(program, program.classes.front().program, s.cluster).per_gpu;
    benchmark::DoNotOptimize(sent);
  }
}
BENCHMARK(volumes)->Unit(benchmark::kMillisecond);

void timeline(benchmark::State& state, const char* engine, const char* stage) {
  const Scenario s = scenario(engine, stage);
  const StepProgram program = build_step(s, 0);
  const auto calibration = load_calibration("", s.cluster);
  std::size_t ops = 0;
  for (auto _ : state) {
    Timeline result = simulate_step(program, s.cluster, *calibration);
    ops = result.ops.size();
    benchmark::DoNotOptimize(result.step_time);
  }
  state.counters["ns_per_op"] = benchmark::Counter(
      static_cast<double>(ops), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(timeline, deepspeed_stage2, "deepspeed", "2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(timeline, reference, "plimsoll", "3")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace plimsoll
