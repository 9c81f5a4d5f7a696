// Steps small enough to compute by hand.  Prices are set so that a kernel of n elements takes n microseconds, host and gaps
// nothing, unless a test says otherwise.
#include <gtest/gtest.h>

#include <cmath>

#include "planner/spec/read_cluster.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

constexpr SimTime us = 1'000'000;  // picoseconds

class SimulateTest : public ::testing::Test {
 protected:
  SimulateTest() : cluster_(*load_cluster("2xh200")) {
    KernelPrice small;
    small.fixed_s = 0;
    small.s_per_element = 1e-6;
    calibration_.kernels["small"] = small;
    HostPrices& host = calibration_.host;
    host.launch_forward_s = host.launch_backward_s = host.launch_optimizer_s = 0;
    host.launch_latency_s = host.kernel_gap_s = host.kernel_gap_streams_s = host.sync_s = 0;
    host.work_s["python"] = 1e-6;
    calibration_.interference.collective_factor = 1;
    // A collective of S bytes alone takes S microseconds.
    for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::all_to_all}) {
      calibration_.collectives.push_back({kind, Tier::nvlink, 2, {{0, 1e6}}, {}, {}});
    }
    program_.groups = {{"dp", 2, 1}, {"ep", 2, 1}};
    program_.world_size = 2;
    program_.classes.emplace_back().ranks = 2;
  }

  RankProgram& rank() { return program_.classes.back().program; }
  /// What is added from here on is the list of other ranks.
  void other_ranks(int example, int ranks = 1) {
    program_.classes.emplace_back();
    program_.classes.back().example_rank = example;
    program_.classes.back().ranks = ranks;
  }

  OpId add(const Action& action, Lane lane, std::vector<OpId> after = {}) {
    Op op;
    op.action = action;
    op.lane = lane;
    op.role = "op";
    op.first_after = static_cast<std::uint32_t>(rank().after.size());
    op.after_count = static_cast<std::uint16_t>(after.size());
    rank().after.insert(rank().after.end(), after.begin(), after.end());
    rank().ops.push_back(op);
    rank().steady_end = static_cast<OpId>(rank().ops.size());
    return rank().steady_end - 1;
  }
  OpId compute(std::int64_t microseconds, Lane lane = Lane::compute, std::vector<OpId> after = {}) {
    rank().kernels.push_back(Kernel::pointwise(KernelKind::small, DType::fp32, microseconds, Bytes(0)));
    return add(Compute{static_cast<KernelId>(rank().kernels.size() - 1)}, lane, std::move(after));
  }
  /// All-to-alls are of the experts' group, the rest of the data-parallel one.
  OpId collective(std::int64_t microseconds, Lane lane, CollectiveKind kind = CollectiveKind::all_gather,
                  std::vector<OpId> after = {}) {
    const GroupId group = kind == CollectiveKind::all_to_all ? 1 : 0;
    return add(Collective{kind, DType::bf16, group, Bytes(microseconds), Bytes(microseconds)}, lane, std::move(after));
  }

  Timeline run(SimulateOptions options = {}) {
    if (options.host_skew < 0) options.host_skew = 0;
    return simulate_step(program_, cluster_, calibration_, options);
  }
  static const TimedOp& find(const Timeline& timeline, OpId op, std::uint16_t class_index = 0) {
    for (const TimedOp& timed : timeline.ops) {
      if (timed.op == op && timed.class_index == class_index) return timed;
    }
    ADD_FAILURE() << "op " << op << " did not run";
    return timeline.ops.front();
  }

  ClusterSpec cluster_;
  Calibration calibration_;
  StepProgram program_;
};

TEST_F(SimulateTest, OpsOfALaneRunOneAfterAnother) {
  compute(3);
  const OpId second = compute(4);
  const Timeline timeline = run();
  EXPECT_EQ(timeline.step_time, 7 * us);
  EXPECT_EQ(find(timeline, second).start, 3 * us);
}

TEST_F(SimulateTest, AnEdgeHoldsAnotherLaneBack) {
  const OpId first = compute(5);
  const OpId second = compute(2, Lane::gather, {first});
  compute(1, Lane::reduce);
  const Timeline timeline = run();
  EXPECT_EQ(find(timeline, second).start, 5 * us);
  EXPECT_EQ(timeline.step_time, 7 * us);
}

TEST_F(SimulateTest, TheHostBoundsAStepOfShortKernels) {
  calibration_.host.launch_forward_s = 10e-6;
  for (int i = 0; i < 3; ++i) compute(1);
  const Timeline timeline = run();
  EXPECT_EQ(timeline.step_time, 31 * us);  // the third launch ends after 30, its kernel runs 1
  EXPECT_EQ(timeline.exposed.at("host"), 10 * us + 2 * 9 * us);
  EXPECT_EQ(timeline.bound_by, "host");
}

TEST_F(SimulateTest, ASyncStallsTheHostUntilTheLaneHasDrained) {
  compute(8);
  add(HostSync{Lane::compute}, Lane::host);
  add(HostWork{HostWorkKind::python, 3, Bytes(0)}, Lane::host);
  const OpId last = compute(1);
  EXPECT_EQ(find(run(), last).start, 11 * us);
}

// Two collectives on one tier, each of which alone takes all of it: both take twice as long.
TEST_F(SimulateTest, CollectivesOnOneTierShareIt) {
  const double bandwidth = bandwidth_per_gpu(cluster_, Tier::nvlink).count;
  for (CollectivePrice& price : calibration_.collectives)
    price.pieces = {{0, 2 * 0.9 * bandwidth}};                                // bus factor 1/2: the whole tier
  const auto size = static_cast<std::int64_t>(2 * 0.9 * bandwidth * 100e-6);  // 100 us alone
  collective(size, Lane::gather);
  collective(size, Lane::exchange, CollectiveKind::all_to_all);
  EXPECT_NEAR(static_cast<double>(run().step_time), 200.0 * us, 0.01 * us);
}

TEST_F(SimulateTest, ComputeBesideACollectiveIsStretched) {
  calibration_.interference.factor["small"] = 2;
  collective(4, Lane::gather);
  compute(10);
  // 4 us beside it do 2 us of work; 8 are left.
  EXPECT_EQ(run().step_time, 12 * us);
}

// Copies on their own lane and a kernel bound by memory share its bandwidth: both go at 2/3 of their speed.
TEST_F(SimulateTest, CopiesInAndAMemoryBoundKernelStretchEachOther) {
  const OpId longer = compute(10), copy = compute(4, Lane::copy_in);
  const Timeline timeline = run();
  EXPECT_EQ(find(timeline, copy).end, 6 * us);
  EXPECT_EQ(find(timeline, longer).end, 12 * us);
}

// Copy engines take no multiprocessor: what computes beside them is not stretched, and copies of one group on two lanes share the
// links where kernels of its communicator would follow each other.
TEST_F(SimulateTest, ComputeBesideCopiesIsNotStretched) {
  calibration_.interference.factor["small"] = 2;
  const auto size = static_cast<std::int64_t>(1) << 30;
  Collective copies{CollectiveKind::all_gather, DType::bf16, 0, Bytes(size), Bytes(size), Carrier::copy_engines};
  const OpId gather = add(copies, Lane::gather), other = add(copies, Lane::reduce), kernel = compute(10);
  const Timeline timeline = run();
  EXPECT_EQ(find(timeline, kernel).end, 10 * us);
  const double alone_s =
      23e-6 + static_cast<double>(size) / 2 / (0.867 * bandwidth_per_gpu(cluster_, Tier::nvlink).count);
  EXPECT_EQ(find(timeline, gather).start, find(timeline, other).start);
  EXPECT_NEAR(to_seconds(find(timeline, gather).end), 2 * alone_s, 1e-9);
}

// Beside an all-to-all a kernel has its own factor where one is given, and a collective that of the kernel beside it.
TEST_F(SimulateTest, AnExchangeStretchesComputeMoreAndIsStretchedByIt) {
  calibration_.interference.factor["small"] = 2;
  calibration_.interference.exchange_factor["small"] = 4;
  calibration_.interference.collective_factor = 1;
  calibration_.interference.collective_beside["small"] = 2;
  collective(4, Lane::exchange, CollectiveKind::all_to_all);
  compute(10);
  // 8 us beside it, in which the exchange does its 4 and the kernel 2; 8 are left.
  EXPECT_EQ(run().step_time, 16 * us);
}

// DeepSpeed exchanges on the lane that computes: what runs on other lanes meanwhile is stretched as beside any exchange.
TEST_F(SimulateTest, AnExchangeOnTheComputeLaneStretchesAsAnExchange) {
  calibration_.interference.factor["small"] = 2;
  calibration_.interference.exchange_factor["small"] = 4;
  calibration_.interference.collective_factor = 1;
  collective(4, Lane::compute, CollectiveKind::all_to_all);
  compute(10, Lane::copy_out);
  // 4 us beside it do 1 us of work; 9 are left.
  EXPECT_EQ(run().step_time, 13 * us);
}

// A collective starts when the last rank has arrived.
TEST_F(SimulateTest, AStragglerMakesItsPeersWait) {
  compute(10);
  const OpId gather = collective(5, Lane::compute);
  SimulateOptions options;
  options.stragglers[1] = 3;
  options.tell_of = 0;
  const Timeline timeline = run(options);
  EXPECT_EQ(find(timeline, gather, 0).start, 30 * us);
  EXPECT_EQ(timeline.idle, 20 * us);  // its collective is on the device, but waits
  EXPECT_EQ(timeline.step_time, 35 * us);
  EXPECT_EQ(timeline.exposed.at("bubble"), 20 * us);
}

TEST_F(SimulateTest, ALanesBusyTimeIsTheSumOfItsOpsAndThePathIsTheStep) {
  const OpId gather = collective(6, Lane::gather);
  compute(4);
  compute(3, Lane::compute, {gather});
  const Timeline timeline = run();
  EXPECT_EQ(timeline.step_time, 9 * us);
  EXPECT_EQ(timeline.lanes[static_cast<std::size_t>(Lane::compute)].busy, 7 * us);
  EXPECT_EQ(timeline.exposed.at("all_gather"), 2 * us);
  SimTime path = 0;
  for (const std::uint32_t index : timeline.critical_path) path += timeline.ops[index].end - timeline.ops[index].start;
  EXPECT_EQ(path, timeline.step_time);
}

// A communicator's kernels run one after another, on whatever streams they were launched.
TEST_F(SimulateTest, CollectivesOfOneGroupRunInTheOrderOfTheirIssue) {
  collective(5, Lane::reduce);
  const OpId gather = collective(3, Lane::gather);
  const Timeline timeline = run();
  EXPECT_EQ(find(timeline, gather).start, 5 * us);
  EXPECT_EQ(timeline.step_time, 8 * us);
}

// The gather could start at 0 and the exchange too: together they take less than one after the other, for each alone leaves
// some of the bus unused.
TEST_F(SimulateTest, AGatherAndAnExchangeOnOneBusTakeLessThanTheSumOfBoth) {
  const double bandwidth = bandwidth_per_gpu(cluster_, Tier::nvlink).count;
  for (CollectivePrice& price : calibration_.collectives)
    price.pieces = {{0, 2 * 0.6 * 0.9 * bandwidth}};                                // 60 % of the bus each
  const auto size = static_cast<std::int64_t>(2 * 0.6 * 0.9 * bandwidth * 100e-6);  // 100 us alone
  collective(size, Lane::gather);
  collective(size, Lane::exchange, CollectiveKind::all_to_all);
  EXPECT_NEAR(static_cast<double>(run().step_time), 120.0 * us, 0.01 * us);  // 1.2 of the bus asked for
}

TEST_F(SimulateTest, OneLateRankOfFourMakesThreeWait) {
  program_.world_size = 4;
  program_.groups = {{"dp", 4, 1}, {"ep", 4, 1}};
  cluster_ = *load_cluster("4xh200");
  for (CollectivePrice& price : calibration_.collectives) price.ranks = 4;
  compute(10);
  const OpId gather = collective(5, Lane::compute);
  SimulateOptions options;
  options.stragglers[3] = 2;
  const Timeline timeline = run(options);
  EXPECT_EQ(find(timeline, gather, 0).start, 20 * us);
  EXPECT_EQ(find(timeline, gather, 0).cause, Cause::peers);
  EXPECT_EQ(find(timeline, gather, 1).cause, Cause::lane);
  EXPECT_EQ(timeline.step_time, 25 * us);
}

// Two lists, 3 and 10 us before a gather of 5: the step is that of the second, for which the first waits 7.
TEST_F(SimulateTest, AStepIsAsLongAsThatOfItsSlowestClass) {
  program_.classes.front().ranks = 1;
  compute(3);
  collective(5, Lane::compute);
  other_ranks(1);
  compute(10);
  collective(5, Lane::compute);
  SimulateOptions tell;
  tell.tell_of = 0;
  const Timeline of_the_first = run(tell);
  EXPECT_EQ(of_the_first.step_time, 15 * us);
  EXPECT_EQ(of_the_first.exposed.at("bubble"), 7 * us);
  tell.tell_of = 1;
  const Timeline of_the_second = run(tell);
  EXPECT_EQ(of_the_second.step_time, 15 * us);
  EXPECT_EQ(of_the_second.exposed.count("bubble"), 0U);
  const TimedOp& first_on_the_path = of_the_second.ops[of_the_second.critical_path.front()];
  EXPECT_EQ(of_the_second.classes[first_on_the_path.class_index].name, "rank 1");
}

// Each class is late once: what they share waits for both.
TEST_F(SimulateTest, ClassesThatTakeTurnsWithBeingLateAddUp) {
  program_.classes.front().ranks = 1;
  compute(10);
  collective(1, Lane::compute);
  compute(2);
  collective(1, Lane::compute);
  other_ranks(1);
  compute(2);
  collective(1, Lane::compute);
  compute(10);
  collective(1, Lane::compute);
  EXPECT_EQ(run().step_time, 22 * us);
}

// Of n hosts with the same to do, drawn evenly from 0.7 to 1.3, the slowest is expected at 1 + 0.3 (n - 1) / (n + 1): of two lists
// alike as of one.  Where one has nearly all there is to do, at 1.
TEST_F(SimulateTest, TheSlowestHostIsExpectedByWhatEachHasToDo) {
  calibration_.host.spread = 0.3;
  const auto seconds = [&](int first, int second) {
    program_.classes.clear();
    for (const int work : {first, second}) {
      if (work == 0) continue;
      other_ranks(static_cast<int>(program_.classes.size()), second == 0 ? 2 : 1);
      add(HostWork{HostWorkKind::python, work, Bytes(0)}, Lane::host);
      compute(0);
    }
    return to_seconds(simulate_step(program_, cluster_, calibration_, {}).step_time) * 1e6;
  };
  EXPECT_NEAR(seconds(1000, 0), 1100, 1e-3);
  EXPECT_NEAR(seconds(1000, 1000), 1100, 0.1);  // an integral by 4,096 steps
  EXPECT_NEAR(seconds(10, 1000), 1000, 0.1);
  EXPECT_GT(seconds(900, 1000), 1040);
  EXPECT_LT(seconds(900, 1000), 1100);
}

// Rank 0 waits for a peer whose host is late: that is the host's time, not the link's.
TEST_F(SimulateTest, WaitingForAPeersHostIsTheHostsTime) {
  calibration_.host.launch_forward_s = 10e-6;
  compute(1);
  collective(2, Lane::compute);
  SimulateOptions options;
  options.host_skew = 1;  // the second class takes 20 us a launch
  const Timeline timeline = run(options);
  EXPECT_EQ(find(timeline, 1, 0).start, 40 * us);
  EXPECT_EQ(find(timeline, 1, 0).cause, Cause::peer_host);
  EXPECT_EQ(timeline.step_time, 42 * us);
  EXPECT_EQ(timeline.bound_by, "host");
  EXPECT_EQ(timeline.exposed.at("all_gather"), 2 * us);
  EXPECT_EQ(timeline.exposed.at("host"), 39 * us);
}

// The compute lane waits 9 us: the host issues the gather after 5 of them, the gather takes the other 4.
TEST_F(SimulateTest, AGapIsDividedAlongTheChainOfWhatItWaitedFor) {
  add(HostWork{HostWorkKind::python, 5, Bytes(0)}, Lane::host);
  const OpId gather = collective(4, Lane::gather);
  compute(1, Lane::compute, {gather});
  const Timeline timeline = run();
  EXPECT_EQ(timeline.step_time, 10 * us);
  EXPECT_EQ(timeline.exposed.at("host"), 5 * us);
  EXPECT_EQ(timeline.exposed.at("all_gather"), 4 * us);
}

TEST_F(SimulateTest, AFullQueueHoldsTheHostBack) {
  calibration_.host.queue_depth = 2;
  for (int i = 0; i < 4; ++i) compute(10);
  add(HostWork{HostWorkKind::cpu_adam, 1, Bytes(0)}, Lane::host);
  // The fourth launch waits for the second kernel's end, and the host's work for the fourth launch.
  EXPECT_EQ(find(run(), 4).start, 20 * us);
}

// Four kernels launched by one operation, 10 us each: the first runs while the host launches the others, and the last is not done
// before it is launched.
TEST_F(SimulateTest, TheFirstOfSeveralKernelsRunsWhileTheHostLaunchesTheOthers) {
  calibration_.host.launch_forward_s = 10e-6;
  const OpId long_ones = compute(40), short_ones = compute(4);
  for (Kernel& kernel : rank().kernels) kernel.launches = 4;
  const Timeline timeline = run();
  EXPECT_EQ(find(timeline, long_ones).start, 10 * us);
  EXPECT_EQ(find(timeline, short_ones).start, 76 * us);
  EXPECT_EQ(timeline.lanes[static_cast<std::size_t>(Lane::host)].busy, 80 * us);
  EXPECT_EQ(timeline.step_time, 80 * us);
}

TEST_F(SimulateTest, ProductsOfEachExpertAreALoopWithinOneOperation) {
  calibration_.host.launch_forward_s = 10e-6;
  calibration_.host.launch_repeated_s = 2e-6;
  const Prices prices(calibration_, cluster_, program_, 1);
  Kernel products = Kernel::grouped_gemm(64, 8, 8, DType::fp32, 4);
  products.launches = 4;
  EXPECT_EQ(prices.launch(Issuer::forward, products), (10 + 3 * 2) * us);
}

// Power is capped: at half of the rate at which clocks have sagged in full, what they bound takes half the sag longer.
TEST_F(SimulateTest, ClocksSagByTheTensorWorkOverTheStepTime) {
  GemmPrice& gemm = calibration_.gemm;
  gemm.sag = 1.2;
  gemm.sag_from = 0;
  gemm.sag_full = 1;
  gemm.launch_s = gemm.epilogue_s_per_element = gemm.traffic_share = 0;
  gemm.flops_per_s = 1e12 * 132;  // 1 TFLOP/s an SM
  gemm.memory_bytes_per_s = 1e18;
  gemm.tiles = {{128, 128, 1}};
  rank().kernels.push_back(Kernel::gemm(128 * 132, 128, 8192, DType::bf16));
  add(Compute{0}, Lane::compute);
  const double alone = 2.0 * 128 * 128 * 8192 / 1e12;
  // x = alone (1 + 0.2 alone / x)
  const double expected = alone * (1 + std::sqrt(1 + 0.8)) / 2;
  EXPECT_NEAR(to_seconds(run().step_time), expected, 0.003 * expected);  // a sag within 0.002 is not simulated again
}

TEST_F(SimulateTest, ARingAllGatherTakesAStepLessThanItHasRanks) {
  // Without a curve: a fixed start, a hop a step, and the wire's time at 85 % of the published bandwidth.
  Calibration bare;
  const auto seconds = [&](int ranks) {
    const ClusterSpec cluster = *load_cluster(std::to_string(ranks) + "xh200");
    StepProgram program;
    program.groups = {{"dp", ranks, 1}};
    program.classes.emplace_back();
    const Prices prices(bare, cluster, program, 1);
    const std::int64_t bytes = 1 << 20;
    const double wire = bytes * (ranks - 1.0) / ranks / (0.85 * bandwidth_per_gpu(cluster, Tier::nvlink).count);
    return to_seconds(
               prices.collective({CollectiveKind::all_gather, DType::bf16, 0, Bytes(bytes), Bytes(bytes)}, 0).time) -
           wire;
  };
  const double hop = hop_latency(cluster_, Tier::nvlink).count;
  EXPECT_NEAR(seconds(8) - seconds(2), 6 * hop, 1e-11);
  EXPECT_NEAR(seconds(4) - seconds(2), 2 * hop, 1e-11);
}

TEST_F(SimulateTest, AnEdgeToWhatIsNotYetIssuedBelongsToAnEarlierStep) {
  compute(1);
  OpId later = compute(1, Lane::gather, {0});
  rank().after.back() = later + 1;  // waits for an op that its own lane issues afterwards
  compute(1, Lane::gather);
  const Timeline timeline = run();
  EXPECT_TRUE(timeline.unfinished.empty());
}

// Two lists that come to two groups in opposite order: each waits for the other, and what follows them for them.
TEST_F(SimulateTest, ADeadlockTellsWhoWaitsForWhat) {
  program_.classes.front().ranks = 1;
  const OpId first = collective(5, Lane::compute);
  collective(5, Lane::compute, CollectiveKind::all_to_all);
  compute(1, Lane::gather, {first});
  add(HostSync{Lane::gather}, Lane::host);
  other_ranks(1);
  collective(5, Lane::compute, CollectiveKind::all_to_all);
  collective(5, Lane::compute);
  const std::vector<std::string> expected{
      "rank 0: op (op 0) on the compute lane waits for rank 1",
      "rank 0: op (op 2) on the gather lane waits for op (op 0) on the compute lane",
      "rank 0: the host waits for the gather lane", "rank 1: op (op 0) on the compute lane waits for rank 0"};
  EXPECT_EQ(run().unfinished, expected);
}

TEST_F(SimulateTest, RepeatedMicroBatchesRunAsOftenAsTheyAre) {
  compute(2);
  rank().repeats.push_back({0, rank().steady_end, 5});
  compute(1);
  EXPECT_EQ(run().step_time, 11 * us);
}

}  // namespace
}  // namespace plimsoll
