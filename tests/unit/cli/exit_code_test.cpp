// What does the program return, and where does it print?  The command line's contract.
#include <gmock/gmock.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll::test {
namespace {

using testing::HasSubstr;

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

TEST_F(ExitCode, AMistypedCommandIsCorrected) { EXPECT_THAT(run({"ledgr"}).err, HasSubstr("did you mean ledger?")); }

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

TEST_F(ExitCode, ADirectoryForAFileIsThree) {
  EXPECT_EQ(run({"check", "--plan", TemporaryFolder().path().string()}).code, 3);
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

TEST_F(ExitCode, NumbersThatCannotBeAreDiagnostics) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{"--gpus", "0"},
                                                                                    {"--gpus", "-3"},
                                                                                    {"--nodes", "0"},
                                                                                    {"--nodes", "-1"},
                                                                                    {"--gpus", "4611686018427387904"},
                                                                                    {"--host-memory", "lots"},
                                                                                    {"--host-memory", "64"},
                                                                                    {"--rank", "-1"},
                                                                                    {"--rank", "coldest"},
                                                                                    {"--rank", "8"}}) {
    std::vector<std::string> arguments = {"ledger", "--model", model.path(), "--cluster", "8xh100"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramRun result = run(arguments);
    EXPECT_EQ(result.code, 1) << more[0] << " " << more[1];
    EXPECT_THAT(result.err, HasSubstr("error[cli.")) << more[0] << " " << more[1];
    EXPECT_EQ(result.out, "");
  }
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
                                             {"simulate", "--straggler", "1=2", "--straggler", "1=3"},
                                             {"simulate", "--calibration", calibration.path()},
                                             {"sweep", "micro_batch=1", "--calibration", calibration.path()},
                                             {"recommend", "--calibration", calibration.path()},
                                             {"explain", "--phase", "lunch"},
                                             {"explain", "--layer", "2"},
                                             {"explain", "--layer", "-1"},
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
