// What does `recommend` promise?  A legal plan whose own ledger and step time are those it states; every plan accounted for;
// files that read back; an honest word where nothing fits or the time was up.
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "planner/cli/recommendation.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/cli/program.hpp"

namespace plimsoll::test {
namespace {

using nlohmann::json;

constexpr const char* small_mixture = R"({"model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
  "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 4096, "tie_word_embeddings": false})";

/// Seconds in which even a sanitized program on a busy machine proves what these searches ask.
constexpr const char* proof_s = "600";

std::int64_t sum_of_counts(const json& excluded) {
  return std::accumulate(excluded.begin(), excluded.end(), std::int64_t{0},
                         [](std::int64_t sum, const json& e) { return sum + e["count"].get<std::int64_t>(); });
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(DifferenceInWords, SaysWhereTheOptimizerIs) {
  Plan here, there;
  there.offload.optimizer = OffloadDevice::cpu;
  EXPECT_EQ(difference_in_words(here, there), "optimizer on cpu instead of gpu");
  EXPECT_EQ(difference_in_words(there, here), "optimizer on gpu instead of cpu");
}

class Recommend : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> with(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"recommend", "--model", model_.path(), "--cluster", "2xh200"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  TemporaryFile model_{small_mixture};
};

TEST_P(Recommend, states_the_bytes_and_the_time_of_its_plan) {
  const json answer =
      run_json(with({"--gpus", "2", "--global-batch", "16", "--set", "sequence=1024", "--set",
                     std::string("engine=") + GetParam(), "--set", "recompute=none", "--seconds", proof_s}));
  ASSERT_FALSE(answer["plans"].empty());
  const json& best = answer["plans"][0];
  EXPECT_EQ(best["rank"], 1);
  EXPECT_EQ(best["plan"]["micro_batch"].get<int>() * best["plan"]["gradient_accumulation"].get<int>() *
                best["plan"]["world_size"].get<int>(),
            16);
  const TemporaryFile plan(best["plan"].dump());
  const json ledger = run_json({"ledger", "--model", model_.path(), "--cluster", "2xh200", "--plan", plan.path()});
  EXPECT_EQ(ledger["verdict"], best["verdict"]);
  EXPECT_EQ(ledger["gpu"]["allocated_peak_bytes"], best["allocated_peak_bytes"]);
  EXPECT_EQ(ledger["gpu"]["device_peak_bytes"], best["device_peak_bytes"]);
  const json simulated =
      run_json({"simulate", "--model", model_.path(), "--cluster", "2xh200", "--plan", plan.path(), "--rank", "0"});
  EXPECT_DOUBLE_EQ(simulated["step_time_s"].get<double>(), best["step_time_s"].get<double>());
  EXPECT_EQ(sum_of_counts(answer["excluded"]) + 1, answer["considered"].get<std::int64_t>());
  EXPECT_FALSE(answer["pareto"].empty());
  EXPECT_TRUE(answer["proven"].get<bool>());
}
INSTANTIATE_TEST_SUITE_P(engines, Recommend, testing::Values("deepspeed", "fsdp2", "plimsoll"));

TEST_F(Recommend, keeps_what_is_stated) {
  const json answer = run_json(with({"--gpus", "2", "--set", "zero.stage=1", "--set", "micro_batch=2", "--set",
                                     "recompute=full", "--set", "sequence=512"}));
  for (const json& listed : answer["plans"]) {
    EXPECT_EQ(listed["plan"]["zero"]["stage"], 1);
    EXPECT_EQ(listed["plan"]["micro_batch"], 2);
    EXPECT_EQ(listed["plan"]["recompute"], "full");
  }
}

TEST_F(Recommend, emits_files_that_read_back_as_its_plan) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "emitted";
  const json answer =
      run_json(with({"--gpus", "2", "--global-batch", "8", "--set", "zero.stage=2", "--emit", folder.string()}));
  const json plan = json::parse(text_of(folder / "plan.json"));
  EXPECT_EQ(plan, answer["plans"][0]["plan"]);
  const json config = json::parse(text_of(folder / "ds_config.json"));
  EXPECT_EQ(config["train_batch_size"], 8);
  EXPECT_EQ(config["zero_optimization"]["stage"], 2);
  EXPECT_THAT(text_of(folder / "launch.sh"), testing::AllOf(testing::HasSubstr("torchrun"), testing::HasSubstr("srun"),
                                                            testing::HasSubstr("deepspeed ")));
  EXPECT_THAT(text_of(folder / "report.md"), testing::HasSubstr("Why this one"));
}

TEST_F(Recommend, starts_a_plan_of_its_own_engine_with_its_own_program) {
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "emitted";
  run_json(with({"--gpus", "2", "--set", "engine=plimsoll", "--set", "sequence=512", "--emit", folder.string()}));
  // In place of torchrun: what it is told to start.
  temporary.write("torchrun", "#!/bin/sh\nfor word; do echo \"$word\"; done >\"$TOLD\"\n");
  std::filesystem::permissions(temporary.path() / "torchrun", std::filesystem::perms::owner_all);
  const std::string told = (temporary.path() / "told").string();
  ASSERT_EQ(std::system(("TOLD=" + told + " PATH=" + temporary.path().string() + ":$PATH " +
                         (folder / "launch.sh").string() + " torchrun --steps 3")
                            .c_str()),
            0);
  EXPECT_EQ(text_of(told), "--nnodes=1\n--nproc_per_node=2\n--standalone\n--no-python\n--\nplimsoll-run\n--model\n" +
                               model_.path() + "\n--cluster\n2xh200\n--plan\nplan.json\n--backend\ncuda\n--steps\n3\n");
  EXPECT_THAT(text_of(folder / "report.md"),
              testing::AllOf(testing::HasSubstr("plimsoll-run trains the model by plan.json"),
                             testing::Not(testing::HasSubstr("the training code has to do"))));
}

TEST_F(Recommend, does_not_search_for_a_folder_that_cannot_be_made) {
  const ProgramRun refused = run(with({"--seconds", "600", "--emit", "/proc/version/plan"}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_EQ(refused.err, "plimsoll: cannot make /proc/version/plan: /proc/version is no folder\n");
}

TEST_F(Recommend, says_that_nothing_fits_and_what_lacks_least) {
  const json answer =
      run_json({"recommend", "--model", "llama-3.1-405b", "--cluster", "1xh100", "--set", "sequence=4096"}, 4);
  EXPECT_TRUE(answer["plans"].empty());
  EXPECT_FALSE(answer["nearest"].is_null());
  EXPECT_EQ(sum_of_counts(answer["excluded"]), answer["considered"].get<std::int64_t>());
}

// Eight billion parameters on one card: what a user who is tied to FSDP2 can do without a second one.
TEST_F(Recommend, offloads_under_fsdp2_where_nothing_else_fits) {
  const json answer = run_json({"recommend", "--model", "llama-3.1-8b", "--cluster", "1xh100", "--set", "engine=fsdp2",
                                "--set", "sequence=4096", "--set", "gradient_accumulation=1", "--seconds", "30"});
  ASSERT_FALSE(answer["plans"].empty());
  EXPECT_EQ(answer["plans"][0]["plan"]["offload"]["parameters"], "cpu");
  EXPECT_EQ(answer["plans"][0]["plan"]["offload"]["optimizer"], "cpu");
}

// Experts over two GPUs and recomputation leave 262 GiB lacking, where one GPU's experts would lack 309.
TEST_F(Recommend, names_the_plan_that_lacks_least_and_what_helps) {
  const json answer = run_json({"recommend", "--model", "mixtral-8x7b", "--cluster", "2xh200", "--set",
                                "engine=plimsoll", "--set", "sequence=4096", "--seconds", proof_s},
                               4);
  const json& nearest = answer["nearest"];
  EXPECT_TRUE(nearest["proven"].get<bool>());
  EXPECT_EQ(nearest["plan"]["expert_parallel"], 2);
  EXPECT_EQ(nearest["plan"]["recompute"], "full");
  EXPECT_THAT(nearest["what_helps"].get<std::string>(), testing::HasSubstr("plimsoll need"));
}

// A hint that cannot help is none.
TEST_F(Recommend, promises_no_help_of_more_gpus_where_each_of_them_lacks) {
  const auto hint = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"recommend", "--model", model_.path(), "--cluster", "1xh100", "--seconds", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_json(arguments, 4)["nearest"]["what_helps"].get<std::string>();
  };
  EXPECT_THAT(hint({"--set", "sequence=100000000"}), testing::HasSubstr("A shorter sequence does."));
  EXPECT_THAT(hint({"--set", "sequence=512", "--host-memory", "1 MiB"}), testing::HasSubstr("host memory of 1.00 MiB"));
}

TEST_F(Recommend, refuses_a_global_batch_that_no_plan_makes_and_names_the_nearest) {
  // (asked, stated micro-batch, multiple, nearest)
  for (const auto& [batch, set, of, nearest] :
       {std::array{"7", "sequence=512", "no multiple of 2 GPUs", "--global-batch 6\n"},
        std::array{"1", "sequence=512", "no multiple of 2 GPUs", "--global-batch 2\n"},
        std::array{"1000003", "micro_batch=4", "no multiple of 2 GPUs x micro-batch 4", "--global-batch 1000000\n"}}) {
    const ProgramRun refused = run(with({"--gpus", "2", "--global-batch", batch, "--set", set}));
    EXPECT_EQ(refused.code, 1) << batch;
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, testing::AllOf(testing::HasSubstr(of), testing::HasSubstr(nearest)));
  }
}

TEST_F(Recommend, takes_fewer_gpus_for_a_batch_that_all_do_not_divide) {
  EXPECT_EQ(run_json(with({"--global-batch", "7"}))["plans"][0]["plan"]["world_size"], 1);
}

TEST_F(Recommend, admits_that_the_time_was_up) {
  // What was found by then, if anything, is not said to be the best.
  const ProgramRun answer = run(with({"--gpus", "2", "--seconds", "0", "--json"}));
  EXPECT_TRUE(answer.code == 0 || answer.code == 4) << answer.err;
  EXPECT_FALSE(json::parse(answer.out)["proven"].get<bool>());
}

TEST_F(Recommend, expects_no_more_of_other_plans_than_their_bounds_allow) {
  const ProgramRun run_up =
      run({"recommend", "--model", "llama-3.1-8b", "--cluster", "8xh100", "--seconds", "1", "--json"});
  const json answer = json::parse(run_up.out);
  EXPECT_GT(answer["estimated"].get<int>(), 0);
  EXPECT_LE(answer["expected_gap"].get<double>(), answer["gap"].get<double>());
}

TEST_F(Recommend, puts_the_verdict_first) {
  const ProgramRun answer = run(with({"--gpus", "2", "--global-batch", "8", "--set", "zero.stage=3"}));
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.out, testing::AllOf(testing::HasSubstr("ZeRO-3"), testing::HasSubstr("tokens/s"),
                                         testing::HasSubstr("Why this one"), testing::HasSubstr("Not recommended")));
}

}  // namespace
}  // namespace plimsoll::test
