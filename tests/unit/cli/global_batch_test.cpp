// Does the global batch that a ds_config.json states stay in every search, by accumulation, and what is legal then?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

using nlohmann::json;
using test::run;
using test::run_json;
using test::TemporaryFile;
using testing::HasSubstr;

TemporaryFile config(const std::string& sizes) {
  return TemporaryFile{"{" + sizes + R"(, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}})"};
}

std::int64_t batch_of(const json& plan) {
  return plan["micro_batch"].get<std::int64_t>() * plan["gradient_accumulation"].get<std::int64_t>() *
         plan["world_size"].get<std::int64_t>();
}

TEST(GlobalBatch, max_tries_divisors_alone_and_says_so) {
  const TemporaryFile stated = config(R"("train_batch_size": 96, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 12)");
  std::vector<std::string> arguments{"max",    "micro_batch", "--model",     "llama-3.2-1b", "--cluster",
                                     "8xh100", "--ds",        stated.path(), "--set",        "sequence=8192"};
  const json answer = run_json(arguments);
  const std::int64_t value = answer["value"];
  EXPECT_EQ(12 % value, 0);
  EXPECT_GT(value, 1);
  EXPECT_LT(value, 12);
  EXPECT_EQ(batch_of(answer["plan"]), 96);
  std::int64_t next = value + 1;
  while (12 % next != 0) ++next;
  const auto verdict = [&](std::int64_t micro) {
    return run_json({"ledger", "--model", "llama-3.2-1b", "--cluster", "8xh100", "--ds", stated.path(), "--set",
                     "sequence=8192", "--set", "micro_batch=" + std::to_string(micro), "--set",
                     "gradient_accumulation=" + std::to_string(12 / micro)})["verdict"];
  };
  EXPECT_NE(verdict(value), "oom");
  EXPECT_EQ(verdict(next), "oom");
  const std::string words = run(arguments).out;
  EXPECT_THAT(words, HasSubstr("micro_batch = " + std::to_string(next) + " does not fit."));
  EXPECT_THAT(words, HasSubstr("only divisors of the 12 sequences of a rank were tried"));
}

TEST(GlobalBatch, max_says_where_a_rank_has_no_more_sequences) {
  const TemporaryFile stated = config(R"("train_batch_size": 8)");
  EXPECT_THAT(run({"max", "micro_batch", "--model", "llama-3.2-1b", "--cluster", "8xh100", "--ds", stated.path()}).out,
              HasSubstr("No larger one is legal"));
}

// Sizes that hold on 12 GPUs, and not on the one from which the search starts.
TEST(GlobalBatch, need_tries_numbers_of_gpus_that_divide_it) {
  const TemporaryFile stated = config(R"("train_batch_size": 12, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1, "zero_allow_untested_optimizer": true)");
  const std::vector<std::string> arguments{"need", "--model",     "llama-3.1-8b", "--device",     "4090",
                                           "--ds", stated.path(), "--set",        "sequence=1024"};
  const json answer = run_json(arguments)["answers"][0];
  EXPECT_EQ(answer["tried"], json({1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(12 % answer["gpus"].get<int>(), 0);
  EXPECT_EQ(batch_of(answer["plan"]), 12);
  EXPECT_THAT(run(arguments).out, HasSubstr("were tried: 1, 2, 3, 4, 6, 12."));
}

TEST(GlobalBatch, need_takes_micro_batch_1_where_the_file_states_the_batch_alone) {
  const TemporaryFile stated = config(R"("train_batch_size": 64)");
  const json answer =
      run_json({"need", "--model", "llama-3.2-3b", "--device", "h100", "--ds", stated.path()})["answers"][0];
  EXPECT_EQ(answer["plan"]["micro_batch"], 1);
  EXPECT_EQ(batch_of(answer["plan"]), 64);
}

TEST(GlobalBatch, the_smallest_change_to_more_gpus_finds_those_that_divide_it) {
  const TemporaryFile stated = config(R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 3)");  // 16 GPUs do not divide 24
  const json change = run_json({"ledger", "--model", "llama-3.1-70b", "--cluster", "8xh100", "--host-memory", "256 GiB",
                                "--ds", stated.path(), "--set", "recompute=full"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_EQ(change["set"]["world_size"], 24) << change.dump();
  EXPECT_EQ(change["set"]["gradient_accumulation"], 1) << change.dump();
}

TEST(GlobalBatch, what_the_command_line_overrides_does_not_stay) {
  const TemporaryFile stated = config(R"("train_batch_size": 128, "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2)");
  const json change = run_json({"ledger", "--model", "qwen2.5-7b", "--cluster", "8xh100", "--ds", stated.path(),
                                "--set", "sequence=8192", "--set", "micro_batch=7"})["smallest_change"];
  ASSERT_TRUE(change.is_object()) << change.dump();
  EXPECT_FALSE(change["set"].contains("gradient_accumulation")) << change.dump();
}

TEST(GlobalBatch, recommend_leaves_open_what_follows_from_it) {
  const TemporaryFile stated = config(R"("train_batch_size": 256)");  // 32 sequences a rank at once do not fit
  const json answer = run_json({"recommend", "--model", "llama-3.2-3b", "--cluster", "8xh100", "--ds", stated.path()});
  for (const json& plan : answer["pareto"]) EXPECT_EQ(batch_of(plan["plan"]), 256) << plan["plan"].dump();
  ASSERT_FALSE(answer["plans"].empty());
  EXPECT_EQ(batch_of(answer["plans"][0]["plan"]), 256);
}

TEST(Need, takes_what_is_stated_for_more_than_one_gpu) {
  const TemporaryFile plan{R"({"expert_parallel": 8, "world_size": 64})"};
  const json answer = run_json({"need", "--model", "qwen3-30b-a3b", "--device", "h200", "--plan", plan.path(), "--set",
                                "sequence=1024"})["answers"][0];
  EXPECT_EQ(answer["gpus"].get<int>() % 8, 0);
  EXPECT_LT(answer["gpus"], 64);
}

TEST(Need, does_not_speak_of_ranks_beside_what_is_wrong_with_any_number_of_them) {
  const TemporaryFile plan{R"({"expert_parallel": 8, "micro_bach": 2})"};
  const std::string words = run({"need", "--model", "qwen3-30b-a3b", "--device", "h200", "--plan", plan.path()}).err;
  EXPECT_THAT(words, HasSubstr("did you mean micro_batch?"));
  EXPECT_THAT(words, testing::Not(HasSubstr("does not divide")));
}

// One device's other pasts of the allocator's pool reach its memory, though the first of them leaves room.
TEST(Need, calls_nothing_roomy_that_the_ledger_calls_tight) {
  const json answer = run_json({"need", "--model", "mixtral-8x7b", "--device", "h100", "--set",
                                "micro_batch=5"})["answers"][0]["without_offload"];
  ASSERT_TRUE(answer.contains("with_room")) << answer.dump();
  EXPECT_EQ(answer["with_room"]["verdict"], "fits");
}

TEST(Need, says_once_what_is_to_be_said_of_every_device) {
  const std::string words = run({"need", "--model", "qwen3-30b-a3b", "--device", "h200,h100", "--set",
                                 "expert_parallel=8", "--set", "sequence=128"})
                                .err;
  const std::size_t at = words.find("trap.autoep_save");
  ASSERT_NE(at, std::string::npos) << words;
  EXPECT_EQ(words.find("trap.autoep_save", at + 1), std::string::npos);
}

TEST(Need, tells_beside_a_tight_plan_how_many_gpus_fit) {
  const std::vector<std::string> arguments{"need",  "--model", "llama-2-7b",  "--device",
                                           "a6000", "--set",   "zero.stage=2"};
  const json answer = run_json(arguments)["answers"][0]["without_offload"];
  EXPECT_EQ(answer["verdict"], "tight");
  EXPECT_EQ(answer["with_room"]["verdict"], "fits");
  EXPECT_GT(answer["with_room"]["gpus"], answer["gpus"]);
  EXPECT_THAT(run(arguments).out, HasSubstr("Tight counts as running"));
}

// A histogram of 512 rows of top-2 routing fits one micro-batch alone.
TEST(Max, says_that_a_larger_value_is_refused_where_it_is) {
  const TemporaryFile plan{R"({"engine": "fsdp2", "micro_batch": 2, "sequence": 128,
    "routing": {"kind": "histogram", "counts": [[[64, 64, 64, 64, 64, 64, 64, 64]]]}})"};
  const std::vector<std::string> inputs{"--model", "mixtral-8x7b", "--cluster", "8xh200", "--plan", plan.path()};
  std::vector<std::string> arguments{"max", "micro_batch"};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  EXPECT_EQ(run_json(arguments)["value"], 2);
  EXPECT_THAT(run(arguments).out, HasSubstr("micro_batch = 3 is refused: /routing/counts does not fit"));
}

}  // namespace
}  // namespace plimsoll
