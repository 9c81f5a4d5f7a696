// Does a traced step allocate and free what a real step did, in the same order?  Requests of 300,000 bytes and more, against
// the recorded steps in tests/data/allocator_traces.
#include <gtest/gtest.h>

#include <unordered_map>

#include "planner/step/engines/engines.hpp"
#include "tests/unit/account/allocator_trace.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t least = 300'000;

constexpr const char* llama1b = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
  "max_position_embeddings": 8192, "tie_word_embeddings": true})";

/// Sizes in order; frees are negative.
std::vector<std::int64_t> measured(const std::string& name) {
  const AllocatorTrace trace = load_trace(PLIMSOLL_SOURCE_DIR, name);
  std::unordered_map<std::size_t, std::int64_t> size_of_id;
  std::vector<std::int64_t> result;
  for (const AllocatorTrace::Event& event : trace.events) {
    if (event.size > 0) size_of_id[event.id] = event.size;
    const std::int64_t size = size_of_id.at(event.id);
    if (size >= least) result.push_back(event.size > 0 ? size : -size);
  }
  return result;
}

/// What was allocated before the step is left out, as in the record.
std::vector<std::int64_t> traced(const RankProgram& program) {
  std::vector<bool> of_this_step(program.buffers.size(), false);
  std::vector<std::int64_t> result;
  for (OpId id = program.steady_first; id < program.steady_end; ++id) {
    const auto* alloc = std::get_if<Alloc>(&program.ops[id].action);
    const auto* free = std::get_if<Free>(&program.ops[id].action);
    if (alloc) of_this_step[alloc->buffer] = true;
    if (!alloc && !(free && of_this_step[free->buffer])) continue;
    const std::int64_t size = program.buffers[alloc ? alloc->buffer : free->buffer].size.count;
    if (size >= least) result.push_back(alloc ? size : -size);
  }
  return result;
}

void expect_equal_events(const std::vector<std::int64_t>& mine, const std::vector<std::int64_t>& real) {
  ASSERT_EQ(mine.size(), real.size());
  for (std::size_t i = 0; i < real.size(); ++i) ASSERT_EQ(mine[i], real[i]) << "event " << i << " of " << real.size();
}

TEST(EventList, Fsdp2StepOfLlama1bIsTheMeasuredOne) {
  const Scenario scenario =
      make_scenario(llama1b, {"engine=fsdp2", "world_size=2", "micro_batch=1", "sequence=2048"}, "2xh200");
  RankProgram program;
  build_fsdp2(scenario, 0, program);
  const auto real = measured("fsdp2-llama1b-mb1-s2048");
  EXPECT_EQ(real.size(), 3602u);
  expect_equal_events(traced(program), real);
}

TEST(EventList, AutocastStepOfLlama1bIsTheMeasuredOne) {
  const Scenario scenario = make_scenario(
      llama1b, {"engine=ddp", "precision=bf16_autocast", "world_size=1", "micro_batch=1", "sequence=2048"}, "1xh200");
  RankProgram program;
  build_ddp(scenario, 0, program);
  const auto real = measured("amp-llama1b-mb1-s2048");
  EXPECT_EQ(real.size(), 3678u);
  expect_equal_events(traced(program), real);
}

}  // namespace
}  // namespace plimsoll
