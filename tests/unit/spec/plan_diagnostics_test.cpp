// What does a person read when a plan or a ds_config is wrong?  Cases of tests/data/plan_diagnostics.txt: a name, the kind
// of file with its options, the file, and (after "---") the diagnostics as a terminal shows them, word by word.
// PLIMSOLL_WRITE_GOLDEN=1 writes the answers into the file instead, for review in the diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "planner/spec/check_configuration.hpp"
#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

const char* const golden_file = PLIMSOLL_SOURCE_DIR "/tests/data/plan_diagnostics.txt";

struct Case {
  std::string name, options, text, expected;
};

std::vector<Case> cases_of(std::istream& file) {
  std::vector<Case> cases;
  bool in_answer = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("=== ", 0) == 0) {
      cases.push_back({line.substr(4), {}, {}, {}});
      std::getline(file, cases.back().options);
      in_answer = false;
    } else if (line == "---") {
      in_answer = true;
    } else {
      (in_answer ? cases.back().expected : cases.back().text) += line + "\n";
    }
  }
  return cases;
}

/// "ds --model NAME --set KEY=VALUE", applied to the text.
std::string answer(const Case& one) {
  ConfigurationInput input;
  std::istringstream words(one.options);
  std::string word, value;
  words >> word;
  input.is_ds_config = word == "ds";
  std::optional<ModelSpec> model;
  while (words >> word >> value) {
    if (word == "--set") input.overrides.push_back(value);
    if (word == "--model") {
      const auto loaded = load_model(value);
      if (loaded) model = *loaded;
    }
  }
  input.model = model ? &*model : nullptr;
  input.file = source(one.text, input.is_ds_config ? "ds_config.json" : "plan.json");
  std::string text;
  for (Diagnostic diagnostic : check_configuration(input).diagnostics) {
    // Where the presets lie is no matter of this text.
    for (Diagnostic::Note& note : diagnostic.notes)
      if (note.place.file && note.place.file != input.file)
        note.place.file = std::make_shared<SourceFile>(SourceFile{model->name + ".json", note.place.file->text});
    text += format(diagnostic);
    if (text.back() != '\n') text += '\n';
  }
  return text;
}

TEST(PlanDiagnostics, ReadAsReviewed) {
  std::ifstream file(golden_file);
  std::vector<Case> cases = cases_of(file);
  EXPECT_GE(cases.size(), 15U);
  const bool write = std::getenv("PLIMSOLL_WRITE_GOLDEN") != nullptr;
  std::string written;
  for (const Case& one : cases) {
    const std::string text = answer(one);
    if (!write) {
      EXPECT_EQ(text, one.expected) << one.name;
    }
    written += "=== " + one.name + "\n" + one.options + "\n" + one.text + "---\n" + text;
  }
  if (write) std::ofstream(golden_file) << written;
}

}  // namespace
}  // namespace plimsoll
