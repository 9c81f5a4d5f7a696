// Compute time of profiled steps: six traces of one steady step each (kernels only, tests/data/kineto) beside the simulated
// step, as `plimsoll compare --kineto` tells them.  A traced step follows a pause, so that its clocks sag less than those of
// the steady loop that is simulated.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

Json row_of(const std::string& id) {
  for (const char* name : {"h200_torch", "h200_deepspeed"}) {
    std::ifstream file(fmt::format("{}/tests/data/measured/{}.json", PLIMSOLL_SOURCE_DIR, name));
    const Json table = Json::parse(file);
    for (const Json& row : table.at("rows")) {
      if (row.at("id") == id) return row;
    }
  }
  return {};
}

Json compared(const std::string& id, const std::string& trace) {
  const Json row = row_of(id);
  const test::TemporaryFolder folder;
  const std::string command = fmt::format(
      "{} compare --model {} --plan {} --cluster {} --kineto {}/tests/data/kineto/{}.json.gz --json 2>/dev/null",
      PLIMSOLL_BINARY, folder.write("model.json", row.at("model").dump()),
      folder.write("plan.json", row.at("plan").dump()), row.at("cluster").get<std::string>(), PLIMSOLL_SOURCE_DIR,
      trace);
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  pclose(pipe);
  return Json::parse(text, nullptr, false);
}

// Reached on 2026-11-30, in percent, rounded up.  Gaps between the launches of one op are no kernel's time: without them the first
// three are 0.1 to 0.2 shorter than they had seemed.  AutoEP's is 0.9 ms short in Adam (1.1 %), which takes a fifth longer over
// that run's experts than over its dense tensors, and over zeros when measured alone.
struct Bound {
  const char* id;
  double compute;
};
constexpr Bound bounds[] = {
    {"fsdp2-llama1b-mb4-s2048", 0.7},      {"fsdp2-llama7b-mb2-s4096", 1.0}, {"ds-z3-llama7b-mb1-s4096", 1.6},
    {"ds-autoep-z3-ep2-mixtral-mb4", 1.3}, {"ds-native-z2-ep2-k2-mb4", 0.1}, {"amp-mixtral-s-mb2-s2048", 0.6},
};

TEST(Kineto, ComputeTimeOfEachTracedStep) {
  for (const Bound& bound : bounds) {
    const Json answer = compared(bound.id, bound.id);
    ASSERT_TRUE(answer.is_object() && answer.contains("compute_error")) << bound.id << ": " << answer;
    EXPECT_LE(std::abs(answer.at("compute_error").get<double>()), bound.compute / 100) << bound.id;
  }
}

TEST(Kineto, ATraceOfAnotherStepIsRefused) {
  const Json answer = compared("fsdp2-llama1b-mb4-s2048", "amp-mixtral-s-mb2-s2048");
  ASSERT_TRUE(answer.is_discarded() || answer.contains("diagnostics"));
}

}  // namespace
}  // namespace plimsoll
