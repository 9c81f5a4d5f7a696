// Does every preset have exactly the parameters that its authors or its checkpoint state?  Figures and their sources:
// tests/data/model_totals.json.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>

#include "planner/spec/presets.hpp"
#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

TEST(ModelTotals, EveryPresetIsReproducedToTheDigit) {
  const auto table = parse_document(load_source(PLIMSOLL_SOURCE_DIR "/tests/data/model_totals.json"));
  ASSERT_TRUE(table);
  int exact = 0;
  for (const Node* row : table->root().find("models")->items()) {
    const std::string& name = row->find("model")->as_string();
    const auto model = load_model(name);
    ASSERT_TRUE(model) << name << "\n" << format(model.diagnostics());
    const ParameterCounts counts = count_parameters(*model);
    EXPECT_EQ(counts.total, row->find("total")->as_int()) << name;
    EXPECT_EQ(counts.active, row->find("active")->as_int()) << name;
    EXPECT_EQ(counts.active_without_embedding, row->find("active_without_embedding")->as_int()) << name;
    EXPECT_EQ(counts.active_without_embedding_and_head, row->find("active_without_embedding_and_head")->as_int())
        << name;
    EXPECT_EQ(counts.expert, row->find("expert")->as_int()) << name;
    EXPECT_EQ(counts.dense + counts.expert, counts.total) << name;
    exact += row->find("exact")->as_bool() ? 1 : 0;
  }
  EXPECT_EQ(table->root().find("models")->items().size(), 49U);
  EXPECT_EQ(exact, 42);
}

TEST(ModelTotals, EveryPresetIsInTheTable) {
  const auto table = parse_document(load_source(PLIMSOLL_SOURCE_DIR "/tests/data/model_totals.json"));
  std::vector<std::string> names;
  for (const Node* row : table->root().find("models")->items()) names.push_back(row->find("model")->as_string());
  EXPECT_THAT(preset_names("models"), ::testing::UnorderedElementsAreArray(names));
}

TEST(ModelTotals, NoPresetIsReadWithAWarning) {
  for (const std::string& name : preset_names("models")) {
    EXPECT_EQ(format(load_model(name).diagnostics()), "") << name;
  }
}

// The whole program answers within 60 ms; a debug build and a busy machine are slower than the 0.6 ms measured.
TEST(ModelTotals, TheLargestPresetIsReadAtOnce) {
  auto best = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(load_model("qwen3-235b-a22b"));
    best = std::min(best, std::chrono::steady_clock::now() - begin);
  }
  EXPECT_LT(best, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace plimsoll
