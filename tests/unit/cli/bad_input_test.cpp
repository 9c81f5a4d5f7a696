// What does the program make of files that nobody would write on purpose?  A diagnostic with its place and exit code 1, never
// a crash and never an answer.
#include <gmock/gmock.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll::test {
namespace {

using testing::HasSubstr;

struct BadFile {
  const char* name;
  std::string text;
};

std::string nested(int depth) { return std::string(static_cast<std::size_t>(depth), '['); }

const std::vector<BadFile>& broken_documents() {
  static const std::vector<BadFile> files = {
      {"empty", ""},
      {"blank", "   \n\n"},
      {"truncated", "{\"stage\": "},
      {"not UTF-8", "{\"engine\": \"\xff\xfe\"}"},
      {"a NUL byte", std::string("{\"engine\": \0}", 13)},
      {"deeply nested", nested(5000)},
      {"nested object", "{\"zero\": " + nested(200) + "}"},
      {"an array", "[1, 2]"},
      {"a number", "17"},
      {"null", "null"},
      {"two documents", "{} {}"},
  };
  return files;
}

class BadInput : public testing::Test {
 protected:
  TemporaryFile model{small_model};

  ProgramRun with_plan(const std::string& text) {
    const TemporaryFile plan(text);
    return run({"ledger", "--model", model.path(), "--cluster", "8xh100", "--plan", plan.path()});
  }
  static void expect_refused(const ProgramRun& result, const std::string& name) {
    EXPECT_EQ(result.code, 1) << name << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr("error[")) << name;
    EXPECT_EQ(result.out, "") << name;
  }
};

TEST_F(BadInput, BrokenPlans) {
  for (const BadFile& file : broken_documents()) expect_refused(with_plan(file.text), file.name);
}

TEST_F(BadInput, BrokenModels) {
  for (const BadFile& file : broken_documents()) {
    const TemporaryFile broken(file.text);
    expect_refused(run({"ledger", "--model", broken.path(), "--cluster", "8xh100"}), file.name);
  }
}

TEST_F(BadInput, BrokenClusters) {
  for (const BadFile& file : broken_documents()) {
    const TemporaryFile broken(file.text);
    expect_refused(run({"ledger", "--model", model.path(), "--cluster", broken.path()}), file.name);
  }
}

TEST_F(BadInput, NodesThatNothingJoinsAreRefusedByEveryCommand) {
  const TemporaryFile cluster(R"({"device": "h100", "nodes": 2, "network": {"nics_per_node": 0}})");
  for (const char* command : {"ledger", "volumes", "simulate", "explain"}) {
    const ProgramRun result = run({command, "--model", model.path(), "--cluster", cluster.path()});
    expect_refused(result, command);
    EXPECT_THAT(result.err, HasSubstr("rank 7 (node 0) cannot reach rank 8 (node 1)")) << command;
  }
}

TEST_F(BadInput, BrokenDeepSpeedConfigs) {
  for (const BadFile& file : broken_documents()) {
    if (std::string(file.name) == "two documents") continue;  // Hjson reads a second one as a value without quotes
    const TemporaryFile broken(file.text);
    const ProgramRun result = run({"check", "--ds", broken.path(), "--gpus", "8"});
    EXPECT_EQ(result.code, 1) << file.name;
    EXPECT_FALSE(result.err.empty()) << file.name;
  }
}

TEST_F(BadInput, WrongPlans) {
  const std::vector<BadFile> plans = {
      {"duplicate key", R"({"micro_batch": 1, "micro_batch": 2})"},
      {"wrong type", R"({"micro_batch": "two"})"},
      {"wrong type of a section", R"({"zero": 3})"},
      {"negative", R"({"micro_batch": -1})"},
      {"zero", R"({"sequence": 0})"},
      {"2^63", R"({"sequence": 9223372036854775808})"},
      {"2^64", R"({"zero": {"stage": 3, "reduce_bucket_size": 18446744073709551616}})"},
      {"beyond double", R"({"gradient_clipping": 1e999})"},
      {"tokens beyond the limit", R"({"micro_batch": 1048576, "sequence": 134217728})"},
      {"stage 4", R"({"zero": {"stage": 4}})"},
      {"unknown key", R"({"mikro_batch": 1})"},
      {"unknown word", R"({"engine": "megatron"})"},
      {"world beyond the cluster", R"({"world_size": 16})"},
      {"ep without experts", R"({"expert_parallel": 2})"},
      {"a contradiction", R"({"engine": "ddp", "offload": {"optimizer": "cpu"}})"},
      {"tensor parallel", R"({"tensor_parallel": 2})"},
      {"pipeline parallel", R"({"pipeline_parallel": 2})"},
      {"context parallel", R"({"context_parallel": 2})"},
      {"LoRA on layers that are not there", R"({"trainable": {"lora": {"rank": 8, "targets": ["c_attn"]}}})"},
  };
  for (const BadFile& plan : plans) expect_refused(with_plan(plan.text), plan.name);
}

TEST_F(BadInput, ExpertParallelismThatDoesNotDivide) {
  for (const char* plan : {R"({"expert_parallel": 3, "zero": {"stage": 1}})", R"({"expert_parallel": 16})"}) {
    const TemporaryFile file(plan);
    expect_refused(run({"ledger", "--model", "mixtral-8x7b", "--cluster", "8xh100", "--plan", file.path()}), plan);
  }
}

TEST_F(BadInput, WrongOverrides) {
  for (const char* set : {"micro_batch", "=1", "micro_batch=", "micro_batch=one", "zero.stage=4", "no.such.key=1",
                          "micro_batch=9223372036854775808", "zero={\"stage\": [", "\xff=1"}) {
    expect_refused(run({"ledger", "--model", model.path(), "--cluster", "8xh100", "--set", set}), set);
  }
}

TEST_F(BadInput, TheBatchEquation) {
  const TemporaryFile ds(R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3}})");
  const ProgramRun result = run({"check", "--ds", ds.path(), "--gpus", "8"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("train_batch_size"));
}

TEST_F(BadInput, UnknownPresetsNameTheNearest) {
  EXPECT_THAT(run({"check", "--model", "mixtral-8x7"}).out, HasSubstr("did you mean mixtral-8x7b?"));
  EXPECT_THAT(run({"check", "--cluster", "8xh10"}).out, HasSubstr("did you mean"));
}

// Devices without a calibration of their own take the form of their prices from that of H200.
TEST_F(BadInput, a_calibration_that_others_derive_from_is_told_where_it_is_broken) {
  const TemporaryFolder configs;
  std::filesystem::create_directory(configs.path() / "calibrations");
  configs.write("calibrations/h200.json",
                R"({"format": "plimsoll-calibration/1", "device": "h200", "gemm": {"sagg": 1}})");
  setenv("PLIMSOLL_CONFIGS", configs.path().c_str(), 1);
  const ProgramRun result = run({"simulate", "--model", model.path(), "--cluster", "8xh100"});
  unsetenv("PLIMSOLL_CONFIGS");
  expect_refused(result, "h200.json");
  EXPECT_THAT(result.err, HasSubstr("h200.json:1:"));
}

}  // namespace
}  // namespace plimsoll::test
