// Steps recorded on a device, replayed: every free finds its block, and the allocated peak is the measured one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/account/allocator.hpp"
#include "tests/unit/account/allocator_trace.hpp"

namespace plimsoll {
namespace {

class MeasuredStep : public ::testing::TestWithParam<const char*> {};

// What was alive before the step stands as one block, so that holes between older blocks are missing: whether a large block
// keeps a remainder of up to 1 MiB depends on them (measured runs differ by one or two such remainders, 0.005 %).  With
// expandable segments there are no remainders, and the peak is the sum of rounded sizes.
TEST_P(MeasuredStep, ReproducesTheMeasuredPeak) {
  const AllocatorTrace trace = load_trace(PLIMSOLL_SOURCE_DIR, GetParam());
  for (const bool expandable : {false, true}) {
    AllocatorRules rules;
    rules.expandable_segments = expandable;
    CachingAllocator allocator(rules);
    ASSERT_TRUE(allocator.malloc(Bytes(trace.live_before)).has_value());
    const std::int64_t counted_before = allocator.now().allocated.count;
    std::vector<BlockId> blocks(trace.ids, BlockId::empty);
    for (int step = 0; step < 3; ++step) {
      allocator.reset_peak();
      for (const AllocatorTrace::Event& event : trace.events) {
        if (event.size > 0) {
          blocks[event.id] = allocator.malloc(Bytes(event.size)).value();
        } else {
          allocator.free(blocks[event.id]);
        }
        ASSERT_GE(allocator.now().allocated.count, counted_before);
        ASSERT_LE(allocator.now().allocated, allocator.now().reserved);
      }
      const auto peak = static_cast<double>(allocator.peak().allocated.count - counted_before + trace.live_before);
      EXPECT_NEAR(peak / static_cast<double>(trace.measured_peak), 1.0, 1e-4) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Allocator, MeasuredStep,
                         ::testing::Values("amp-llama1b-mb1-s2048", "amp-mixtral-s-mb2-s2048", "ds-z1-llama1b-mb2",
                                           "ds-z3-mixtral-leaf-mb4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

}  // namespace
}  // namespace plimsoll
