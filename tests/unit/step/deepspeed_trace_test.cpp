// A steady step at stage 1, event by event, against what the allocator saw on a device: same sizes in the same order.
#include <gtest/gtest.h>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/account/allocator_trace.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

/// Smaller ones are counters, norms and small activations, which are not all recorded.
constexpr std::int64_t least = 300'000;

/// Allocations as sizes, frees as negative sizes.
std::vector<std::int64_t> measured(const std::string& name) {
  const AllocatorTrace trace = load_trace(PLIMSOLL_SOURCE_DIR, name);
  std::vector<std::int64_t> sizes(trace.ids), events;
  for (const AllocatorTrace::Event& event : trace.events) {
    if (event.size > 0) sizes[event.id] = event.size;
    if (sizes[event.id] >= least) events.push_back(event.size > 0 ? event.size : -sizes[event.id]);
  }
  return events;
}

std::vector<std::int64_t> recorded(const Scenario& scenario) {
  RankProgram program;
  build_deepspeed(scenario, 0, program);
  std::vector<std::int64_t> events;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (!alloc && !free) continue;
    const BufferDecl& buffer = program.buffers[alloc ? alloc->buffer : free->buffer];
    if (buffer.pool == Lane::host || buffer.size.count < least) continue;
    events.push_back(alloc ? buffer.size.count : -buffer.size.count);
  }
  return events;
}

TEST(DeepSpeedTrace, Stage1OfA1BModelAgreesEventByEvent) {
  constexpr const char* llama = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
    "tie_word_embeddings": true, "max_position_embeddings": 8192})";
  const Scenario scenario =
      make_scenario(llama, {"zero.stage=1", "micro_batch=2", "sequence=2048", "gradient_clipping=1.0"}, "2xh200");
  const std::vector<std::int64_t> expected = measured("ds-z1-llama1b-mb2"), actual = recorded(scenario);
  EXPECT_EQ(expected.size(), 3042u);
  EXPECT_EQ(actual, expected);
}

}  // namespace
}  // namespace plimsoll
