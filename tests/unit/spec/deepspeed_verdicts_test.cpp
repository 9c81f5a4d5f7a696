// Does the linter take and refuse what DeepSpeed's own configuration class takes and refuses?  tests/data/deepspeed_verdicts.json
// holds the answers of that class (0.19.8), key by key.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "planner/spec/read_ds_config.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

PlanReading reading_of(const std::string& text, const std::string& version = "0.19.8") {
  PlanContext context;
  context.overrides = {"world_size=8", "sequence=2048", "engine_version=" + version};
  return read_ds_config_file(source(text), context);
}

std::vector<std::string> found(const std::string& text, Severity severity, const std::string& version = "0.19.8") {
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : reading_of(text, version).diagnostics)
    if (diagnostic.severity == severity) list.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return list;
}

std::vector<std::string> errors(const std::string& text) { return found(text, Severity::error); }

/// A file that says `value` under the pointer, beside what every file has to say.
std::string with(std::string_view pointer, std::string_view value) {
  std::string text(value);
  std::string_view rest = pointer;
  while (true) {
    const std::size_t slash = rest.rfind('/');
    const std::string_view name = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
    text = fmt::format("\"{}\": {}", name, text);
    if (rest.empty()) break;
    if (rest == "/zero_optimization") text.insert(0, R"("stage": 3, )");
    if (rest == "/optimizer/params") text = fmt::format(R"("params": {{{}}}, "type": "AdamW")", text);
    if (rest == "/scheduler/params") text = fmt::format(R"("params": {{{}}}, "type": "WarmupLR")", text);
    if (rest == "/optimizer/params" || rest == "/scheduler/params") rest = rest.substr(0, rest.rfind('/'));
    text = fmt::format("{{{}}}", text);
  }
  std::string_view stage = R"("zero_optimization": {"stage": 3}, )";
  if (pointer == "/zero_optimization/stage") text = fmt::format(R"("zero_optimization": {{"stage": {}}})", value);
  if (pointer.starts_with("/zero_optimization")) stage = "";
  std::string_view micro = R"("train_micro_batch_size_per_gpu": 1, )";
  if (pointer == "/train_micro_batch_size_per_gpu") micro = "";
  return fmt::format("{{{}{}{}}}", micro, stage, text);
}

TEST(DeepSpeedsVerdict, IsTheLintersOnEveryKeyAndValue) {
  const auto document = parse_document(load_source(PLIMSOLL_SOURCE_DIR "/tests/data/deepspeed_verdicts.json"));
  ASSERT_TRUE(document);
  int cases = 0;
  for (const Node::Member& key : document->root().find("keys")->members()) {
    for (const Node* value : key.value->find("takes")->items()) {
      const std::string text = with(key.key, value->source());
      EXPECT_THAT(errors(text), IsEmpty()) << "DeepSpeed takes " << text;
      ++cases;
    }
    for (const Node* value : key.value->find("refuses")->items()) {
      const std::string text = with(key.key, value->source());
      EXPECT_FALSE(errors(text).empty()) << "DeepSpeed refuses " << text;
      ++cases;
    }
  }
  EXPECT_EQ(cases, 3920);
}

TEST(TwoKeys, ThatDoNotGoTogetherAreRefusedAsDeepSpeedDoes) {
  EXPECT_THAT(errors(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}, "gradient_allreduce_op": "SUM"})"),
              ElementsAre("ds.reduction /gradient_allreduce_op"));
  EXPECT_THAT(errors(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 0}})"),
              ElementsAre("ds.range /fp16/loss_scale_window"));
  EXPECT_THAT(
      errors(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale_window": 0, "loss_scale": 128}})"),
      IsEmpty());
  EXPECT_THAT(errors(R"({"train_batch_size": 8, "bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
              ElementsAre("ds.precision /bf16/bf16_optimizer_states"));
}

TEST(Removed, KeysAreRefusedByNameInTheVersionThatRaisesOnThem) {
  EXPECT_THAT(errors(R"({"train_batch_size": 8, "elasticity": {"enabled": false}})"),
              ElementsAre("ds.removed /elasticity"));
  EXPECT_THAT(errors(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": -1}})"),
              ElementsAre("ds.removed /zero_optimization/mics_shard_size"));
  const std::string on = R"({"train_batch_size": 8, "amp": {"enabled": true}, "sparse_gradients": false})";
  EXPECT_THAT(found(on, Severity::error, "0.19.5"), ElementsAre("plan.unsupported /amp"));
  EXPECT_THAT(found(on, Severity::warning, "0.19.5"), ElementsAre("ds.removed /sparse_gradients"));
}

TEST(GradientNorm, MayBeLeftOutAtStages1And2OnlyAndIsNotBuilt) {
  const auto at = [](int stage) {
    return errors(fmt::format(
        R"({{"train_batch_size": 8, "zero_optimization": {{"stage": {}, "compute_grad_norm": false}}}})", stage));
  };
  EXPECT_THAT(at(2), ElementsAre("plan.unsupported /zero_optimization/compute_grad_norm"));
  EXPECT_THAT(at(3), ElementsAre("ds.stage /zero_optimization/compute_grad_norm"));
}

TEST(AutoEpsOtherKernels, AreNotAnsweredAsTheDefaultOnes) {
  for (const char* key : {R"("gate_up_impl": "fused")", R"("comm_backend": "deepep")",
                          R"("combine_impl": "legacy_bmm")", R"("use_grouped_mm": false)"})
    EXPECT_THAT(errors(fmt::format(
                    R"({{"train_batch_size": 8, "expert_parallel": {{"enabled": true, "autoep_size": 4, {}}}}})", key)),
                ElementsAre(StartsWith("plan.unsupported /expert_parallel/")))
        << key;
}

}  // namespace
}  // namespace plimsoll
