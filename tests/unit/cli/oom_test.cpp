// Are out-of-memory messages read in all their wordings, and do they decode to the right tensor?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "planner/cli/oom_decode.hpp"
#include "tests/unit/cli/program.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using test::run;
using test::run_json;
using test::TemporaryFile;
using testing::HasSubstr;
using testing::StartsWith;

OomMessage read(const std::string& text) {
  const auto message = read_oom_message(source(text, "message"));
  EXPECT_TRUE(message) << format(message.diagnostics());
  return message ? *message : OomMessage{};
}

TEST(OomMessage, ReadsWhatWasAskedForInEveryWording) {
  const std::vector<std::pair<const char*, double>> wordings = {
      {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.94 GiB. GPU 0 has a total capacity of",
       12.94 * 0x1p30},
      {"RuntimeError: CUDA out of memory. Tried to allocate 98.00 MiB (GPU 3; 15.78 GiB total capacity;", 98 * 0x1p20},
      {"torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 1.53 GiB. GPU 0", 1.53 * 0x1p30},
      {"RuntimeError: NPU out of memory. Tried to allocate 26.44 GiB (NPU 2; 60.97 GiB total capacity;",
       26.44 * 0x1p30},
      {"RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you "
       "tried "
       "to allocate 17179869184 bytes. Error code 12",
       0x1p34},
      {"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 0x1p33},
      {"jaxlib: Out of memory allocating 1,073,741,824 bytes", 0x1p30},
      {"numpy.core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000, 1000000)",
       7.45 * 0x1p30},
      {"cudaMalloc failed: failed to allocate 512 MB", 512e6},
      {"  1.96 GiB ", 1.96 * 0x1p30},
      {"768MiB", 768 * 0x1p20},
  };
  for (const auto& [text, bytes] : wordings) EXPECT_NEAR(read(text).requested.bytes, bytes, 1) << text;
}

TEST(OomMessage, ReadsTheOtherSizes) {
  const OomMessage old = read(
      "CUDA out of memory. Tried to allocate 12.94 GiB (GPU 0; 79.35 GiB total capacity; 77.65 GiB already allocated; "
      "316.19 MiB free; 77.80 GiB reserved in total by PyTorch)");
  EXPECT_NEAR(old.capacity->bytes, 79.35 * 0x1p30, 1);
  EXPECT_NEAR(old.allocated->bytes, 77.65 * 0x1p30, 1);
  EXPECT_NEAR(old.free->bytes, 316.19 * 0x1p20, 1);
  EXPECT_NEAR(old.reserved->bytes, 77.80 * 0x1p30, 1);
  const OomMessage now = read(
      "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of which 19.94 MiB is "
      "free. Process 1 has 79.12 GiB memory in use. Of the allocated memory 75.93 GiB is allocated by PyTorch, and "
      "1.23 "
      "GiB is reserved by PyTorch but unallocated.");
  EXPECT_NEAR(now.capacity->bytes, 79.15 * 0x1p30, 1);
  EXPECT_NEAR(now.free->bytes, 19.94 * 0x1p20, 1);
  EXPECT_NEAR(now.allocated->bytes, 75.93 * 0x1p30, 1);
  EXPECT_NEAR(now.reserved_unused->bytes, 1.23 * 0x1p30, 1);
}

TEST(OomMessage, ATextWithoutASizeIsRefused) {
  for (const char* text : {"", "CUDA error: out of memory", "Tried to allocate nothing", "0 bytes", "12.94 parsecs"})
    EXPECT_FALSE(read_oom_message(source(text, "message"))) << text;
}

/// The arguments that state a case's sizes, as a user would who knows no more than those.
class StatedSizes {
 public:
  explicit StatedSizes(const nlohmann::json& inputs) {
    static const std::map<std::string, std::string> keys = {{"V", "vocab_size"},
                                                            {"h", "hidden_size"},
                                                            {"E", "num_experts"},
                                                            {"E_local", "num_experts"},
                                                            {"f", "moe_intermediate_size"},
                                                            {"L_local", "num_hidden_layers"},
                                                            {"heads", "num_attention_heads"}};
    nlohmann::json config = nlohmann::json::object();
    for (const auto& [name, value] : inputs.items()) {
      if (name == "P")
        arguments_.insert(arguments_.end(), {"--parameters", fmt::format("{:.0f}", value.get<double>())});
      if (name == "N") arguments_.insert(arguments_.end(), {"--gpus", value.dump()});
      if (name == "mb") arguments_.insert(arguments_.end(), {"--set", "micro_batch=" + value.dump()});
      if (name == "s") arguments_.insert(arguments_.end(), {"--set", "sequence=" + value.dump()});
      if (keys.count(name) != 0) config[keys.at(name)] = value;
    }
    if (config.empty()) return;
    config_ = std::make_unique<TemporaryFile>(config.dump());
    arguments_.insert(arguments_.end(), {"--model", config_->path()});
  }
  const std::vector<std::string>& arguments() const { return arguments_; }

 private:
  std::vector<std::string> arguments_;
  std::unique_ptr<TemporaryFile> config_;
};

std::string first_words(const std::string& text, std::size_t count) {
  std::size_t at = 0;
  while (count-- > 0 && at != std::string::npos) at = text.find(' ', at + 1);
  return text.substr(0, at);
}

TEST(Oom, PublicMessagesDecodeToTheirTensor) {
  const auto cases =
      nlohmann::json::parse(std::ifstream(PLIMSOLL_SOURCE_DIR "/tests/data/oom_decoder_cases.json"))["cases"];
  ASSERT_EQ(cases.size(), 8U);
  for (const auto& one : cases) {
    const StatedSizes sizes(one["inputs"]);
    std::vector<std::string> arguments = {"oom", fmt::format("CUDA out of memory. Tried to allocate {} {}",
                                                             one["requested"].dump(), one["unit"].get<std::string>())};
    arguments.insert(arguments.end(), sizes.arguments().begin(), sizes.arguments().end());
    const auto json = run_json(arguments);
    ASSERT_FALSE(json["candidates"].empty()) << one["label"];
    const auto& first = json["candidates"][0];
    EXPECT_THAT(first["tensor"].get<std::string>(), StartsWith(first_words(one["tensor"], 3))) << one["label"];
    EXPECT_NEAR(first["relative_error"].get<double>(), one["relative_error"].get<double>(), 1e-4) << one["label"];
  }
}

TEST(Oom, ATracebackDecidesBetweenEqualSizes) {
  const std::vector<std::string> sizes = {"--parameters", "8020000000", "--gpus", "2"};
  const auto first_with = [&](const std::string& text) {
    std::vector<std::string> arguments = {"oom", text};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    return run_json(arguments)["candidates"][0]["tensor"].get<std::string>();
  };
  const std::string message = "CUDA out of memory. Tried to allocate 14.94 GiB";
  EXPECT_THAT(first_with(message), StartsWith("flattened 16-bit weights"));
  EXPECT_THAT(first_with("in initialize_optimizer_states\n" + message), StartsWith("FP32 optimizer shard"));
}

TEST(Oom, WithAScenarioTheProgramsBuffersAreNamed) {
  const TemporaryFile model(test::small_model);
  const auto json = run_json({"oom", "Tried to allocate 62.50 MiB", "--model", model.path(), "--cluster", "1xh200",
                              "--set", "engine=ddp", "--set", "micro_batch=4", "--set", "sequence=4096"});
  // 4 * 4096 tokens * 1000 words * 4 bytes = 62.5 MiB
  EXPECT_THAT(json["candidates"][0]["tensor"].get<std::string>(), StartsWith("FP32 logits"));
  EXPECT_FALSE(json["candidates"][0]["in_program"].empty());
}

TEST(Oom, APlanThatNoEngineBuildsStillGivesItsSizes) {
  const TemporaryFile config(
      R"({"hidden_size": 4096, "moe_intermediate_size": 1536, "num_experts": 128, "num_hidden_layers": 94})");
  const auto json =
      run_json({"oom", "Tried to allocate 26.44 GiB", "--model", config.path(), "--set", "tensor_parallel=4", "--set",
                "pipeline_parallel=2", "--set", "expert_parallel=8", "--gpus", "32"});
  EXPECT_THAT(json["candidates"][0]["tensor"].get<std::string>(), StartsWith("all local expert weights"));
}

TEST(Oom, SmallSizesAreThePoolsOwn) {
  EXPECT_THAT(run({"oom", "CUDA out of memory. Tried to allocate 20.00 MiB"}).out, HasSubstr("between 1 and 10 MiB"));
}

TEST(Oom, WrongInputIsOneAndAMissingFileThree) {
  EXPECT_EQ(run({"oom", "nothing to see"}).code, 1);
  EXPECT_EQ(run({"oom", "no/such/file.log"}).code, 3);
  EXPECT_EQ(run({"oom", "12 GiB", "--parameters", "many"}).code, 1);
  EXPECT_EQ(run({"oom", "12 GiB", "--set", "micro_bach=2"}).code, 1);
  EXPECT_EQ(run({"oom"}).code, 2);
}

}  // namespace
}  // namespace plimsoll
