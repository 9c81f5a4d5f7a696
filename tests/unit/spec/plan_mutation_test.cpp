// Does any damaged plan.json or ds_config.json crash a reader, or fail without saying where and why?  Files in circulation
// and plans of measured runs, damaged at random with a fixed seed.
#include <gtest/gtest.h>

#include "planner/spec/check_configuration.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/write_plan.hpp"
#include "tests/unit/spec/mutate.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

const char* const configs[] = {"alpaca_zero3_offload_all", "axolotl_zero3_bf16_cpuoffload_all", "internvl_zero3",
                               "llava_zero3_offload", "ms_swift_zero3"};

std::vector<std::string> texts_of(const char* table, const char* key) {
  const auto rows = parse_document(load_source(std::string(PLIMSOLL_SOURCE_DIR "/tests/data/") + table));
  std::vector<std::string> texts;
  for (const Node* row : rows->root().find("rows")->items()) texts.emplace_back(row->find(key)->source());
  return texts;
}

/// Checks the damaged text, and what every diagnostic must have.
/// @returns whether it still is a plan
bool ends_well(const std::string& text, bool is_ds_config, const ModelSpec& model) {
  ConfigurationInput input;
  input.file = source(text);
  input.is_ds_config = is_ds_config;
  input.overrides = {"world_size=8"};
  input.model = &model;
  const CheckReport report = check_configuration(input);
  for (const Diagnostic& diagnostic : report.diagnostics) {
    EXPECT_FALSE(diagnostic.message.empty()) << text;
    EXPECT_FALSE(diagnostic.code.empty()) << text;
    EXPECT_FALSE(format(diagnostic).empty());
    if (diagnostic.severity == Severity::error) {
      EXPECT_GT(diagnostic.place.line, 0) << diagnostic.message << "\n" << text;
    }
  }
  EXPECT_EQ(report.plan.has_value(), !has_errors(report.diagnostics));
  if (report.plan) {
    EXPECT_FALSE(write_plan_json(*report.plan).empty());
  }
  return report.plan.has_value();
}

void damage(const std::vector<std::string>& originals, bool are_ds_configs, int each) {
  const auto model = load_model("mixtral-8x7b");
  ASSERT_TRUE(model);
  Random random(20261129);  // NOLINT: the same files every time
  int plans = 0, failures = 0;
  for (const std::string& original : originals) {
    for (int i = 0; i < each; ++i) {
      std::string text = original;
      for (std::size_t n = 1 + below(random, 3); n > 0; --n) mutate(random, text);
      (ends_well(text, are_ds_configs, *model) ? plans : failures) += 1;
    }
  }
  EXPECT_GT(plans, 0);
  EXPECT_GT(failures, 100);
}

TEST(DamagedDsConfigs, EndInAPlanOrInErrorsWithAPlaceAndAMessage) {
  std::vector<std::string> originals = texts_of("ds_config_rows.json", "ds_config");
  for (const char* name : configs)
    originals.push_back(load_source(std::string(PLIMSOLL_SOURCE_DIR "/tests/data/ds_configs/") + name + ".json")->text);
  damage(originals, true, 20);
}

TEST(DamagedPlans, EndInAPlanOrInErrorsWithAPlaceAndAMessage) {
  std::vector<std::string> originals = texts_of("ds_config_rows.json", "plan");
  for (std::string& plan : texts_of("torch_plan_rows.json", "plan")) originals.push_back(std::move(plan));
  damage(originals, false, 12);
}

/// A value of the wrong type at every key of a file, one at a time.
TEST(WrongTypes, AtAnyKeyOfADsConfigAreNeverUsedSilently) {
  const auto model = load_model("mixtral-8x7b");
  const auto file = load_source(PLIMSOLL_SOURCE_DIR "/tests/data/ds_configs/internvl_zero3.json");
  const auto document = parse_document(file);
  ASSERT_TRUE(document);
  for (const char* value : {"[]", "{}", "-7", "\"word\"", "null", "1e300", "true", "0.5"})
    for (const Node::Member& section : document->root().members()) {
      if (!section.value->is_object()) continue;
      for (const Node::Member& member : section.value->members()) {
        std::string text = file->text;
        const std::size_t at = static_cast<std::size_t>(member.value->source().data() - file->text.data());
        if (at > text.size()) continue;
        text.replace(at, member.value->source().size(), value);
        ends_well(text, true, *model);
      }
    }
}

}  // namespace
}  // namespace plimsoll
