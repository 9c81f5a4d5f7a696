// Is the smallest change one that a user would call smallest?  On the same GPUs first, with few keys, and the global batch stays
// where a ds_config.json states it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

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
  const auto change = run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--set", "engine=fsdp2",
                                "--set", "recompute=full"})["smallest_change"];
  EXPECT_EQ(change["verdict"], "fits");
  EXPECT_TRUE(change["set"].contains("world_size")) << change.dump();
}

TEST(Remedy, asks_for_more_gpus_beside_what_saves_activations_where_no_other_key_helps) {
  const auto change = run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--set", "engine=fsdp2",
                                "--set", "micro_batch=8"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["verdict"], "fits");
  EXPECT_TRUE(change["set"].contains("world_size")) << change.dump();
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
