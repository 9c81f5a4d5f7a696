// Do the answers for people look as they should?  Each case is a command line with small inputs; its standard output stands
// in tests/golden/<name>.txt, checked by hand when it was written.  PLIMSOLL_UPDATE_GOLDEN=1 writes them anew.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace plimsoll {
namespace {

struct Answer {
  const char* name;
  const char* arguments;  ///< relative to the folder of this test
};

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  pclose(pipe);
  return text;
}

class Golden : public testing::TestWithParam<Answer> {};

TEST_P(Golden, IsAsWritten) {
  const std::string folder = PLIMSOLL_SOURCE_DIR "/tests/golden";
  const std::string text = output_of(
      fmt::format("cd '{}' && NO_COLOR=1 '{}' {} 2>/dev/null", folder, PLIMSOLL_BINARY, GetParam().arguments));
  const std::string path = fmt::format("{}/{}.txt", folder, GetParam().name);
  if (std::getenv("PLIMSOLL_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::stringstream expected;
  expected << std::ifstream(path).rdbuf();
  EXPECT_EQ(text, expected.str());
}

INSTANTIATE_TEST_SUITE_P(
    Answers, Golden,
    testing::Values(Answer{"check_blog_moe", "check --ds inputs/blog_moe.json --gpus 8"},
                    Answer{"ledger_small", "ledger --model inputs/small.json --cluster 1xh200 --set engine=ddp"},
                    Answer{"volumes_small", "volumes --model inputs/small.json --cluster 2xh200 --set zero.stage=2"},
                    Answer{"peak_small", "explain --model inputs/small.json --cluster 1xh200 --set engine=ddp --peak"},
                    Answer{"listing_small",
                           "explain --model inputs/small.json --cluster 1xh200 --set engine=ddp --phase "
                           "steady_forward --layer 1"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace plimsoll
