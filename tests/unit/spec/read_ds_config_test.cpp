// Does a ds_config.json mean here what it means to DeepSpeed?  Batch equation, "auto", second names, conversions,
// deprecated forms, optimizers, AutoEP.
#include "planner/spec/read_ds_config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/spec/ds_batch.hpp"
#include "planner/spec/ds_keys.hpp"
#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

PlanReading reading_of(const std::string& text, std::vector<std::string> overrides = {"world_size=8", "sequence=2048"},
                       const ModelSpec* model = nullptr) {
  PlanContext context;
  context.overrides = std::move(overrides);
  context.model = model;
  return read_ds_config_file(source(text), context);
}

Plan plan_of(const std::string& text, std::vector<std::string> overrides = {"world_size=8", "sequence=2048"},
             const ModelSpec* model = nullptr) {
  PlanReading reading = reading_of(text, std::move(overrides), model);
  EXPECT_FALSE(has_errors(reading.diagnostics)) << format(reading.diagnostics);
  return reading.plan;
}

std::vector<std::string> found(const std::string& text, Severity severity,
                               std::vector<std::string> overrides = {"world_size=8", "sequence=2048"}) {
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : reading_of(text, std::move(overrides)).diagnostics)
    if (diagnostic.severity == severity) list.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return list;
}

using testing::Contains;
using testing::ElementsAre;

TEST(Batch, MissingSizesAreInferredAsDeepSpeedDoes) {
  const auto solved = [](BatchSizes sizes) {
    const BatchAnswer answer = solve_batch(sizes, 8);
    EXPECT_EQ(answer.error, "");
    return std::pair(answer.micro, answer.accumulation);
  };
  EXPECT_EQ(solved({32, 4, {}}), std::pair(std::int64_t{4}, std::int64_t{1}));
  EXPECT_EQ(solved({64, {}, 2}), std::pair(std::int64_t{4}, std::int64_t{2}));
  EXPECT_EQ(solved({{}, 4, 2}), std::pair(std::int64_t{4}, std::int64_t{2}));
  EXPECT_EQ(solved({32, {}, {}}), std::pair(std::int64_t{4}, std::int64_t{1}));
  EXPECT_EQ(solved({{}, 4, {}}), std::pair(std::int64_t{4}, std::int64_t{1}));
}

TEST(Batch, ErrorsHaveDeepSpeedsWordsAndLegalValues) {
  EXPECT_EQ(
      solve_batch({30, 4, 1}, 8).error,
      "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
      "world_size 30 != 4 * 1 * 8");
  EXPECT_EQ(solve_batch({30, 4, 1}, 8).help, "with these other sizes train_batch_size must be 4 x 1 x 8 = 32");
  EXPECT_EQ(solve_batch({16, 4, {}}, 8).error, "Gradient accumulation steps: 0 has to be greater than 0");
  EXPECT_EQ(solve_batch({16, 4, {}}, 8).help,
            "train_batch_size must be a multiple of train_micro_batch_size_per_gpu x world_size = 32; the least is 32");
  EXPECT_EQ(solve_batch({{}, {}, 4}, 8).error,
            "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  EXPECT_EQ(solve_batch({0, 0, 0}, 8).error, "Train batch size: 0 has to be greater than 0");
}

TEST(Batch, OverridesReplaceWhatNoLongerHolds) {
  const Plan plan = plan_of(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})",
                            {"world_size=8", "sequence=2048", "micro_batch=2", "gradient_accumulation=3"});
  EXPECT_EQ(plan.micro_batch, 2);
  EXPECT_EQ(plan.gradient_accumulation, 3);
}

TEST(Batch, GivesTheWorldSizeWhereNothingElseDoes) {
  const Plan plan =
      plan_of(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})", {});
  EXPECT_EQ(plan.world_size, 8);
}

const char* const automatic = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                        "stage3_param_persistence_threshold": "auto"}
})";

TEST(Auto, ResolvesAsTheTrainerDoesWithTheModelsWidth) {
  const auto model = load_model("llama-3.1-8b");
  ASSERT_TRUE(model);
  const Plan plan = plan_of(automatic, {"world_size=8", "precision=bf16"}, &*model);
  EXPECT_EQ(plan.zero.reduce_bucket_size, 4096 * 4096);
  EXPECT_EQ(plan.zero.stage3_prefetch_bucket_size, 15'099'494);
  EXPECT_EQ(plan.zero.stage3_param_persistence_threshold, 40'960);
  EXPECT_EQ(plan.micro_batch, 8);
  EXPECT_EQ(plan.gradient_accumulation, 1);
  EXPECT_EQ(plan.gradient_clipping, 1.0);
  EXPECT_EQ(plan.precision, Precision::bf16);
}

TEST(Auto, UnderASecondNameIsNotTheTrainersAndMeansDeepSpeedsDefault) {
  const auto model = load_model("llama-3.1-8b");
  ASSERT_TRUE(model);
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization":
    {"stage": 3, "prefetch_bucket_size": "auto", "param_persistence_threshold": "auto"}})";
  const Plan plan = plan_of(text, {"world_size=8"}, &*model);
  EXPECT_EQ(plan.zero.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(plan.zero.stage3_param_persistence_threshold, 100'000);
  EXPECT_THAT(found(text, Severity::note), Contains("ds.auto /zero_optimization/prefetch_bucket_size"));
}

TEST(Auto, IsANoteEachTime) {
  const auto notes = found(automatic, Severity::note);
  EXPECT_EQ(std::count_if(notes.begin(), notes.end(), [](const auto& note) { return note.rfind("ds.auto", 0) == 0; }),
            8);
  EXPECT_EQ(plan_of(automatic).precision, Precision::fp32);
}

TEST(Zero, TakesBothNamesButNotTogether) {
  EXPECT_EQ(
      plan_of(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "max_live_parameters": 5}})")
          .zero.stage3_max_live_parameters,
      5);
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": 1,
                        "zero_optimization": {"stage": 3, "max_live_parameters": 5, "stage3_max_live_parameters": 5}})",
                    Severity::error),
              ElementsAre("ds.both_names /zero_optimization/stage3_max_live_parameters"));
}

TEST(Zero, ConvertsAsPydanticDoes) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": "3", "reduce_bucket_size": 5e7, "contiguous_gradients": 1, "overlap_comm": "false"}})";
  const Plan plan = plan_of(text);
  EXPECT_EQ(plan.zero.stage, 3);
  EXPECT_EQ(plan.zero.reduce_bucket_size, 50'000'000);
  EXPECT_FALSE(plan.zero.overlap_comm);
  EXPECT_THAT(found(text, Severity::warning), Contains("ds.type /zero_optimization/stage"));
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": "4"})", Severity::error),
              Contains("ds.type /train_micro_batch_size_per_gpu"));
}

TEST(Zero, RefusesFractionsNegativesAndOtherStages) {
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization":
                        {"stage": 4, "reduce_bucket_size": 15099494.4, "sub_group_size": -1}})",
                    Severity::error),
              testing::UnorderedElementsAre("ds.range /zero_optimization/stage",
                                            "ds.type /zero_optimization/reduce_bucket_size",
                                            "ds.range /zero_optimization/sub_group_size"));
}

TEST(Zero, TakesDeprecatedForms) {
  EXPECT_EQ(plan_of(R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": true})").zero.stage, 1);
  const Plan plan = plan_of(R"({"train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_param": true,
                          "stage3_gather_fp16_weights_on_model_save": true}})");
  EXPECT_EQ(plan.offload.optimizer, OffloadDevice::cpu);
  EXPECT_EQ(plan.offload.parameters, OffloadDevice::cpu);
  EXPECT_TRUE(plan.zero.stage3_gather_16bit_weights_on_model_save);
}

std::string with_optimizer(const std::string& params, const std::string& more = "", int stage = 2) {
  return R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": )" +
         std::to_string(stage) + more + R"(}, "optimizer": {"type": "AdamW", "params": )" + params + "}}";
}

TEST(Optimizer, IsWhatDeepSpeedBuilds) {
  const auto built = [](const std::string& text) { return plan_of(text).optimizer.implementation; };
  const std::string offload = R"(, "offload_optimizer": {"device": "cpu"})";
  EXPECT_EQ(built(with_optimizer("{}")), OptimizerImplementation::fused);
  EXPECT_EQ(built(with_optimizer(R"({"torch_adam": true, "fused": true})")), OptimizerImplementation::fused);
  EXPECT_EQ(built(with_optimizer(R"({"torch_adam": true})")), OptimizerImplementation::foreach);
  EXPECT_EQ(built(with_optimizer(R"({"torch_adam": true, "foreach": false})")), OptimizerImplementation::single);
  EXPECT_EQ(built(with_optimizer("{}", offload)), OptimizerImplementation::deepspeed_cpu);
  EXPECT_EQ(built(with_optimizer(R"({"torch_adam": true})", offload)), OptimizerImplementation::torch_cpu);
  EXPECT_EQ(plan_of(with_optimizer("{}"), {"world_size=8", "offload.optimizer=cpu"}).optimizer.implementation,
            OptimizerImplementation::deepspeed_cpu);
}

TEST(Optimizer, RefusesArgumentsThatItsConstructorDoesNotTake) {
  EXPECT_THAT(found(with_optimizer(R"({"fused": true, "max_grad_norm": 1.0, "betaz": [0.9, 0.95]})"), Severity::error),
              ElementsAre("ds.optimizer /optimizer/params/fused", "ds.optimizer /optimizer/params/max_grad_norm",
                          "ds.optimizer /optimizer/params/betaz"));
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Lion"}})", Severity::error),
              ElementsAre("plan.unsupported /optimizer/type"));
}

TEST(Precision, OfTwoAtOnceIsRefused) {
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true}, "bf16": {"enabled": true}})",
                    Severity::error),
              ElementsAre("ds.precision /fp16/enabled"));
  const Plan plan = plan_of(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "data_types": {"grad_accum_dtype": "torch.float32"}, "communication_data_type": "fp32", "zero_optimization": {"stage": 1}})");
  EXPECT_EQ(plan.gradient_dtype, DType::fp32);
  EXPECT_EQ(plan.communication_dtype, DType::fp32);
}

TEST(AutoEp, ComesFromTheSectionExpertParallel) {
  const Plan plan = plan_of(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "expert_parallel": {"enabled": true, "autoep_size": 4, "preset_model": "mixtral"}})");
  EXPECT_EQ(plan.expert_parallel, 4);
  EXPECT_EQ(plan.moe.implementation, MoeImplementation::autoep);
  EXPECT_EQ(plan_of(R"({"train_micro_batch_size_per_gpu": 1, "expert_parallel": {"autoep_size": 4}})").expert_parallel,
            1);
  EXPECT_THAT(found(R"({"train_micro_batch_size_per_gpu": 1, "expert_parallel":
                        {"enabled": true, "autoep_size": 0, "load_balance_coeff": 0.01, "capacity_factor": 1.0}})",
                    Severity::error),
              testing::UnorderedElementsAre("ds.range /expert_parallel/autoep_size",
                                            "ds.range /expert_parallel/load_balance_coeff"));
}

TEST(Unbuilt, IsRefusedWhereItChangesTheStep) {
  for (const char* text : {R"({"train_batch_size": 8, "pipeline": {"stages": 2}})",
                           R"({"train_batch_size": 8, "data_efficiency": {"enabled": true}})",
                           R"({"train_batch_size": 8, "tensor_parallel": {"tp": {"tp_size": 2}}})",
                           R"({"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}})"})
    EXPECT_THAT(found(text, Severity::error), ElementsAre(testing::StartsWith("plan.unsupported /"))) << text;
  for (const char* stages : {"1", "\"auto\""}) {
    const std::string text = fmt::format(R"({{"train_batch_size": 8, "pipeline": {{"stages": {}}}}})", stages);
    EXPECT_THAT(found(text, Severity::error), testing::IsEmpty()) << stages;
    EXPECT_THAT(found(text, Severity::warning), Contains("ds.unused /pipeline")) << stages;
    EXPECT_EQ(reading_of(text).ignored.count("/pipeline"), 1U) << stages;
  }
}

TEST(Hjson, CommentsAndBareKeysAreTaken) {
  EXPECT_EQ(plan_of("{\n # batch\n train_micro_batch_size_per_gpu: 4 // per GPU\n zero_optimization: {stage: 2}\n}")
                .micro_batch,
            4);
}

TEST(Reading, OfAFileThatIsNoObjectIsAnError) {
  EXPECT_THAT(found("[1, 2]", Severity::error), ElementsAre("ds.type "));
  EXPECT_FALSE(found("", Severity::error).empty());
}

TEST(KeyTable, HasEachKeyOnceAndSectionsForAllOfThem) {
  std::set<std::string> names;
  for (const DsKey& key : ds_keys()) {
    EXPECT_NE(find_section(key.section), nullptr) << key.section;
    EXPECT_TRUE(names.insert(std::string(key.section) + "/" + std::string(key.name)).second) << key.name;
    EXPECT_EQ(find_key(key.section, key.name), &key);
    if (key.effect != Effect::used) {
      EXPECT_FALSE(key.note.empty()) << key.name;
    }
  }
}

TEST(Advice, NamesTheRealKeyOrTheCodeWhereTheSettingBelongs) {
  EXPECT_EQ(advice_on("", "prefetch_bucket_size"), "it belongs to zero_optimization");
  EXPECT_EQ(advice_on("/zero_optimization", "partition_activations"), "it belongs to activation_checkpointing");
  EXPECT_EQ(advice_on("", "trian_batch_size"), "did you mean train_batch_size?");
  EXPECT_EQ(advice_on("", "gradient_accumulation_dtype"), "data_types.grad_accum_dtype");
  EXPECT_THAT(advice_on("/moe", "noisy_gate_policy"), testing::HasSubstr("deepspeed.moe.layer.MoE"));
  EXPECT_EQ(advice_on("", "qwertyuiop"), "");
}

}  // namespace
}  // namespace plimsoll
