// Does the whole chain run without a GPU: bench, fit, simulate, report; and is nothing lost when bench is killed?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "calibrate/samples/sample.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/calibrate/shell.hpp"

namespace plimsoll::calibrate {
namespace {

using testing::HasSubstr;

const std::string calibrate = PLIMSOLL_CALIBRATE_BINARY;
const std::string plimsoll_binary = PLIMSOLL_BINARY;
/// Short repetitions: these tests are about the chain, not about precise times.
const std::string quick = " --point 0.002 --narrow 50 ";

TEST(Chain, BenchFitSimulateReport) {
  const test::TemporaryFolder folder;
  const std::string samples = folder.path("host.jsonl"), fitted = folder.path("host.json"),
                    plot = folder.path("host.svg");
  const Ran bench = run(calibrate + " bench --backend host -o " + samples + " --point 0.01 --narrow 10");
  ASSERT_EQ(bench.code, 0) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr(" 0 failed, 0 left"));
  const Ran fit = run(calibrate + " fit " + samples + " -o " + fitted);
  ASSERT_EQ(fit.code, 0) << fit.output;
  EXPECT_THAT(fit.output, HasSubstr("memory-bound kernels"));
  EXPECT_THAT(fit.output, HasSubstr("collectives"));
  const Ran simulate = run(plimsoll_binary +
                           " simulate --model llama-3.2-1b --cluster 2xh100 --set zero.stage=1 --set micro_batch=1 "
                           "--set sequence=1024 --calibration " +
                           fitted + " --json");
  ASSERT_EQ(simulate.code, 0) << simulate.output;
  EXPECT_THAT(simulate.output, HasSubstr("\"step_time_s\""));
  const Ran report = run(calibrate + " report " + fitted + " " + samples + " --plot " + plot);
  ASSERT_EQ(report.code, 0) << report.output;
  EXPECT_THAT(report.output, HasSubstr("gemm"));
  EXPECT_THAT(text_of(plot), HasSubstr("<circle"));
  const Ran check = run(calibrate + " check " + fitted + " --backend host --seconds 2");
  ASSERT_EQ(check.code, 0) << check.output;
  EXPECT_THAT(check.output, HasSubstr("drifted most"));
}

// Grouped products of bench are cuBLAS's; those of this calibration, PyTorch's, which take half as long: 56 % off it seemed.
TEST(Report, KernelsOfAFrameworkAreNotComparedWithTheBenchsOwn) {
  const Ran report = run(calibrate + " report 2xh200-bench " PLIMSOLL_SOURCE_DIR "/docs/samples/2xh200.jsonl.gz");
  ASSERT_EQ(report.code, 0) << report.output;
  EXPECT_THAT(report.output, HasSubstr("samples were left out: what the calibration says there is of a framework's"));
  EXPECT_THAT(report.output, testing::Not(HasSubstr("grouped gemm")));
  EXPECT_THAT(report.output, HasSubstr("kernel fused_norm"));
}

TEST(Check, EveryClassOfTheHostsIsMeasuredAgain) {
  const Ran check = run(calibrate + " check host --backend host --seconds 5");
  ASSERT_EQ(check.code, 0) << check.output;
  for (const char* kind : {"gemm", "kernel silu", "copy host_to_device", "collective all_to_all"})
    EXPECT_THAT(check.output, HasSubstr(kind));
}

std::vector<std::string> keys_in(const std::string& path) {
  const auto file = read_samples(path);
  std::vector<std::string> keys;
  if (file) {
    EXPECT_TRUE(file.diagnostics().empty()) << format(file.diagnostics().front());
    for (const Sample& sample : file->samples) keys.push_back(key_of(sample.point));
  }
  return keys;
}

/// Starts bench and kills it after `ms`; true if it had ended before.
bool run_and_kill(const std::string& samples, int ms) {
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(126);
    execl(calibrate.c_str(), calibrate.c_str(), "bench", "--backend", "host", "-o", samples.c_str(), "--resume",
          "--point", "0.002", "--narrow", "50", nullptr);
    _exit(127);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  int status = 0;
  const bool ended = waitpid(child, &status, WNOHANG) == child;
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  return ended;
}

TEST(Bench, KilledAtTwentyRandomMomentsAndResumedHoldsTheSameSamples) {
  const test::TemporaryFolder folder;
  const Ran whole = run(calibrate + " bench --backend host -o " + folder.path("whole.jsonl") + quick);
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::string torn = folder.path("torn.jsonl");
  std::mt19937 engine(20);
  std::uniform_int_distribution<int> moment(3, 150);
  std::size_t before = 0;
  for (int i = 0; i < 20; ++i) {
    run_and_kill(torn, moment(engine));
    if (!std::filesystem::exists(torn)) continue;  // killed before it began
    const auto file = read_samples(torn);
    const std::size_t now = file ? file->samples.size() : 0;
    EXPECT_GE(now, before) << "a kill may lose the sample under way, never an earlier one";
    before = now;
  }
  const Ran last = run(calibrate + " bench --backend host -o " + torn + " --resume" + quick);
  ASSERT_EQ(last.code, 0) << last.output;
  EXPECT_EQ(keys_in(torn), keys_in(folder.path("whole.jsonl")));
}

TEST(Bench, ABudgetLeavesTheRestAndSaysHowToGoOn) {
  const test::TemporaryFolder folder;
  const Ran bench = run(calibrate + " bench --backend host -o " + folder.path("a.jsonl") + " --budget 0.05s" + quick);
  ASSERT_EQ(bench.code, 0) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr("--resume goes on"));
}

// A slip in --only once replaced the samples of an hour by a header.
TEST(Bench, WhatChoosesNoPointIsRefusedAndTheSamplesStay) {
  const test::TemporaryFolder folder;
  const std::string samples = folder.write("a.jsonl", "samples of an hour\n");
  const std::string bench = calibrate + " bench --backend host -o " + samples;
  for (const char* slip : {" --only copy --only gem_m", " --budget nan", " --budget inf"}) {
    EXPECT_EQ(run(bench + slip).code, 2) << slip;
    EXPECT_EQ(text_of(samples), "samples of an hour\n") << slip;
  }
  EXPECT_EQ(run(bench + " --benchmark_filter=nosuch").code, 2);
}

TEST(Fit, WhatIsReadIsNotWrittenOver) {
  const test::TemporaryFolder folder;
  const std::string log = folder.write("a.jsonl", "{}\n"), link = folder.path("link");
  std::filesystem::create_symlink(log, link);
  for (const std::string& command : {" fit " + log + " -o " + link, " fit " + log + " -o b.json --plot " + log,
                                     " import " + log + " -o " + log, " report h200 " + log + " --plot " + log}) {
    const Ran refused = run(calibrate + command);
    EXPECT_EQ(refused.code, 2) << command;
    EXPECT_THAT(refused.output, HasSubstr("write to another file"));
    EXPECT_EQ(text_of(log), "{}\n") << command;
  }
}

TEST(Import, LogsWithoutASampleLeaveTheOutputAlone) {
  const test::TemporaryFolder folder;
  const std::string trace = folder.write("k.json",
                                         R"({"traceEvents":[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":-5}]})"),
                    samples = folder.write("a.jsonl", "samples of an hour\n");
  const Ran import = run(calibrate + " import " + trace + " --device h200 -o " + samples);
  EXPECT_EQ(import.code, 1) << import.output;
  EXPECT_THAT(import.output, HasSubstr("is not written"));
  EXPECT_EQ(text_of(samples), "samples of an hour\n");
}

TEST(Bench, GoogleBenchmarksFilterAndJsonWork) {
  const test::TemporaryFolder folder;
  const std::string json = folder.path("b.json");
  const Ran bench = run(calibrate + " bench --backend host -o " + folder.path("a.jsonl") + quick +
                        "--benchmark_filter=op=all_gather --benchmark_out_format=json --benchmark_out=" + json);
  ASSERT_EQ(bench.code, 0) << bench.output;
  EXPECT_THAT(bench.output, HasSubstr("4 points measured"));
  const Ran import = run(calibrate + " import " + json + " --device host -o " + folder.path("c.jsonl"));
  ASSERT_EQ(import.code, 0) << import.output;
  EXPECT_EQ(keys_in(folder.path("c.jsonl")), keys_in(folder.path("a.jsonl")));
}

TEST(Bench, TheShapesOfAModelComeFirst) {
  const Ran list = run(
      calibrate +
      " bench --list --model llama-3.2-1b --cluster 1xh200 --set engine=ddp --set micro_batch=2 --set sequence=2048");
  ASSERT_EQ(list.code, 0) << list.output;
  // The MLP of Llama-3.2-1B: 4096 tokens, 2048 -> 8192.
  EXPECT_LT(list.output.find("gemm/dtype=bf16/layout=forward/k=2048/m=4096/n=8192"), list.output.find("kernel/"));
  EXPECT_THAT(list.output, HasSubstr("layout=weight_gradient/k=4096/"));
}

TEST(Bench, TheGroupsOfExpertParallelismAreMeasuredOnAWholeNode) {
  const auto groups = [](const std::string& world) {
    std::map<std::string, int> points;
    std::istringstream lines(run("RANK=0 WORLD_SIZE=" + world + " " + calibrate + " bench --list").output);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t at = line.find("/group=");
      if (at != std::string::npos) ++points[line.substr(at + 7, line.find('/', at + 7) - at - 7)];
    }
    return points;
  };
  // Four collectives from 2^10 to 2^30 bytes; ep = 2 and 4 of 8, each with the ranks that hold the same experts.
  constexpr int all = 4 * 21;
  EXPECT_THAT(groups("8"),
              testing::ElementsAre(testing::Pair("2x1", all), testing::Pair("2x4", all), testing::Pair("4x1", all),
                                   testing::Pair("4x2", all), testing::Pair("world", 169)));
  EXPECT_THAT(groups("4"),
              testing::ElementsAre(testing::Pair("2x1", all), testing::Pair("2x2", all), testing::Pair("world", 169)));
  EXPECT_THAT(groups("2"), testing::ElementsAre(testing::Pair("world", 169)));
}

TEST(Bench, WithoutADeviceCudaSaysSoAndExitsWith3) {
  const test::TemporaryFolder folder;
  // An empty list hides every device, so that the answer is the same on a machine that has one.
  const Ran bench = run("CUDA_VISIBLE_DEVICES= " + calibrate + " bench -o " + folder.path("a.jsonl"));
  EXPECT_EQ(bench.code, 3);
  EXPECT_THAT(bench.output, HasSubstr("--backend host measures this machine's cores"));
}

TEST(Bench, ANeighbourThatDiesEndsTheOthersByName) {
  const test::TemporaryFolder folder;
  const std::string port = std::to_string(21000 + getpid() % 9000);
  const std::string rank = " WORLD_SIZE=2 PLIMSOLL_PORT=" + port + " " + calibrate +
                           " bench --backend host --timeout 30s --point 0.5 --narrow 0.01 -o " + folder.path("a.jsonl");
  const Ran both =
      run("sh -c 'RANK=1" + rank + " & child=$!; RANK=0" + rank + " & first=$!; until [ -s " + folder.path("a.jsonl") +
          " ] || ! kill -0 $first; do sleep 0.1; done; sleep 0.5; kill -9 $child; wait $first; echo code $?'");
  EXPECT_THAT(both.output, HasSubstr("rank 1 ended"));
  EXPECT_THAT(both.output, HasSubstr("code 3"));
}

TEST(Bench, ProcessesOfTorchrunAndSlurmMeasureCollectivesBetweenThem) {
  const test::TemporaryFolder folder;
  int port = 30000 + getpid() % 9000;
  for (const auto& [rank, world] : {std::pair{"RANK", "WORLD_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    const std::string file = folder.path(std::string(rank) + ".jsonl");
    const std::string one =
        fmt::format(" {}=3 PLIMSOLL_PORT={} {} bench --backend host --only collective --point 0.02 -o {}", world,
                    port++, calibrate, file);
    const std::string name(rank);
    const Ran all =
        run("sh -c '" + name + "=1" + one + " & " + name + "=2" + one + " & " + name + "=0" + one + "; wait'");
    EXPECT_THAT(all.output, HasSubstr("16 points measured")) << rank;
    EXPECT_THAT(all.output, HasSubstr("0 failed")) << rank;
    EXPECT_THAT(text_of(file), HasSubstr("\"ranks\":3"));
  }
}

/// bench with the options of each of two ranks; the code is rank 0's.
Ran run_two_ranks(const std::string& of_rank_0, const std::string& of_rank_1) {
  const std::string bench =
      fmt::format(" WORLD_SIZE=2 PLIMSOLL_PORT={} {} bench --backend host ", 30000 + getpid() % 9000, calibrate);
  return run("sh -c 'RANK=1" + bench + of_rank_1 + " & RANK=0" + bench + of_rank_0 + "; code=$?; wait; exit $code'");
}

// Four points each: a rank's all_gather was another's all_reduce.
TEST(Bench, RanksThatWereGivenDifferentPointsSaySo) {
  const test::TemporaryFolder folder;
  const std::string options = "--timeout 20s -o " + folder.path("a.jsonl") + " --only ";
  const Ran both = run_two_ranks(options + "all_reduce", options + "all_gather");
  EXPECT_EQ(both.code, 3) << both.output;
  EXPECT_THAT(both.output, HasSubstr("all ranks need the same options"));
}

TEST(Bench, RanksStayUntilTheFirstHasMeasuredWhatItMeasuresAlone) {
  const test::TemporaryFolder folder;
  const std::string options = "--only host --point 0.3 -o " + folder.path("alone.jsonl");
  const Ran both = run_two_ranks(options, options);
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_THAT(both.output, HasSubstr("0 failed"));
}

TEST(Probe, WritesAClusterThatTheCommandsTake) {
  const test::TemporaryFolder folder;
  const Ran probe = run("CUDA_VISIBLE_DEVICES= " + calibrate + " probe -o " + folder.path("cluster.json"));
  ASSERT_EQ(probe.code, 0) << probe.output;
  const Ran check = run(plimsoll_binary + " check --model llama-3.2-1b --cluster " + folder.path("cluster.json"));
  EXPECT_EQ(check.code, 0) << check.output << text_of(folder.path("cluster.json"));
}

TEST(Program, StartsFromPlimsollAndAnswersUsage) {
  EXPECT_EQ(run(plimsoll_binary + " calibrate --help").code, 0);
  EXPECT_EQ(run(calibrate + " bench --no-such-option").code, 2);
  EXPECT_EQ(run(calibrate + " bench --budget soon").code, 2);
  const Ran slip = run(calibrate + " bensh");
  EXPECT_EQ(slip.code, 2);
  EXPECT_THAT(slip.output, HasSubstr("did you mean bench?"));
  const Ran missing = run(calibrate + " fit /no/such/file -o x.json");
  EXPECT_EQ(missing.code, 3);
}

}  // namespace
}  // namespace plimsoll::calibrate
