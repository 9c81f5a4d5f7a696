// How fast are the parts of an answer?  Goals: building a program of 61 layers and 8 micro-batches below 30 ms, a ledger walk
// and the volumes below 1 ms, an allocator replay or an arena's placement below 20 ms, one rank's timeline of 32,256 ops below 2 ms.
#include <benchmark/benchmark.h>

#include "planner/account/arena.hpp"
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

/// 9,225 buffers; about twice as long where a second order is tried.
void arena_placement(benchmark::State& state) {
  const StepProgram program = build_step(scenario("plimsoll", "3"), 0);
  ArenaPlan arena;
  for (auto _ : state) {
    arena = plan_arena(program.classes.front().program);
    benchmark::DoNotOptimize(arena);
  }
  state.counters["of_least"] = static_cast<double>(arena.size.count) / static_cast<double>(arena.least.count);
}
BENCHMARK(arena_placement)->Unit(benchmark::kMillisecond);

void volumes(benchmark::State& state) {
  const Scenario s = scenario("deepspeed", "3");
  const StepProgram program = build_step(s, 0);
  for (auto _ : state) {
    Bytes sent = account_volume(program, program.classes.front().program, s.cluster).per_gpu;
    benchmark::DoNotOptimize(sent);
  }
}
BENCHMARK(volumes)->Unit(benchmark::kMillisecond);

/// One rank's timeline: a step of exactly 32,256 ops, kernels with a gather every 64.
void timeline_of_one_rank(benchmark::State& state) {
  constexpr std::size_t count = 32'256, kernels = 64;
  StepProgram program;
  program.groups = {{"dp", 8, 1}};
  program.world_size = 8;
  RankProgram& rank = program.classes.emplace_back().program;
  // Equal launches share their kernel, as build_step() has it.
  for (std::size_t i = 0; i < kernels; ++i)
    rank.kernels.push_back(Kernel::gemm(4096, 4096, 4096 + static_cast<std::int64_t>(i) * 64, DType::bf16));
  for (std::size_t i = 0; i < count; ++i) {
    Op op;
    op.role = "op";
    if (i % 64 == 0) {
      op.lane = Lane::gather;
      op.action = Collective{CollectiveKind::all_gather, DType::bf16, 0, Bytes(100 << 20), Bytes(100 << 20)};
    } else {
      op.action = Compute{static_cast<KernelId>(i % kernels)};
      if (i % 64 == 1) {
        op.first_after = static_cast<std::uint32_t>(rank.after.size());
        op.after_count = 1;
        rank.after.push_back(static_cast<OpId>(i - 1));
      }
    }
    rank.ops.push_back(op);
  }
  rank.steady_end = count;
  const auto cluster = load_cluster("8xh200");
  const auto calibration = load_calibration("", *cluster);
  SimulateOptions in_step;
  in_step.host_skew = 0;
  for (auto _ : state) {
    Timeline result = simulate_step(program, *cluster, *calibration, in_step);
    benchmark::DoNotOptimize(result.step_time);
  }
  state.counters["ns_per_op"] = benchmark::Counter(
      static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(timeline_of_one_rank)->Unit(benchmark::kMillisecond);

/// A mixture of experts over many GPUs, two rank classes (hosts that differ) and a straggler: goals 0.1, 1 and 10 s.
void timeline_at_scale(benchmark::State& state) {
  auto model = load_model("deepseek-v3");
  auto cluster = load_cluster(std::to_string(state.range(0)) + "xh200");
  PlanContext context;
  context.overrides = {"engine=deepspeed",   "zero.stage=3",  "moe.implementation=autoep",
                       "expert_parallel=64", "micro_batch=1", "sequence=4096"};
  context.cluster_world = cluster->world();
  context.model = &*model;
  auto plan = read_plan(nullptr, context);
  const Scenario s{std::move(*model), std::move(*cluster), std::move(*plan)};
  const StepProgram program = build_step(s, 0);
  const auto calibration = load_calibration("", s.cluster);
  SimulateOptions options;
  options.stragglers[1] = 1.2;
  std::size_t ops = 0;
  for (auto _ : state) {
    Timeline result = simulate_step(program, s.cluster, *calibration, options);
    ops = result.ops.size();
    benchmark::DoNotOptimize(result.step_time);
  }
  state.counters["ops"] = static_cast<double>(ops);
}
BENCHMARK(timeline_at_scale)->Arg(1024)->Arg(9216)->Arg(100'096)->Unit(benchmark::kMillisecond);

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
