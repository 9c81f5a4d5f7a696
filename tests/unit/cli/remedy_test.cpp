// Is the smallest change one that a user would call smallest?  On the same GPUs first, with few keys, and the global batch stays
// where a ds_config.json states it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/cli/json_output.hpp"
#include "planner/cli/remedy.hpp"
#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

using nlohmann::json;
using test::run_json;

TEST(Remedy, keeps_the_batch_equation_of_a_ds_config) {
  const test::TemporaryFile config{R"({"train_batch_size": 128, "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})"};
  const auto change = run_json({"ledger", "--model", "qwen2.5-7b", "--cluster", "8xh100", "--ds", config.path(),
                                "--set", "sequence=8192"})["smallest_change"];
  EXPECT_EQ(change["verdict"], "fits");
  const auto& set = change["set"];
  ASSERT_TRUE(set.contains("micro_batch") && set.contains("gradient_accumulation")) << change.dump();
  EXPECT_EQ(set["micro_batch"].get<int>() * set["gradient_accumulation"].get<int>() * 8, 128);
}

TEST(Remedy, changes_more_keys_before_it_asks_for_more_gpus) {
  const auto change = run_json({"ledger", "--model", "mixtral-8x7b", "--cluster", "16xh100", "--set", "engine=plimsoll",
                                "--set", "zero.stage=2", "--set", "expert_parallel=2"})["smallest_change"];
  EXPECT_EQ(change["verdict"], "fits");
  EXPECT_FALSE(change["set"].contains("world_size")) << change.dump();
  EXPECT_LE(change["set"].size(), 2U);
}

TEST(Remedy, asks_for_more_gpus_where_nothing_else_helps) {
  const auto change = run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--set", "engine=plimsoll",
                                "--set", "recompute=full"})["smallest_change"];
  EXPECT_EQ(change["verdict"], "fits");
  EXPECT_TRUE(change["set"].contains("world_size")) << change.dump();
}

TEST(Remedy, asks_for_more_gpus_beside_what_saves_activations_where_no_other_key_helps) {
  const auto change = run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--set", "engine=plimsoll",
                                "--set", "micro_batch=8"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["verdict"], "fits");
  EXPECT_TRUE(change["set"].contains("world_size")) << change.dump();
}

TEST(Remedy, offloads_under_fsdp2_where_one_gpu_is_all_there_is) {
  const auto change = run_json({"ledger", "--model", "llama-3.1-8b", "--cluster", "1xh100", "--set", "engine=fsdp2",
                                "--set", "sequence=4096", "--set", "construction=gpu"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["set"],
            (json{{"offload.optimizer", "cpu"}, {"offload.parameters", "cpu"}, {"construction", "meta"}}))
      << change.dump();
}

// 64 experts over 1024 shards: fifteen of sixteen rows are padding, which neither more GPUs nor smaller batches change.
TEST(Remedy, shards_over_fewer_ranks_where_full_sharding_pads) {
  const std::vector<std::string> arguments{"ledger",       "--model",   "deepseek-v2-lite",
                                           "--cluster",    "1024xh100", "--set",
                                           "engine=fsdp2", "--set",     "recompute=full"};
  const auto change = run_json(arguments)["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["verdict"], "fits");
  ASSERT_EQ(change["set"].size(), 1U) << change.dump();
  EXPECT_TRUE(change["set"].contains("fsdp.replicate")) << change.dump();
  const auto trap =
      test::run({"check", "--model", "deepseek-v2-lite", "--cluster", "1024xh100", "--set", "engine=fsdp2"});
  EXPECT_EQ(trap.code, 0) << trap.err;
  EXPECT_THAT(trap.out, testing::AllOf(testing::HasSubstr("warning[trap.padding]"),
                                       testing::HasSubstr("fsdp.replicate=16 shards over 64 ranks")));
  const auto none =
      test::run({"check", "--model", "deepseek-v2-lite", "--cluster", "64xh100", "--set", "engine=fsdp2"});
  EXPECT_THAT(none.out, testing::Not(testing::HasSubstr("trap.padding")));
}

TEST(Remedy, says_where_the_time_was_up) {
  InputOptions options;
  options.model = "llama-3.1-70b";
  options.cluster = "8xh100";
  const Inputs inputs(options);
  const Evaluation evaluation = evaluate(inputs.scenario());
  ASSERT_NE(evaluation.ledger.verdict, Verdict::fits);
  const SmallestChange change = smallest_change(inputs, evaluation, {}, std::chrono::seconds(0));
  EXPECT_FALSE(change.found);
  EXPECT_FALSE(change.all_tried);
  EXPECT_THAT(no_remedy_in_words(evaluation.ledger, change.all_tried),
              testing::HasSubstr("Not every change could be tried in 60 s."));
  EXPECT_FALSE(nlohmann::json::parse(ledger_json(evaluation, change))["all_changes_tried"].get<bool>());
}

TEST(Remedy, is_told_beside_a_message_as_by_the_ledger) {
  const std::vector<std::string> scenario{"--model", "llama-3.1-8b",    "--cluster", "1xh100",
                                          "--set",   "engine=plimsoll", "--set",     "micro_batch=4"};
  std::vector<std::string> ledger{"ledger"}, oom{"oom", "Tried to allocate 2.00 GiB."};
  ledger.insert(ledger.end(), scenario.begin(), scenario.end());
  oom.insert(oom.end(), scenario.begin(), scenario.end());
  const json told = run_json(oom), asked = run_json(ledger);
  EXPECT_TRUE(asked["smallest_change"].is_object());
  EXPECT_EQ(told["smallest_change"], asked["smallest_change"]);
  EXPECT_EQ(told["all_changes_tried"], asked["all_changes_tried"]);
  const std::string text = test::run(oom).out;
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("Smallest change with which it fits: --set micro_batch=1 "),
                                   testing::HasSubstr("That takes a cluster of ")));
}

TEST(Remedy, keeps_no_batch_that_the_trainer_makes_the_product) {
  const test::TemporaryFile config{R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 16,
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})"};
  const auto change =
      run_json({"ledger", "--model", "llama-3.1-8b", "--cluster", "8xh100", "--ds", config.path()})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_FALSE(change["set"].contains("gradient_accumulation")) << change.dump();
}

TEST(Remedy, of_adapters_counts_states_of_the_adapters_alone) {
  const auto change = run_json({"ledger", "--model", "llama-3.1-8b", "--cluster", "1xh100", "--set",
                                "trainable.lora.rank=8", "--set", "micro_batch=4"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["set"], nlohmann::json({{"micro_batch", 2}}));
}

}  // namespace
}  // namespace plimsoll
