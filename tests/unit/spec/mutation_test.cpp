// Does any damaged config.json crash a reader, or fail without saying where and why?  Presets are damaged at random, with
// a fixed seed, in the ways in which files get damaged: cut, a byte more or less, another number, a value of another type.
#include <gtest/gtest.h>

#include <random>

#include "planner/spec/presets.hpp"
#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t bound) {
  return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

template <std::size_t N>
std::string one_of(Random& random, const std::string (&choices)[N]) {
  return choices[below(random, N)];
}

const std::string bytes[] = {std::string(1, '\0'), "\x01", "\"", "{", "}", "[", "]", ",", ":", "-", "\xff",
                             "\xf0\x9f\x98\x80"};
const std::string values[] = {"-1",
                              "0",
                              "1e999",
                              "9223372036854775808",
                              "18446744073709551616",
                              "0.5",
                              "\"7\"",
                              "[]",
                              "{}",
                              "null",
                              "1e-300",
                              "4611686018427387904",
                              "1048576",
                              "true",
                              "3"};

/// Replaces a number, if there is one behind a random place.
void replace_number(Random& random, std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789", below(random, text.size()));
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_not_of("0123456789.e", begin), text.size());
  text.replace(begin, end - begin, one_of(random, values));
}

void mutate(Random& random, std::string& text) {
  if (text.empty()) return;
  const std::size_t at = below(random, text.size());
  switch (below(random, 10)) {
    case 0: text.resize(at); break;
    case 1: text.insert(at, one_of(random, bytes)); break;
    case 2: text.erase(at, 1 + below(random, 9)); break;
    case 3: text += text; break;
    case 4: text.insert(0, below(random, 2) == 0 ? std::string(1, '[') : std::string(5000, '[')); break;
    case 5: text.insert(text.find(':') == std::string::npos ? 0 : text.find(':') + 1, " ["); break;
    default: replace_number(random, text); break;
  }
}

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
