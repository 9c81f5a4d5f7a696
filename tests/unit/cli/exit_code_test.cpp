// What does the program return, and where does it print?  The command line's contract.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/unit/cli/program.hpp"

namespace plimsoll::test {
namespace {

using testing::HasSubstr;

using Lines = std::vector<std::vector<std::string>>;

class ExitCode : public testing::Test {
 protected:
  TemporaryFile model{small_model};
};

TEST_F(ExitCode, HelpAndVersionAreZeroOnStandardOutput) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"--version"}, {"ledger", "--help"}, {"max", "--help"}}) {
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_FALSE(result.out.empty());
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(ExitCode, EveryCommandsHelpShowsAnExample) {
  for (const char* command : {"check", "ledger", "volumes", "explain", "max", "need", "diff", "sweep"})
    EXPECT_THAT(run({command, "--help"}).out, HasSubstr(std::string("plimsoll ") + command)) << command;
}

TEST_F(ExitCode, UsageIsTwo) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"no-such-command"},
           {"ledger", "--no-such-option"},
           {"ledger"},
           {"ledger", "--model", model.path()},
           {"max", "hidden_size", "--model", model.path(), "--cluster", "1xh100"},
           {"check", "--plan", "a.json", "--ds", "b.json"},
           {"sweep", "micro_batch", "--model", model.path(), "--cluster", "1xh100"},
           {"sweep", "micro_batch=1", "micro_batch=2", "--model", model.path(), "--cluster", "1xh100"},
           {"sweep", "micro_batch=1,,2", "--model", model.path(), "--cluster", "1xh100"},
           {"sweep", "micro_batch=1,2,", "--model", model.path(), "--cluster", "1xh100"},
           {"sweep", "micro_batch=1", "--model", model.path(), "--cluster", "1xh100", "--csv", "--json"},
           {"compare", "--model", model.path(), "--cluster", "1xh100", "--snapshot", "a.json", "--events", "--json"},
           {"simulate", "--model", model.path(), "--cluster", "1xh100", "--price", "2"},
           {"simulate", "--model", model.path(), "--cluster", "1xh100", "--tokens", "nan"},
           {"simulate", "--model", model.path(), "--cluster", "1xh100", "--tokens", "1e9", "--price", "inf"},
           {"recommend", "--model", model.path(), "--cluster", "1xh100", "--seconds", "nan"},
           {"explain", "--model", model.path(), "--cluster", "1xh100", "--number", ""},
           {"recommend", "--model", model.path(), "--cluster", "1xh100", "--emit", ""},
           {"compare", "--model", model.path(), "--cluster", "1xh100", "--kineto", "a.json", "--snapshot", "b.json"},
           {"compare", "--model", model.path(), "--cluster", "1xh100", "--kineto", "a.json", "--run-log", "b.jsonl"},
           {"validate", "table.json", "--within", "nan"}}) {
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 2) << (arguments.empty() ? "" : arguments.front());
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(result.err.empty());
  }
}

TEST_F(ExitCode, AMistypedCommandOrOptionIsCorrected) {
  EXPECT_THAT(run({"ledgr"}).err, HasSubstr("did you mean ledger?"));
  EXPECT_THAT(run({}).err, HasSubstr("which command? check, ledger,"));
  EXPECT_THAT(run({"ledger", "--modle", model.path(), "--cluster=1xh100"}).err,
              HasSubstr("there is no option --modle; did you mean --model?"));
  EXPECT_THAT(run({"ledger", "llama-3.1-8b", "--cluster", "1xh100"}).err,
              HasSubstr("--model is required, and llama-3.1-8b is not expected"));
  EXPECT_THAT(run({"sweep", "micro_batch=1..8", "--model", model.path(), "--cluster", "1xh100"}).err,
              HasSubstr("micro_batch=1..8 is no list of values; write each: micro_batch=1,2,3,4,5,6,7,8"));
  EXPECT_THAT(run({"sweep", "sequence=1024-6000", "--model", model.path(), "--cluster", "1xh100"}).err,
              HasSubstr("write each: sequence=1024,2048,4096,6000"));
  EXPECT_THAT(run({"sweep", "recompute.evry=2", "--model", model.path(), "--cluster", "1xh100"}).out,
              HasSubstr("did you mean every?"));
}

TEST_F(ExitCode, AFileThatIsNoTableHasNoResult) {
  const TemporaryFile table(R"({"a": 1})");
  const ProgramRun result = run({"validate", table.path()});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("this is no table of measured runs"));
  const TemporaryFile rows(R"({"rows": [{"id": "amp-a"}, {"id": "fsdp-b"}]})");
  EXPECT_THAT(run({"validate", rows.path(), "--row", "fdsp"}).err, HasSubstr("nearest are: fsdp-b, amp-a"));
}

// More GPUs are more nodes of the user's own cluster, also where there is a preset of its device.
TEST_F(ExitCode, ALargerClusterIsMoreNodesOfTheSame) {
  const TemporaryFile cluster(R"({"device": "h100", "devices_per_node": 4, "nodes": 1})");
  EXPECT_THAT(run({"ledger", "--model", "llama-3.1-70b", "--cluster", cluster.path(), "--set", "engine=fsdp2", "--set",
                   "recompute=full"})
                  .out,
              testing::ContainsRegex("That takes a cluster of [0-9]+ GPUs: --nodes [0-9]+\n"));
}

TEST_F(ExitCode, AKeyOutsideItsSectionOrAModelByItsNameOnTheHubIsPutRight) {
  EXPECT_THAT(run({"ledger", "--model", model.path(), "--cluster", "1xh100", "--set", "stage=3"}).err,
              HasSubstr("did you mean zero.stage?"));
  EXPECT_THAT(run({"ledger", "--model", "meta-llama/Llama-3.1-8B", "--cluster", "1xh100"}).err,
              HasSubstr("there is a preset llama-3.1-8b"));
  EXPECT_THAT(run({"ledger", "--model", TemporaryFolder().path().string(), "--cluster", "1xh100"}).err,
              HasSubstr("the folder holds no config.json"));
}

TEST_F(ExitCode, AMissingFileIsThree) {
  for (const char* option : {"--model", "--cluster", "--plan", "--ds"}) {
    std::vector<std::string> arguments = {"check", option, "no/such/file.json"};
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 3) << option;
    EXPECT_THAT(result.err, HasSubstr("no/such/file.json"));
  }
}

TEST_F(ExitCode, WhatFailedIsSaidInJsonToo) {
  const auto json = run_json({"ledger", "--model", "no/such/file.json", "--cluster", "1xh100"}, 3);
  EXPECT_EQ(json["diagnostics"][0]["code"], "machine");
  EXPECT_THAT(json["diagnostics"][0]["message"].get<std::string>(), HasSubstr("no/such/file.json"));
}

// Also where the name, without a slash, might be that of a preset.
TEST_F(ExitCode, WhatIsThereAndCannotBeReadIsThree) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  fs::create_directory("a_folder");
  fs::create_symlink("a_loop", "a_loop");
  for (const char* name : {"a_folder", "a_loop"}) {
    for (const char* option : {"--model", "--cluster", "--plan", "--ds", "--calibration"}) {
      const ProgramRun result = run({"check", option, name});
      EXPECT_EQ(result.code, 3) << option << " " << name << "\n" << result.err;
      EXPECT_THAT(result.err, HasSubstr(name)) << option;
    }
    EXPECT_EQ(run({"oom", name}).code, 3) << name;
  }
  EXPECT_THAT(run({"oom", "a_folder"}).err, HasSubstr("a_folder: this is a folder"));
  fs::create_directory("8xh100");
  EXPECT_EQ(run({"check", "--cluster", "8xh100"}).code, 0);
  fs::current_path(before);
}

// Also by commands that have no use for prices.
TEST_F(ExitCode, ACalibrationIsReadByEveryCommandThatTakesIt) {
  const TemporaryFile plan("{}"), cut(R"({"format": "plimsoll-calibration/1", )");
  for (std::vector<std::string> command : Lines{{"check"},
                                                {"ledger"},
                                                {"volumes"},
                                                {"explain"},
                                                {"max", "micro_batch"},
                                                {"need"},
                                                {"diff", plan.path(), plan.path()},
                                                {"oom", "Tried to allocate 1.00 GiB"}}) {
    command.insert(command.end(), {"--model", model.path(), "--cluster", "8xh100", "--calibration", cut.path()});
    const ProgramRun result = run(command);
    EXPECT_EQ(result.code, 1) << command[0] << "\n" << result.err;
    EXPECT_THAT(result.err + result.out, HasSubstr("error[json.syntax]")) << command[0];
    command.back() = "no/such/file.json";
    EXPECT_EQ(run(command).code, 3) << command[0];
  }
  EXPECT_EQ(run({"check", "--calibration", cut.path()}).code, 1);
}

TEST_F(ExitCode, ACalibrationThatTheClusterNamesIsToldAsOneOfTheCommandLine) {
  const TemporaryFile unknown(R"({"device": "h100", "calibration": "h2000"})");
  const ProgramRun refused = run({"ledger", "--model", model.path(), "--cluster", unknown.path()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("error[cluster.calibration]"), HasSubstr(":1:35"),
                                          HasSubstr("did you mean h200?")));
  const TemporaryFile foreign(R"({"device": "h100", "calibration": "h200"})");
  for (const char* command : {"simulate", "ledger"}) {
    const ProgramRun told = run({command, "--model", model.path(), "--cluster", foreign.path()});
    EXPECT_EQ(told.code, 0);
    const std::size_t first = told.err.find(":1:35: warning[calibration.device]");
    EXPECT_NE(first, std::string::npos) << told.err;
    EXPECT_EQ(told.err.find("warning[calibration.device]", first + 40), std::string::npos) << told.err;
  }
}

TEST_F(ExitCode, TheNumberOfGpusIsStatedOnceOrTheSame) {
  for (const bool set_first : {true, false}) {
    std::vector<std::string> arguments{"check", "--set", "world_size=8", "--gpus", "4"};
    if (!set_first) arguments = {"check", "--gpus", "4", "--set", "world_size=8"};
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.out, HasSubstr("--set world_size=8:1:12: error[cli.world]"));
  }
  EXPECT_EQ(run({"check", "--gpus", "4", "--set", "world_size=4"}).code, 0);
}

TEST_F(ExitCode, WhatCannotBeWrittenIsThree) {
  const ProgramRun result = run({"sweep", "micro_batch=1", "--model", model.path(), "--cluster", "1xh100", "--set",
                                 "engine=ddp", "--chart", "/proc/no/such/chart.svg"});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("chart.svg"));
}

TEST_F(ExitCode, ASiblingThatIsNotBuiltIsThreeOrRuns) {
  const ProgramRun result = run({"gui", "--version"});
  EXPECT_TRUE(result.code == 3 || result.code == 0) << result.code;
}

TEST_F(ExitCode, WhatDoesNotFitIsStillAnAnswer) {
  const ProgramRun result = run(
      {"ledger", "--model", "llama-3.1-70b", "--cluster", "1xh100", "--set", "engine=ddp", "--set", "sequence=128"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.substr(0, 3), "oom");
}

TEST_F(ExitCode, NoPlanThatFitsIsFour) {
  const auto json = run_json({"max", "micro_batch", "--model", "llama-3.1-70b", "--cluster", "1xh100", "--set",
                              "engine=ddp", "--set", "sequence=128"},
                             4);
  EXPECT_EQ(json["key"], "micro_batch");
  EXPECT_EQ(json["value"], 0);
  EXPECT_TRUE(json["plan"].is_null());
  EXPECT_LT(json["margin_bytes"], 0);
}

// What is answered for, by whichever command.
TEST_F(ExitCode, AScenarioThatIsWrongIsOneInEveryCommand) {
  const TemporaryFile plan("{}");
  for (std::vector<std::string> command : Lines{{"ledger"},
                                                {"volumes"},
                                                {"simulate"},
                                                {"explain"},
                                                {"recommend"},
                                                {"max", "micro_batch"},
                                                {"need"},
                                                {"diff", plan.path(), plan.path()},
                                                {"sweep", "micro_batch=1"},
                                                {"check"},
                                                {"compare", "--run-log", plan.path()},
                                                {"oom", "Tried to allocate 1.00 GiB"}}) {
    command.insert(command.end(), {"--model", model.path(), "--cluster", "8xh100"});
    for (const auto& more : Lines{{"--gpus", "0"},
                                  {"--gpus", "eight"},
                                  {"--gpus", "4611686018427387904"},
                                  {"--nodes", "-1"},
                                  {"--nodes", "1.5"},
                                  {"--gpus", "4", "--set", "world_size=8"},
                                  {"--host-memory", "lots"},
                                  {"--host-memory", "0 GiB"},
                                  {"--host-memory", "64"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), more.begin(), more.end());
      const ProgramRun result = run(arguments);
      EXPECT_EQ(result.code, 1) << command[0] << " " << more[0] << " " << more[1] << "\n" << result.err;
      EXPECT_THAT(result.err + result.out, HasSubstr("error[cli.")) << command[0] << " " << more[0] << " " << more[1];
    }
  }
  for (const char* rank : {"-1", "coldest", "8"})
    EXPECT_EQ(run({"ledger", "--model", model.path(), "--cluster", "8xh100", "--rank", rank}).code, 1) << rank;
  const ProgramRun need = run({"need", "--model", model.path(), "--device", "h1000"});
  EXPECT_EQ(need.code, 1);
  EXPECT_THAT(need.err, HasSubstr("did you mean h100?"));
  EXPECT_EQ(run({"oom", "Tried to allocate 1.00 GiB", "--parameters", "many"}).code, 1);
}

// What an option takes from nobody, whatever is answered for.
TEST_F(ExitCode, AValueThatNoScenarioWouldAllowIsTwo) {
  for (std::vector<std::string> arguments : Lines{{"simulate", "--tokens", "0"},
                                                  {"simulate", "--tokens", "15 trillion"},
                                                  {"simulate", "--tokens", "1T", "--price", "-1"},
                                                  {"simulate", "--straggler", "1"},
                                                  {"simulate", "--straggler", "0=0.5"},
                                                  {"simulate", "--straggler", "4294967299=2"},
                                                  {"simulate", "--straggler", "3= 2"},
                                                  {"simulate", "--straggler", "1=2", "--straggler", "1=3"},
                                                  {"explain", "--layer", "-1"},
                                                  {"explain", "--layer", "first"},
                                                  {"recommend", "--top", "0"},
                                                  {"recommend", "--global-batch", "0"},
                                                  {"recommend", "--seconds", "soon"},
                                                  {"max", "micro_batches"},
                                                  {"sweep", "micro_batch="},
                                                  {"compare", "--run-log", "log", "--within", "-1"},
                                                  {"compare", "--run-log", "log", "--steps", "0"},
                                                  {"compare", "--snapshot", "a.json", "--threshold", "lots"}}) {
    const std::string asked = arguments[0] + " " + arguments[1];
    arguments.insert(arguments.end(), {"--model", model.path(), "--cluster", "8xh100"});
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 2) << asked << "\n" << result.err;
    EXPECT_EQ(result.out, "") << asked;
    EXPECT_THAT(result.err, HasSubstr("Try: plimsoll ")) << asked;
  }
  EXPECT_EQ(run({"validate", "table.json", "--within", "much"}).code, 2);
}

TEST_F(ExitCode, TokensAreWrittenAsPeopleDo) {
  const auto days = [&](const char* tokens) {
    return run_json({"simulate", "--model", model.path(), "--cluster", "1xh100", "--tokens", tokens})["budget"]["days"]
        .get<double>();
  };
  EXPECT_DOUBLE_EQ(days("15T"), days("1.5e13"));
  EXPECT_DOUBLE_EQ(days("300B"), days("300,000,000,000"));
  EXPECT_EQ(run({"simulate", "--model", model.path(), "--cluster", "1xh100", "--tokens", ",15T"}).code, 2);
}

TEST_F(ExitCode, AllFilesAreJudgedAtOnce) {
  const TemporaryFile plan(R"({"micro_batches": 2, "zero": {"stage": 4}})");
  const TemporaryFile cluster(R"({"device": "h100", "host": {"memory": 64}})");
  const TemporaryFile bad_model(R"({"model_type": "llama", "hidden_size": "wide"})");
  const ProgramRun result =
      run({"ledger", "--model", bad_model.path(), "--cluster", cluster.path(), "--plan", plan.path(), "--gpus", "0"});
  EXPECT_EQ(result.code, 1);
  for (const char* pointer : {"/hidden_size", "/host/memory", "/micro_batches", "/zero/stage", "--gpus"})
    EXPECT_THAT(result.err, HasSubstr(pointer));
}

TEST_F(ExitCode, JsonOfWrongInputListsTheDiagnostics) {
  const TemporaryFile calibration("{}");
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"ledger", "--set", "micro_batch=0"},
                                             {"simulate", "--straggler", "8=2"},
                                             {"simulate", "--calibration", calibration.path()},
                                             {"sweep", "micro_batch=1", "--calibration", calibration.path()},
                                             {"recommend", "--calibration", calibration.path()},
                                             {"explain", "--phase", "lunch"},
                                             {"explain", "--layer", "2"},
                                             {"explain", "--number", "luck"}}) {
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"--model", model.path(), "--cluster", "8xh100"});
    const auto json = run_json(arguments, 1);
    ASSERT_FALSE(json["diagnostics"].empty()) << more[0] << " " << more[2];
    EXPECT_EQ(json["diagnostics"][0]["severity"], "error");
  }
}

TEST_F(ExitCode, ASweepOfWhichNothingIsAnsweredIsOne) {
  EXPECT_EQ(run({"sweep", "no_such_key=1,2", "--model", model.path(), "--cluster", "1xh100"}).code, 1);
  EXPECT_THAT(run({"sweep", "micro_batches=1,2", "--model", model.path(), "--cluster", "1xh100"}).out,
              HasSubstr("/micro_batches is no known key; did you mean micro_batch?"));
  EXPECT_EQ(run({"sweep", "zero.stage=3,4", "--model", model.path(), "--cluster", "1xh100"}).code, 0);
}

// The verdict of the ledger names the memory that is short.
TEST_F(ExitCode, AHostThatIsShortIsNamedFirst) {
  const ProgramRun result = run({"ledger", "--model", model.path(), "--cluster", "1xh100", "--host-memory", "1 GiB"});
  EXPECT_EQ(result.out.find("oom: "), 0U);
  EXPECT_THAT(result.out.substr(0, result.out.find('\n')), HasSubstr("of 1.00 GiB of a node's host memory"));
  EXPECT_THAT(result.out, HasSubstr("\nfits: "));
}

}  // namespace
}  // namespace plimsoll::test
