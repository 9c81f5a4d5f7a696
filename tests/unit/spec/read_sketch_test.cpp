// Does a sketch become a model of exactly the sizes that it states, and does it say what it assumed?
#include <gmock/gmock.h>

#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(ReadSketch, HoldsExactlyTheParametersStated) {
  for (const char* text : {"sketch:dense=56B,expert=144B,experts=64,top_k=2,hidden=8192,layers=48", "sketch:dense=7B",
                           "sketch:dense=1.5B,hidden=2048", "sketch:dense=350M,layers=24",
                           "sketch:dense=2B,expert=100B,experts=7,hidden=1000,layers=3,heads=10,kv_heads=5"}) {
    const auto model = read_sketch(text);
    ASSERT_TRUE(model) << text << "\n" << format(model.diagnostics());
    const ParameterCounts counts = count_parameters(*model);
    const std::string sketch = text;
    const bool large = sketch.find("56B") != std::string::npos;
    if (large) {
      EXPECT_EQ(counts.dense, 56'000'000'000);
      EXPECT_EQ(counts.expert, 144'000'000'000);
      EXPECT_EQ(model->layers.size(), 48U);
      EXPECT_EQ(model->layers[0].moe->experts, 64);
    }
    EXPECT_EQ(counts.dense % 10'000'000, 0) << text;
    EXPECT_EQ(counts.expert % 10'000'000, 0) << text;
    EXPECT_TRUE(model->sketch);
    for (const LayerSpec& layer : model->layers) {
      EXPECT_EQ(layer.attention.q_width(), model->hidden);
      EXPECT_NE(layer.mlp.has_value(), layer.moe.has_value());
    }
  }
}

TEST(ReadSketch, SaysWhatItAssumed) {
  const auto model = read_sketch("sketch:dense=7B,hidden=4096,layers=32");
  ASSERT_TRUE(model);
  EXPECT_THAT(model->assumptions, Contains(HasSubstr("a vocabulary of 32000")));
  EXPECT_THAT(model->assumptions, Contains(HasSubstr("8 heads of keys and values")));
  EXPECT_EQ(model->places.at("hidden").column, 17);
}

TEST(ReadSketch, PointsAtWhatIsWrong) {
  EXPECT_EQ(format(read_sketch("sketch:dense=13B,expert=,hiden=3,layers=0,dense=1B").diagnostics()),
            "--model:1:18: error[model.sketch]: expert must be a whole number from 1 to 1,125,899,906,842,624\n"
            "    1 | sketch:dense=13B,expert=,hiden=3,layers=0,dense=1B\n"
            "      |                  ^~~~~~~\n"
            "help: K, M, B and T stand for thousands: 56B\n"
            "--model:1:26: error[model.sketch]: \"hiden=3\" is no KEY=VALUE of a sketch\n"
            "    1 | sketch:dense=13B,expert=,hiden=3,layers=0,dense=1B\n"
            "      |                          ^~~~~~~\n"
            "help: did you mean hidden? keys: dense, expert, experts, top_k, hidden, layers, vocab, heads, kv_heads\n"
            "--model:1:34: error[model.sketch]: layers must be a whole number from 1 to 16,384\n"
            "    1 | sketch:dense=13B,expert=,hiden=3,layers=0,dense=1B\n"
            "      |                                  ^~~~~~~~\n"
            "help: K, M, B and T stand for thousands: 56B\n"
            "--model:1:43: error[model.sketch]: dense is stated twice\n"
            "    1 | sketch:dense=13B,expert=,hiden=3,layers=0,dense=1B\n"
            "      |                                           ^~~~~~~~\n");
  const auto message = [](const char* text) { return format(read_sketch(text).diagnostics()); };
  EXPECT_THAT(message("sketch:"), HasSubstr("the sketch does not state dense"));
  EXPECT_THAT(message("sketch:dense=1B,experts=8"), HasSubstr("go together"));
  EXPECT_THAT(message("sketch:dense=1M,hidden=8192,layers=48"), HasSubstr("1,000,000 parameters are too few"));
  EXPECT_THAT(message("sketch:dense=1B,expert=1K,experts=8"), HasSubstr("too few for 8 experts"));
  EXPECT_THAT(message("sketch:dense=1B,expert=9B,experts=8,top_k=9"), HasSubstr("9 experts per token of only 8"));
  EXPECT_THAT(message("sketch:dense=1B,hidden=1024,heads=7"), HasSubstr("7 heads do not divide the hidden size, 1024"));
  EXPECT_THAT(message("sketch:dense=1100T,expert=1100T,experts=8"), HasSubstr("parameters in all"));
}

}  // namespace
}  // namespace plimsoll
