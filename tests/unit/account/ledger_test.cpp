// Intervals and verdicts of small programs written out by hand.
#include "planner/account/ledger.hpp"

#include <gtest/gtest.h>

namespace plimsoll {
namespace {

constexpr std::int64_t mib = 1 << 20;

/// A job that holds `built` in its construction, gives it back to the driver, and then `steps` in each step.
RankProgram job(Bytes built, Bytes steps) {
  RankProgram program;
  const auto record = [&](Action action) { program.ops.push_back({std::move(action)}); };
  const auto phase = [&](const char* name, Bytes size) {
    const auto first = static_cast<OpId>(program.ops.size());
    const auto buffer = static_cast<BufferId>(program.buffers.size());
    program.buffers.push_back({});
    program.buffers.back().size = size;
    program.buffers.back().name = name;
    record(Alloc{buffer});
    record(Free{buffer});
    if (program.phases.empty()) record(EmptyCache{});
    program.phases.push_back({name, first, static_cast<OpId>(program.ops.size())});
  };
  phase("initialized", built);
  phase("first_step_forward", steps);
  program.steady_first = static_cast<OpId>(program.ops.size());
  phase("steady_forward", steps);
  program.steady_end = static_cast<OpId>(program.ops.size());
  return program;
}

LedgerContext routed(Bytes capacity) {
  LedgerContext context;
  context.capacity = capacity;
  context.reserved_margin = 0.18;
  context.reserved_margin_below = context.allocated_margin_below = 0.06;
  return context;
}

// Routing cannot move what construction holds: 1000 MiB of 1100 fit, though 1180 would not.
TEST(Ledger, RoutingDoesNotWidenThePeakOfConstruction) {
  const Ledger ledger = make_ledger(job(Bytes(1000 * mib), Bytes(400 * mib)), routed(Bytes(1100 * mib)));
  EXPECT_EQ(ledger.job_device_peak.value, Bytes(1000 * mib));
  EXPECT_EQ(ledger.job_device_peak.interval.low, Bytes(1000 * mib));
  EXPECT_EQ(ledger.job_device_peak.interval.high, Bytes(1000 * mib));
  EXPECT_EQ(ledger.verdict, Verdict::fits);
}

TEST(Ledger, ARoutedStepThatMayPassConstructionIsWhatIsTight) {
  const Ledger ledger = make_ledger(job(Bytes(1000 * mib), Bytes(950 * mib)), routed(Bytes(1100 * mib)));
  EXPECT_EQ(ledger.job_peak_phase, "initialized");
  EXPECT_EQ(ledger.job_device_peak.interval.high, Bytes(1121 * mib));  // 1.18 x 950
  EXPECT_EQ(ledger.verdict, Verdict::tight);
  EXPECT_EQ(ledger.breaks_phase, "steady_forward");
}

TEST(Ledger, NoLessIsReservedThanAllocated) {
  LedgerContext context = routed(Bytes(1170 * mib));
  context.allocated_margin_below = 0.02;
  const Ledger ledger = make_ledger(job(Bytes(100 * mib), Bytes(1000 * mib)), context);
  EXPECT_EQ(ledger.reserved_peak.interval.low, Bytes(980 * mib));
  EXPECT_EQ(ledger.job_device_peak.interval.low, Bytes(980 * mib));
}

TEST(Ledger, ARoutedStepAtTheJobsPeakKeepsItsMargin) {
  const Ledger ledger = make_ledger(job(Bytes(100 * mib), Bytes(1000 * mib)), routed(Bytes(1170 * mib)));
  EXPECT_EQ(ledger.job_device_peak.interval.low, Bytes(940 * mib));
  EXPECT_EQ(ledger.job_device_peak.interval.high, Bytes(1180 * mib));
  EXPECT_EQ(ledger.verdict, Verdict::tight);
  EXPECT_EQ(ledger.breaks_phase, "first_step_forward");
}

}  // namespace
}  // namespace plimsoll
