// Are the limits that are named the real ones?  The largest value that `max` finds fits and the next one does not; the smallest
// change that the ledger names fits when it is made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

using test::run_json;

struct Setting {
  const char* model;
  const char* cluster;
  std::vector<std::string> sets;
};

void PrintTo(const Setting& one, std::ostream* out) { *out << one.model << " " << one.sets.front(); }

std::string verdict(const Setting& setting, const std::vector<std::string>& more, nlohmann::json* change = nullptr) {
  std::vector<std::string> arguments = {"ledger", "--model", setting.model, "--cluster", setting.cluster};
  for (const std::vector<std::string>* sets : {&setting.sets, &more}) {
    for (const std::string& set : *sets) arguments.insert(arguments.end(), {"--set", set});
  }
  const auto json = run_json(arguments);
  if (change) *change = json["smallest_change"];
  return json["verdict"];
}

class Limits : public testing::TestWithParam<Setting> {};

TEST_P(Limits, TheLargestValueFitsAndTheNextDoesNot) {
  const Setting& setting = GetParam();
  for (const auto& [key, other] : {std::pair{"micro_batch", "sequence=2048"}, std::pair{"sequence", "micro_batch=1"}}) {
    std::vector<std::string> arguments = {"max",           key,     "--model", setting.model, "--cluster",
                                          setting.cluster, "--set", other};
    for (const std::string& set : setting.sets) arguments.insert(arguments.end(), {"--set", set});
    const std::int64_t value = run_json(arguments)["value"];
    EXPECT_NE(verdict(setting, {other, fmt::format("{}={}", key, value)}), "oom") << key << " " << value;
    EXPECT_EQ(verdict(setting, {other, fmt::format("{}={}", key, value + 1)}), "oom") << key << " " << value;
  }
}

TEST_P(Limits, TheSmallestChangeFits) {
  const Setting& setting = GetParam();
  nlohmann::json change;
  const std::vector<std::string> large = {"micro_batch=64", "sequence=4096"};
  ASSERT_EQ(verdict(setting, large, &change), "oom");
  ASSERT_TRUE(change.is_object());
  std::vector<std::string> sets = large;
  for (const auto& [key, value] : change["set"].items())
    sets.push_back(fmt::format("{}={}", key, value.is_string() ? value.get<std::string>() : value.dump()));
  EXPECT_EQ(verdict(setting, sets), change["verdict"].get<std::string>()) << change.dump();
  EXPECT_NE(change["verdict"], "oom");
}

// An arena is now more, now less larger than what is alive at its peak: a longer sequence might fit where a shorter one does not.
TEST(LimitsOfAnArena, NoLargerValueFits) {
  const Setting setting{"mixtral-8x7b", "16xh200", {"engine=plimsoll", "micro_batch=3"}};
  const std::int64_t value = run_json({"max", "sequence", "--model", setting.model, "--cluster", setting.cluster,
                                       "--set", setting.sets[0], "--set", setting.sets[1]})["value"];
  EXPECT_NE(verdict(setting, {fmt::format("sequence={}", value)}), "oom");
  for (std::int64_t more = 1; more <= value / 100; more += 3)
    EXPECT_EQ(verdict(setting, {fmt::format("sequence={}", value + more)}), "oom") << value << " + " << more;
}

// No sequence is short enough for a host that does not hold the processes; its search must end at once.
TEST(LimitsOfAnArena, NothingFitsWhereTheHostIsTooSmall) {
  const auto answer = run_json({"max", "sequence", "--model", "llama-3.1-8b", "--cluster", "8xh200", "--set",
                                "engine=plimsoll", "--host-memory", "1 MiB"},
                               4);
  EXPECT_EQ(answer["value"], 0);
  EXPECT_GT(answer["margin_bytes"], 0);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Limits,
    testing::Values(Setting{"llama-3.1-8b", "8xh100", {"zero.stage=3"}},
                    Setting{"llama-3.2-1b", "2xh200", {"engine=fsdp2"}},
                    Setting{"llama-3.2-3b", "1xh200", {"engine=ddp", "precision=bf16_autocast"}},
                    Setting{"mixtral-8x7b", "16xh200", {"engine=plimsoll"}},
                    Setting{"olmoe-1b-7b", "8xh200", {"zero.stage=1", "recompute=full"}},
                    Setting{"qwen2.5-7b", "8xh100", {"zero.stage=3", R"(trainable={"lora": {"rank": 16}})"}}));

}  // namespace
}  // namespace plimsoll
