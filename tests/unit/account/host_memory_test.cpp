// What does a process hold in host memory at its highest?  Pageable and pinned bytes at one moment, pinned ones by powers of
// two, freed ones kept.
#include <gtest/gtest.h>

#include "planner/account/replay.hpp"
#include "planner/step/autograd/trace.hpp"

namespace plimsoll {
namespace {

Tensor host(Trace& trace, std::int64_t bytes, bool pinned) {
  return trace.host_empty({{bytes}}, DType::int8, "on the host", Category::parameters, pinned);
}

/// A job without a training step.
void end(Trace& trace) {
  trace.stop();
  trace.program().steady_first = trace.program().steady_end = trace.next_op();
}

TEST(HostMemory, HighestIsASumAtOneMoment) {
  RankProgram program;
  {
    Trace trace(program);
    trace.begin_phase("initialized");
    Tensor pageable = host(trace, 1000, false);  // 1000
    Tensor small = host(trace, 100, true);       // 1000 + 128, the highest
    pageable = {};
    const Tensor large = host(trace, 500, true);  // 128 + 512
    end(trace);
  }
  const Replay replay = replay_allocator(program);
  ASSERT_EQ(replay.phases.size(), 1U);
  const PhaseMemory& phase = replay.phases.front();
  EXPECT_EQ(phase.host_unpinned_at_peak, Bytes(1000));
  EXPECT_EQ(phase.host_pinned_at_peak, Bytes(128));
  EXPECT_EQ(phase.host_unpinned_end, Bytes(0));
  EXPECT_EQ(phase.host_pinned_end, Bytes(640));
}

TEST(HostMemory, AFreedPinnedBlockServesItsPowerOfTwoOnly) {
  RankProgram program;
  {
    Trace trace(program);
    trace.begin_phase("initialized");
    host(trace, 100, true);                      // 128, freed at once
    const Tensor same = host(trace, 120, true);  // takes it
    const Tensor other = host(trace, 60, true);  // 64 more
    end(trace);
  }
  const Replay replay = replay_allocator(program);
  EXPECT_EQ(replay.phases.front().host_pinned_end, Bytes(192));
}

}  // namespace
}  // namespace plimsoll
