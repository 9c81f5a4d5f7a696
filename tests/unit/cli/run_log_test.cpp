// Does compare read the log of a run, set each figure beside its own prediction, and refuse what is of another program?
#include "planner/cli/run_log_comparison.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/account/arena.hpp"
#include "planner/cli/common_inputs.hpp"
#include "tests/unit/cli/program.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using test::run;
using test::run_json;
using test::TemporaryFile;
using testing::HasSubstr;

std::string step(int number, double time_s, const std::string& more = "") {
  return fmt::format(R"({{"step":{},"loss":{},"skipped":false,"step_time_s":{},"tokens_per_s_per_rank":8192.0{}}})",
                     number, 6.0 / number, time_s, more) +
         "\n";
}

class RunLogs : public testing::Test {
 protected:
  RunLogs() {
    InputOptions options;
    options.model = model.path();
    options.cluster = "2xh200";
    options.sets = {"engine=plimsoll", "micro_batch=2", "sequence=256"};
    evaluation = build(Inputs(options).scenario(), {RankChoice::Kind::one, 0});
    arena = plan_arena(evaluation.rank_program()).size.count;
  }
  std::string head(const std::string& backend = "cuda") const {
    return fmt::format(R"({{"digest":"{}","backend":"{}","world_size":2}})", evaluation.program.digest, backend) + "\n";
  }
  std::string bytes(std::int64_t sent = 0) const {
    return fmt::format(R"(,"high_water_bytes":{},"sent_bytes":{})", arena, sent);
  }
  std::vector<std::string> command(const std::string& log) const {
    return {"compare", "--model",       model.path(), "--cluster",    "2xh200",    "--set", "engine=plimsoll",
            "--set",   "micro_batch=2", "--set",      "sequence=256", "--run-log", log};
  }
  nlohmann::json figures(const std::string& log) const {
    const TemporaryFile file(log, ".jsonl");
    return run_json(command(file.path()))["figures"];
  }

  TemporaryFile model{test::small_model};
  Evaluation evaluation;
  std::int64_t arena = 0;
};

TEST_F(RunLogs, ShowsEachFigureBesideItsPrediction) {
  // The first step is another program's: it does not count.  Of an even number the later of the two middle ones.
  const std::string log =
      head() + step(1, 9.0, bytes()) + step(2, 0.5, bytes()) + step(3, 0.25, bytes()) + step(4, 0.75, bytes());
  const auto all = figures(log);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0]["figure"], "arena bytes");
  EXPECT_EQ(all[0]["predicted"], arena);
  EXPECT_EQ(all[0]["measured"], arena);
  EXPECT_EQ(all[0]["error"], 0.0);
  EXPECT_TRUE(all[1]["measured"].is_null()) << "a device does not count what it sends";
  EXPECT_EQ(all[2]["figure"], "step time");
  EXPECT_EQ(all[2]["measured"], 0.5);
}

TEST_F(RunLogs, LeavesTheHostBackendsTimeOut) {
  const auto all = figures(head("host") + step(1, 1.0, bytes(7)) + step(2, 1.0, bytes(7)));
  EXPECT_EQ(all[1]["measured"], 7);
  EXPECT_TRUE(all[2]["measured"].is_null());
}

TEST_F(RunLogs, AreTheBytesOfTheVolumes) {
  const auto all = figures(head("host") + step(1, 1.0, bytes(1)));
  const auto volumes = run_json({"volumes", "--model", model.path(), "--cluster", "2xh200", "--set", "engine=plimsoll",
                                 "--set", "micro_batch=2", "--set", "sequence=256"});
  std::int64_t wire = 0;
  for (const auto& row : volumes["rows"]) {
    if (row["group"] != "host") wire += row["wire_bytes"].get<std::int64_t>();
  }
  EXPECT_GT(wire, 0);
  EXPECT_EQ(all[1]["predicted"], wire);
}

// With experts on other ranks a step takes as long as the ranks to which its routers sent most: even rows are the plan's own.
TEST_F(RunLogs, StepsAreAlsoPredictedAsTheyWereRouted) {
  const TemporaryFile experts{R"({"model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 4,
      "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2048, "num_local_experts": 4,
      "num_experts_per_tok": 2, "vocab_size": 1024, "max_position_embeddings": 4096, "output_router_logits": true})"};
  const auto sets_with = [](double factor) {
    return std::vector<std::string>{"engine=plimsoll",   "micro_batch=4",
                                    "sequence=2048",     "world_size=2",
                                    "expert_parallel=2", fmt::format("moe.capacity_factor={}", factor)};
  };
  InputOptions options;
  options.model = experts.path();
  options.cluster = "2xh200";
  options.sets = sets_with(2);
  const Evaluation moe = build(Inputs(options).scenario(), {RankChoice::Kind::one, 0});
  const auto count = static_cast<std::size_t>(moe.rank_program().report.experts);
  const auto layers = static_cast<std::size_t>(moe.rank_program().report.moe_layers);
  ASSERT_GE(count, 2U);
  const auto with = [&](const std::vector<std::vector<std::int64_t>>& tokens, double factor = 2) {
    const std::string more = bytes() + R"(,"expert_tokens":)" + nlohmann::json(tokens).dump();
    options.sets = sets_with(factor);
    const std::string digest = build(Inputs(options).scenario(), {RankChoice::Kind::one, 0}).program.digest;
    const TemporaryFile log(
        fmt::format(R"({{"digest":"{}","backend":"cuda"}})", digest) + "\n" + step(1, 1, more) + step(2, 1, more),
        ".jsonl");
    std::vector<std::string> arguments{"compare", "--model", experts.path(), "--cluster", "2xh200"};
    for (const std::string& set : options.sets) arguments.insert(arguments.end(), {"--set", set});
    arguments.insert(arguments.end(), {"--run-log", log.path()});
    return run_json(arguments)["figures"];
  };
  const std::vector<std::int64_t> even(count, 100);
  std::vector<std::int64_t> uneven(count, 100), other(count, 100);
  for (std::size_t e = 0; e < count / 2; ++e) uneven[e] = other[count - 1 - e] = 300;
  const auto balanced = with(std::vector(layers, even));
  ASSERT_EQ(balanced.size(), 4U);
  EXPECT_EQ(balanced[3]["figure"], "step time, as routed");
  EXPECT_NEAR(balanced[3]["predicted"].get<double>(), balanced[2]["predicted"].get<double>(), 1e-5);
  EXPECT_EQ(balanced[3]["measured"], 1.0);
  const double predicted = with(std::vector(layers, uneven))[3]["predicted"].get<double>();
  EXPECT_GT(predicted, 1.01 * balanced[3]["predicted"].get<double>());
  // The other rank's experts in every other layer: who waits changes, how long a step takes hardly does (a rank that waits in one
  // layer has gathered for the next).
  std::vector<std::vector<std::int64_t>> turns(layers, uneven);
  for (std::size_t l = 1; l < layers; l += 2) turns[l] = other;
  EXPECT_NEAR(with(turns)[3]["predicted"].get<double>(), predicted, 0.05 * predicted);
  // Of 1.5 x the mean the plan with room for 1.25 x would have ended instead.
  EXPECT_EQ(with(std::vector(layers, uneven), 1.25).size(), 3U);
  EXPECT_EQ(with({}).size(), 3U);
  EXPECT_EQ(with({{1, 2}}).size(), 3U) << "of another model";
  EXPECT_EQ(with(std::vector(layers, std::vector<std::int64_t>(count, 0))).size(), 3U) << "no token went anywhere";
}

TEST_F(RunLogs, OfAnotherProgramAreRefused) {
  const TemporaryFile log(R"({"digest":"0123456789abcdef","backend":"host"})"
                          "\n" +
                          step(1, 1));
  const auto result = run(command(log.path()));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr(log.path() + ":1:1: error[compare.digest]: the log is of program 0123456789abcdef"));
}

TEST_F(RunLogs, BeyondTheAllowedErrorIsFive) {
  const TemporaryFile log(head() + step(1, 9, bytes()) + step(2, 1e6, bytes()));
  auto arguments = command(log.path());
  arguments.insert(arguments.end(), {"--within", "5"});
  EXPECT_EQ(run(arguments).code, 5);
}

TEST_F(RunLogs, DamagedLinesAreToldAndTheOthersUsed) {
  const auto log = read_run_log(
      source(head() + step(1, 2) + "[1, 2]\n" + step(2, 0) + step(3, -1) + step(4, 3) + R"({"step":5,"loss":1.0,"st)",
             "run.log"));
  ASSERT_TRUE(log);
  ASSERT_EQ(log->steps.size(), 2U);
  EXPECT_EQ(log->steps[1].number, 4);
  EXPECT_EQ(log->step_time_s(), 3);
  EXPECT_THAT(format(log.diagnostics()),
              testing::AllOf(HasSubstr("run.log:3:1: warning[compare.log]: this is no step of a run"),
                             HasSubstr("run.log:4:1: warning[compare.log]: step_time_s is no positive number"),
                             HasSubstr("run.log:5:1: "),
                             HasSubstr("run.log:7:1: warning[compare.log]: the last line is "
                                       "cut short")));
}

TEST_F(RunLogs, NumbersBeyondAnyRunAreToldAndTheOthersUsed) {
  const auto log = read_run_log(source(
      head() + step(1, 2, bytes(7)) + R"({"step":1e300,"step_time_s":1})" + "\n" + step(2, 1e-300) + step(3, 1e300) +
          step(4, 1, R"(,"high_water_bytes":1e300)") + step(5, 1, R"(,"sent_bytes":-1e300)") + step(6, 3, bytes(7)),
      "run.log"));
  ASSERT_TRUE(log);
  EXPECT_EQ(log->steps.size(), 2U);
  EXPECT_EQ(log->high_water_bytes, arena);
  EXPECT_THAT(
      format(log.diagnostics()),
      testing::AllOf(HasSubstr("run.log:3:1: warning[compare.log]: this is no step of a run"),
                     HasSubstr("run.log:4:1: warning[compare.log]: step_time_s is no positive number from 1e-09"),
                     HasSubstr("run.log:5:1: "), HasSubstr("run.log:6:1: warning[compare.log]: high_water_bytes"),
                     HasSubstr("run.log:7:1: warning[compare.log]: sent_bytes")));
}

TEST_F(RunLogs, CompressedAreUnpacked) {
  const test::TemporaryFolder folder;
  const std::string path =
      test::write_compressed(folder, "run.log.gz", head() + step(1, 9.0, bytes()) + step(2, 0.5, bytes()));
  EXPECT_EQ(run_json(command(path))["figures"][2]["measured"], 0.5);
}

TEST_F(RunLogs, WithoutAHeadOrAStepAreRefused) {
  for (const auto& [text, words] : {std::pair<std::string, const char*>{"", "the file is empty"},
                                    {"step 1 loss 5.2\n", "states no digest"},
                                    {R"({"digest":7})", "states no digest"},
                                    {head(), "holds no step"},
                                    {head() + "{}\n", "holds no step"}}) {
    const auto log = read_run_log(source(text, "run.log"));
    ASSERT_FALSE(log) << text;
    EXPECT_THAT(format(log.diagnostics()), HasSubstr(words)) << text;
  }
}

}  // namespace
}  // namespace plimsoll
