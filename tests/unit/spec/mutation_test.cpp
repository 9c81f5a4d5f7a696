// Does any damaged config.json crash a reader, or fail without saying where and why?  Presets are damaged at random, with
// a fixed seed, in the ways in which files get damaged: cut, a byte more or less, another number, a value of another type.
#include <gtest/gtest.h>

#include "planner/spec/presets.hpp"
#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/mutate.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

TEST(Mutations, EndInAModelOrInErrorsWithAPlaceAndAMessage) {
  Random random(20261129);  // NOLINT: the same files every time
  int models = 0, failures = 0;
  for (const std::string& preset : preset_names("models")) {
    const std::string original = load_source(find_preset("models", preset)->string())->text;
    for (int i = 0; i < 30; ++i) {
      std::string text = original;
      for (std::size_t n = 1 + below(random, 3); n > 0; --n) mutate(random, text);
      const auto document = parse_document(source(text), Syntax::json);
      const Result<ModelSpec> model =
          document ? read_model(*document, preset) : Result<ModelSpec>(document.diagnostics());
      for (const Diagnostic& diagnostic : model.diagnostics()) {
        EXPECT_GT(diagnostic.place.line, 0) << text;
        EXPECT_FALSE(diagnostic.message.empty()) << text;
        EXPECT_FALSE(format(diagnostic).empty());
      }
      EXPECT_TRUE(model || has_errors(model.diagnostics())) << text;
      EXPECT_TRUE(!model || count_parameters(*model).total > 0) << text;
      (model ? models : failures) += 1;
    }
  }
  EXPECT_GE(models + failures, 1000);
  EXPECT_GT(models, 100);  // most numbers of a config decide no size, so a good part of the files stays readable
  EXPECT_GT(failures, 100);
}

TEST(Mutations, APresetCutAnywhereIsAnErrorWithAPlace) {
  for (const char* preset : {"mixtral-8x7b", "deepseek-v3.2", "dbrx"}) {
    std::string text = load_source(find_preset("models", preset)->string())->text;
    text.erase(text.find_last_of('}') + 1);
    for (std::size_t length = 0; length < text.size(); ++length) {
      const auto document = parse_document(source(text.substr(0, length)), Syntax::json);
      ASSERT_FALSE(document) << preset << " cut at byte " << length;
      EXPECT_GT(document.diagnostics().front().place.line, 0);
    }
  }
}

}  // namespace
}  // namespace plimsoll
