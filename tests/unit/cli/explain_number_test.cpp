// Does every number of a ledger open its formula, and do the terms sum to it?
#include "planner/cli/explain_number.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/json_output.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

/// Every number in the JSON: "gpu.outside_framework.nccl"; in a list of objects (phases, files) by their name, in a pair
/// (intervals) by its place, "[0]".
void collect(const std::string& name, const Json& json, std::map<std::string, std::int64_t>& numbers) {
  if (json.is_number()) numbers[name] = json.get<std::int64_t>();
  for (std::size_t i = 0; json.is_array() && i < json.size(); ++i)
    collect(name + (json[i].is_object() ? "." + json[i].value("name", "") : "[" + std::to_string(i) + "]"), json[i],
            numbers);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) collect(name.empty() ? key : name + "." + key, value, numbers);
}

std::map<std::string, std::int64_t> numbers_of(const Evaluation& evaluation) {
  Json ledger = Json::parse(ledger_json(evaluation, {}));
  ledger.erase("smallest_change");  // a plan's keys
  std::map<std::string, std::int64_t> numbers;
  collect("", ledger, numbers);
  return numbers;
}

class ExplainNumbers : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ExplainNumbers, opens_the_formula_of_every_number_of_the_ledger) {
  InputOptions options;
  options.model = GetParam().front();
  options.cluster = "8xh100";
  options.sets = {GetParam().begin() + 1, GetParam().end()};
  const Evaluation evaluation = evaluate(Inputs(options).scenario());
  for (const auto& [name, value] : numbers_of(evaluation)) {
    const auto number = explain_number(evaluation, name);
    ASSERT_TRUE(number) << name;
    EXPECT_EQ(number->value, value) << name;
    EXPECT_FALSE(number->formula.empty()) << name;
    std::int64_t sum = 0;
    for (const Term& term : number->terms) {
      sum += term.value;
      EXPECT_FALSE(term.name.empty()) << name;
    }
    EXPECT_EQ(sum, value) << name;
  }
}

TEST(ExplainNumber, counts_the_parameters_of_each_layer) {
  InputOptions options;
  options.model = "llama-3.2-1b";  // of 16 layers
  options.cluster = "1xh100";
  const Evaluation evaluation = evaluate(Inputs(options).scenario());
  const auto number = explain_number(evaluation, "parameters.total");
  ASSERT_TRUE(number);
  const auto down = std::find_if(number->terms.begin(), number->terms.end(),
                                 [](const Term& term) { return term.name == "model.layers.*.mlp.down_proj.weight"; });
  ASSERT_NE(down, number->terms.end());
  EXPECT_EQ(down->count, 16);
  EXPECT_EQ(down->value, std::int64_t{16} * 8192 * 2048);
  EXPECT_EQ(down->first_layer, 0);
  EXPECT_EQ(down->last_layer, 15);
}

TEST(ExplainNumber, tells_copies_of_offload_from_collectives) {
  InputOptions options;
  options.model = "llama-3.2-1b";
  options.cluster = "8xh100";
  options.sets = {"zero.stage=3", "sequence=1024", "offload.optimizer=cpu"};
  const auto number = explain_number(evaluate(Inputs(options).scenario()), "per_gpu_bytes_per_step");
  ASSERT_TRUE(number);
  EXPECT_NE(number->formula.find("copies between GPU and host"), std::string::npos);
  options.sets.pop_back();
  const auto without = explain_number(evaluate(Inputs(options).scenario()), "per_gpu_bytes_per_step");
  ASSERT_TRUE(without);
  EXPECT_EQ(without->formula.find("copies"), std::string::npos);
}

using Asked = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(
    Scenarios, ExplainNumbers,
    ::testing::Values(Asked{"llama-3.2-1b", "zero.stage=0"}, Asked{"qwen2.5-0.5b", "zero.stage=3", "sequence=1024"},
                      Asked{"qwen3-30b-a3b", "zero.stage=3", "expert_parallel=8", "sequence=1024", "recompute=full"},
                      Asked{"llama-3.2-1b", "engine=fsdp2", "sequence=1024"},
                      Asked{"llama-3.2-1b", "engine=plimsoll", "sequence=1024"},
                      Asked{"llama-3.2-1b", "zero.stage=3", "sequence=1024", "offload.optimizer=cpu"},
                      Asked{"qwen1.5-moe-a2.7b", "zero.stage=0", "expert_parallel=4", "sequence=256"},
                      Asked{"qwen1.5-moe-a2.7b", "engine=ddp", "sequence=256"},
                      Asked{"llama-3.2-1b", "zero.stage=1", "moe.implementation=native", "moe.num_experts=[8]",
                            "expert_parallel=8", "sequence=1024"}));

}  // namespace
}  // namespace plimsoll
