// Do a plan.json and the ds_config.json of the same run mean the same?  For every measured DeepSpeed run both are known:
// the plan, and the file that DeepSpeed really got.  (A ds_config cannot say that the model has native MoE layers.)
#include <gtest/gtest.h>

#include "planner/spec/read_ds_config.hpp"
#include "planner/spec/write_plan.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

Result<Document> rows_of(const char* name) {
  return parse_document(load_source(std::string(PLIMSOLL_SOURCE_DIR "/tests/data/") + name));
}

std::string text_of(const Node& node, const char* key) { return std::string(node.find(key)->source()); }

/// What the file cannot say.
std::vector<std::string> beside(const Plan& plan) {
  std::vector<std::string> sets = {"sequence=" + std::to_string(plan.sequence),
                                   "world_size=" + std::to_string(plan.world_size)};
  if (plan.recompute.every == 1) sets.emplace_back("recompute=full");
  if (plan.moe.leaf) sets.emplace_back("moe.leaf=true");
  if (plan.construction == Construction::cpu) sets.emplace_back("construction=cpu");
  return sets;
}

TEST(DsConfigRows, MeanTheSameAsTheirPlans) {
  const auto rows = rows_of("ds_config_rows.json");
  ASSERT_TRUE(rows);
  int compared = 0;
  for (const Node* row : rows->root().find("rows")->items()) {
    const std::string& id = row->find("id")->as_string();
    const Result<Plan> plan = read_plan(source(text_of(*row, "plan"), id));
    ASSERT_TRUE(plan) << id << "\n" << format(plan.diagnostics());
    if (plan->moe.implementation == MoeImplementation::native) continue;
    PlanContext context;
    context.overrides = beside(*plan);
    const Result<Plan> config = read_ds_config(source(text_of(*row, "ds_config"), id), context);
    ASSERT_TRUE(config) << id << "\n" << format(config.diagnostics());
    EXPECT_EQ(write_plan_json(*plan), write_plan_json(*config)) << id;
    ++compared;
  }
  EXPECT_EQ(compared, 30);
}

TEST(TorchRows, AreAccepted) {
  const auto rows = rows_of("torch_plan_rows.json");
  ASSERT_TRUE(rows);
  for (const Node* row : rows->root().find("rows")->items()) {
    const Result<Plan> plan = read_plan(source(text_of(*row, "plan"), row->find("id")->as_string()));
    EXPECT_TRUE(plan) << format(plan.diagnostics());
  }
}

}  // namespace
}  // namespace plimsoll
