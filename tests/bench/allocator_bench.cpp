// How long does the allocator replay take per event?  Recorded steps, replayed over and over.
#include <benchmark/benchmark.h>

#include "planner/account/allocator.hpp"
#include "tests/unit/account/allocator_trace.hpp"

namespace plimsoll {
namespace {

void replay_step(benchmark::State& state, const std::string& name, bool expandable) {
  const AllocatorTrace trace = load_trace(PLIMSOLL_SOURCE_DIR, name);
  AllocatorRules rules;
  rules.expandable_segments = expandable;
  CachingAllocator allocator(rules);
  benchmark::DoNotOptimize(allocator.malloc(Bytes(trace.live_before)));
  std::vector<BlockId> blocks(trace.ids, BlockId::empty);
  for ([[maybe_unused]] auto _ : state) {
    for (const AllocatorTrace::Event& event : trace.events) {
      if (event.size > 0) {
        blocks[event.id] = *allocator.malloc(Bytes(event.size));
      } else {
        allocator.free(blocks[event.id]);
      }
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(trace.events.size()));
  state.counters["per_event"] =
      benchmark::Counter(static_cast<double>(trace.events.size()),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(replay_step, amp, "amp-llama1b-mb1-s2048", false);
BENCHMARK_CAPTURE(replay_step, moe, "amp-mixtral-s-mb2-s2048", false);
BENCHMARK_CAPTURE(replay_step, zero1, "ds-z1-llama1b-mb2", false);
BENCHMARK_CAPTURE(replay_step, zero3_moe, "ds-z3-mixtral-leaf-mb4", false);
BENCHMARK_CAPTURE(replay_step, zero3_moe_expandable, "ds-z3-mixtral-leaf-mb4", true);

// The bad case of a sorted bin: many holes of one size between blocks in use, freed and taken in random order.
void equal_holes(benchmark::State& state) {
  CachingAllocator allocator;
  const auto holes = static_cast<std::size_t>(state.range(0));
  std::vector<BlockId> blocks;
  for (std::size_t i = 0; i < 2 * holes; ++i) blocks.push_back(*allocator.malloc(Bytes(512)));
  for ([[maybe_unused]] auto _ : state) {
    for (std::size_t i = 0; i < holes; ++i) allocator.free(blocks[2 * (i * 7919 % holes)]);
    for (std::size_t i = 0; i < holes; ++i) blocks[2 * (i * 7919 % holes)] = *allocator.malloc(Bytes(512));
  }
  state.SetItemsProcessed(state.iterations() * 2 * state.range(0));
}
BENCHMARK(equal_holes)->Arg(100)->Arg(1000)->Arg(10000);

}  // namespace
}  // namespace plimsoll
