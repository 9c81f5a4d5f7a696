// Does --json hold what the command line's contract promises?
#include <gmock/gmock.h>

#include <numeric>

#include "tests/unit/cli/program.hpp"

namespace plimsoll::test {
namespace {

using nlohmann::json;

void expect_keys(const json& object, const std::vector<const char*>& keys) {
  for (const char* key : keys) EXPECT_TRUE(object.contains(key)) << key;
}

class Json : public testing::Test {
 protected:
  TemporaryFile model{small_model};
  std::vector<std::string> with(const std::string& command, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {command, "--model", model.path(), "--cluster", "2xh200"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(Json, Ledger) {
  const json ledger = run_json(with("ledger", {"--set", "zero.stage=3"}));
  expect_keys(ledger, {"digest", "verdict", "capacity_bytes", "margin_bytes", "gpu", "phases", "host", "checkpoint",
                       "parameters", "rank", "assumptions"});
  EXPECT_EQ(ledger["verdict"], "fits");
  EXPECT_FALSE(ledger.contains("breaks"));
  EXPECT_EQ(ledger["capacity_bytes"], 150109880320);
  const json& gpu = ledger["gpu"];
  expect_keys(gpu, {"allocated_peak_bytes", "reserved_peak_bytes", "device_peak_bytes", "interval_bytes", "evidence",
                    "job_device_peak_bytes", "job_device_interval_bytes", "job_peak_phase", "peak_phase", "peak_op",
                    "categories_at_peak", "outside_framework", "resident_bytes"});
  expect_keys(gpu["interval_bytes"], {"allocated", "reserved", "device"});
  expect_keys(gpu["evidence"], {"allocated", "reserved", "device"});
  expect_keys(gpu["outside_framework"], {"context", "nccl", "libraries"});
  const json& categories = gpu["categories_at_peak"];
  expect_keys(categories, {"parameters", "gradients", "master_weights", "optimizer_moments", "gathered_parameters",
                           "activations", "expert_buffers", "logits_and_loss", "communication_buckets", "temporaries",
                           "workspace", "allocator_slack"});
  std::int64_t sum = 0;
  for (const json& bytes : categories) sum += bytes.get<std::int64_t>();
  EXPECT_EQ(sum, gpu["allocated_peak_bytes"]);
  EXPECT_EQ(ledger["margin_bytes"],
            ledger["capacity_bytes"].get<std::int64_t>() - gpu["job_device_peak_bytes"].get<std::int64_t>());
  std::vector<std::string> phases;
  for (const json& phase : ledger["phases"]) {
    phases.push_back(phase["name"]);
    expect_keys(phase, {"allocated_end_bytes", "allocated_peak_bytes", "reserved_end_bytes", "host_resident_end_bytes",
                        "host_resident_peak_bytes", "host_pinned_bytes"});
  }
  EXPECT_THAT(phases, testing::IsSupersetOf({"model_built", "initialized", "first_step_forward", "steady_forward",
                                             "steady_backward", "steady_step"}));
  expect_keys(ledger["host"], {"per_node_bytes", "capacity_bytes", "verdict", "categories"});
  expect_keys(ledger["parameters"], {"total", "active", "dense", "expert"});
  for (const json& assumption : ledger["assumptions"])
    EXPECT_THAT(assumption["evidence"].get<std::string>(),
                testing::AnyOf("measured", "fitted", "interpolated", "extrapolated", "assumed"));
}

TEST_F(Json, AnArenaHoldsWhatIsAllocatedInIt) {
  for (const char* sequence : {"63", "900", "2048", "5001"}) {
    const json gpu = run_json({"ledger", "--model", "llama-3.2-1b", "--cluster", "2xh200", "--set", "engine=plimsoll",
                               "--set", std::string("sequence=") + sequence})["gpu"];
    EXPECT_EQ(gpu["categories_at_peak"]["allocator_slack"], 0) << sequence;
    EXPECT_GE(gpu["reserved_peak_bytes"], gpu["allocated_peak_bytes"]) << sequence;
  }
}

TEST_F(Json, LedgerOfWhatDoesNotFitNamesTheSmallestChange) {
  const json ledger = run_json(
      {"ledger", "--model", "llama-3.1-8b", "--cluster", "8xh100", "--set", "zero.stage=3", "--set", "micro_batch=16"});
  EXPECT_EQ(ledger["verdict"], "oom");
  EXPECT_EQ(ledger["breaks"]["resource"], "gpu");
  EXPECT_LT(ledger["margin_bytes"], 0);
  const json change = ledger["smallest_change"];
  EXPECT_EQ(change["verdict"], "fits");
  ASSERT_EQ(change["set"].size(), 1);
  const auto key = change["set"].begin();
  const json again = run_json({"ledger", "--model", "llama-3.1-8b", "--cluster", "8xh100", "--set", "zero.stage=3",
                               "--set", "micro_batch=16", "--set", key.key() + "=" + key->dump()});
  EXPECT_EQ(again["verdict"], "fits");
}

TEST_F(Json, Volumes) {
  const json volumes = run_json(with("volumes", {"--set", "zero.stage=1"}));
  std::int64_t sum = 0;
  for (const json& row : volumes["rows"]) {
    expect_keys(row, {"kind", "group", "phase", "tier", "dtype", "calls", "full_size_bytes", "wire_bytes"});
    sum += row["wire_bytes"].get<std::int64_t>();
  }
  EXPECT_GT(sum, 0);
  EXPECT_EQ(sum, volumes["per_gpu_bytes_per_step"]);
}

TEST_F(Json, TheDigestIsThatOfTheProgram) {
  const json ledger = run_json(with("ledger")), volumes = run_json(with("volumes"));
  EXPECT_EQ(ledger["digest"], volumes["digest"]);
  EXPECT_NE(ledger["digest"], run_json(with("ledger", {"--set", "zero.stage=2"}))["digest"]);
}

TEST_F(Json, Check) {
  const TemporaryFile ds(R"({"train_batch_size": 32, "zero_optimization": {"stage": 3, "contiguous_memory": true},
    "moe": {"enable": true}})");
  const json check = run_json({"check", "--ds", ds.path(), "--model", model.path(), "--gpus", "8"}, 1);
  expect_keys(check, {"diagnostics", "keys", "defaults", "parameters"});
  for (const json& diagnostic : check["diagnostics"])
    expect_keys(diagnostic, {"code", "severity", "file", "pointer", "line", "column", "message", "help"});
  for (const json& key : check["keys"]) expect_keys(key, {"pointer", "treatment"});
}

TEST_F(Json, NumbersAreExplainedByTermsThatSumToThem) {
  const json ledger = run_json(with("ledger", {"--set", "zero.stage=2"}));
  const auto explained = [&](const std::string& name) {
    const json number = run_json(with("explain", {"--set", "zero.stage=2", "--number", name}));
    std::int64_t sum = 0;
    for (const json& term : number["terms"]) sum += term["value"].get<std::int64_t>();
    EXPECT_EQ(sum, number["value"]) << name;
    return sum;
  };
  for (const auto& [category, bytes] : ledger["gpu"]["categories_at_peak"].items())
    EXPECT_EQ(explained("gpu.categories_at_peak." + category), bytes) << category;
  for (const char* name : {"allocated_peak_bytes", "reserved_peak_bytes", "device_peak_bytes", "resident_bytes"})
    EXPECT_EQ(explained(std::string("gpu.") + name), ledger["gpu"][name]) << name;
  for (const json& phase : ledger["phases"]) {
    const std::string prefix = "phases." + phase["name"].get<std::string>() + ".";
    EXPECT_EQ(explained(prefix + "allocated_end_bytes"), phase["allocated_end_bytes"]) << prefix;
    EXPECT_EQ(explained(prefix + "allocated_peak_bytes"), phase["allocated_peak_bytes"]) << prefix;
  }
  EXPECT_EQ(explained("parameters.total"), ledger["parameters"]["total"]);
  EXPECT_EQ(explained("margin_bytes"), ledger["margin_bytes"]);
}

TEST_F(Json, MaximumFitsAndItsSuccessorDoesNot) {
  const std::vector<std::string> inputs = {"--model", "llama-3.2-1b", "--cluster", "1x4090",
                                           "--set",   "engine=ddp",   "--set",     "sequence=512"};
  const auto run_with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), inputs.begin(), inputs.end());
    return run_json(arguments);
  };
  const json maximum = run_with({"max", "micro_batch"});
  const std::int64_t value = maximum["value"];
  ASSERT_GT(value, 0);
  EXPECT_EQ(maximum["plan"]["micro_batch"], value);
  EXPECT_NE(run_with({"ledger", "--set", "micro_batch=" + std::to_string(value)})["verdict"], "oom");
  EXPECT_EQ(run_with({"ledger", "--set", "micro_batch=" + std::to_string(value + 1)})["verdict"], "oom");
}

TEST_F(Json, NeedAnswersForEveryDeviceAsked) {
  const json need = run_json({"need", "--model", "llama-3.2-3b", "--device", "h100,4090", "--set", "sequence=1024"});
  ASSERT_EQ(need["answers"].size(), 2);
  for (const json& answer : need["answers"]) expect_keys(answer, {"device", "gpus", "plan", "margin_bytes"});
  EXPECT_EQ(need["answers"][0]["device"], "h100");
  EXPECT_EQ(need["answers"][0]["plan"]["world_size"], need["answers"][0]["gpus"]);
}

// The fewest GPUs, and where nodes are rented whole how many of them.
TEST_F(Json, NeedCountsTheGpusOfTheLastNode) {
  const auto run = [](const std::string& gpus) {
    return run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "16xh200", "--set", "engine=plimsoll", "--set",
                     "recompute=full", "--gpus", gpus})["verdict"];
  };
  const json need = run_json({"need", "--model", "llama-3.1-70b", "--device", "h200", "--set", "engine=plimsoll"});
  const json& answer = need["answers"][0];
  const int gpus = answer["gpus"];
  EXPECT_GT(gpus, 8);
  EXPECT_LT(gpus, 16);
  EXPECT_NE(run(std::to_string(gpus)), "oom");
  EXPECT_EQ(run(std::to_string(gpus - 1)), "oom");
  EXPECT_EQ(answer["whole_nodes"]["nodes"], 2);
  EXPECT_EQ(answer["whole_nodes"]["gpus"], 16);
  EXPECT_GT(answer["whole_nodes"]["margin_bytes"], answer["margin_bytes"]);
}

TEST_F(Json, SweepIsEveryCombination) {
  const json sweep = run_json(with("sweep", {"micro_batch=1,2", "zero.stage=0,3,4"}));
  ASSERT_EQ(sweep["rows"].size(), 6);
  EXPECT_EQ(sweep["rows"][1]["set"], (json{{"micro_batch", 1}, {"zero.stage", 3}}));
  EXPECT_EQ(sweep["rows"][1]["verdict"], "fits");
  EXPECT_TRUE(sweep["rows"][2]["verdict"].is_null());
  EXPECT_NE(sweep["rows"][2]["refusal"], "");
}

TEST_F(Json, SweepTakesItsTimesFromTheCalibrationGiven) {
  const json own = run_json(with("sweep", {"micro_batch=1,8"}));
  const json sheet = run_json(with("sweep", {"micro_batch=1,8", "--calibration", "h200-datasheet"}));
  ASSERT_EQ(own["rows"].size(), 2);
  ASSERT_EQ(sheet["rows"].size(), 2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(own["rows"][i]["device_peak_bytes"], sheet["rows"][i]["device_peak_bytes"]) << "memory has no prices";
    const json simulated = run_json(
        with("simulate", {"--calibration", "h200-datasheet", "--set", i == 0 ? "micro_batch=1" : "micro_batch=8"}));
    EXPECT_DOUBLE_EQ(sheet["rows"][i]["step_time_s"].get<double>(), simulated["step_time_s"].get<double>());
    EXPECT_NE(own["rows"][i]["step_time_s"], sheet["rows"][i]["step_time_s"]);
  }
}

TEST_F(Json, SweepRefusesABrokenCalibration) {
  const TemporaryFile broken(R"({"format": "plimsoll-calibration/1", "device": "h200", "gemm": {"flops_per_s": -1}})");
  const json answer = run_json(with("sweep", {"micro_batch=1,2", "--calibration", broken.path()}), 1);
  ASSERT_FALSE(answer["diagnostics"].empty());
  EXPECT_EQ(answer["diagnostics"][0]["severity"], "error");
  EXPECT_EQ(answer["diagnostics"][0]["pointer"], "/gemm/flops_per_s");
}

TEST_F(Json, DiffOfAPlanWithItselfIsNothing) {
  const TemporaryFile plan(R"({"zero": {"stage": 2}})");
  const TemporaryFile ds(R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": true},
    "train_micro_batch_size_per_gpu": 1})");
  const json same = run_json(with("diff", {plan.path(), plan.path()}));
  for (const json& term : same["memory"]) EXPECT_EQ(term["difference_bytes"], 0) << term["name"];
  const json other = run_json(with("diff", {plan.path(), ds.path()}));
  EXPECT_EQ(other["b"]["plan"]["zero"]["stage"], 3);
}

}  // namespace
}  // namespace plimsoll::test
