// Does the linter say what an engineer should know about the configurations that circulate?  The files of
// tests/data/ds_configs, two configurations from articles with keys that do not exist, and the verdict on every key.
#include "planner/spec/check_configuration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

CheckReport check_ds(std::shared_ptr<const SourceFile> file, std::vector<std::string> overrides = {"world_size=8"},
                     const ModelSpec* model = nullptr) {
  ConfigurationInput input;
  input.file = std::move(file);
  input.is_ds_config = true;
  input.overrides = std::move(overrides);
  input.model = model;
  return check_configuration(input);
}

CheckReport check_shared(const char* name, std::vector<std::string> overrides = {"world_size=8"}) {
  return check_ds(load_source(std::string(PLIMSOLL_SOURCE_DIR "/tests/data/ds_configs/") + name + ".json"),
                  std::move(overrides));
}

/// "warning trap.sub_group /zero_optimization/sub_group_size" for each of that severity.
std::vector<std::string> found(const CheckReport& report, Severity severity) {
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : report.diagnostics)
    if (diagnostic.severity == severity) list.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return list;
}

std::string treatment(const CheckReport& report, const std::string& pointer) {
  for (const KeyVerdict& key : report.keys)
    if (key.pointer == pointer) return name_of(key.treatment);
  return "absent";
}

using testing::Contains;
using testing::IsEmpty;
using testing::IsSupersetOf;

TEST(SharedConfigs, AlpacaSavesNoWeightsAndNeedsHostMemory) {
  const CheckReport report = check_shared("alpaca_zero3_offload_all");
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  EXPECT_THAT(found(report, Severity::warning),
              IsSupersetOf({"trap.saved_16bit /zero_optimization/stage3_gather_16bit_weights_on_model_save",
                            "trap.host_memory /zero_optimization/offload_optimizer/device"}));
  EXPECT_THAT(found(report, Severity::note), Contains("trap.pinned /zero_optimization/offload_optimizer/pin_memory"));
}

TEST(SharedConfigs, AxolotlUsesAliasesTinySubGroupsAndASlowOptimizer) {
  const CheckReport report = check_shared("axolotl_zero3_bf16_cpuoffload_all");
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  EXPECT_THAT(found(report, Severity::warning), IsSupersetOf({"trap.sub_group /zero_optimization/sub_group_size",
                                                              "trap.cpu_optimizer /zero_force_ds_cpu_optimizer"}));
  EXPECT_THAT(found(report, Severity::note), IsSupersetOf({"ds.alias /zero_optimization/max_live_parameters",
                                                           "ds.alias /zero_optimization/max_reuse_distance"}));
}

TEST(SharedConfigs, InternVlKeepsLargeTensorsAndLargeBuckets) {
  const CheckReport report = check_shared("internvl_zero3");
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  EXPECT_THAT(found(report, Severity::warning),
              IsSupersetOf({"trap.persistence /zero_optimization/stage3_param_persistence_threshold",
                            "trap.bucket /zero_optimization/reduce_bucket_size",
                            "trap.prefetch /zero_optimization/stage3_prefetch_bucket_size"}));
  EXPECT_THAT(found(report, Severity::note), Contains("ds.timing /wall_clock_breakdown"));
}

TEST(SharedConfigs, LlavaLeavesFp16OpenBesideBf16) {
  const CheckReport report = check_shared("llava_zero3_offload");
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  EXPECT_THAT(found(report, Severity::warning), Contains("ds.precision /fp16/enabled"));
  EXPECT_THAT(found(report, Severity::note),
              Contains("ds.alias /zero_optimization/gather_16bit_weights_on_model_save"));
}

TEST(SharedConfigs, MsSwiftIsFineAndOffloadsNothing) {
  const CheckReport report = check_shared("ms_swift_zero3");
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  EXPECT_THAT(found(report, Severity::warning), IsEmpty());
  ASSERT_TRUE(report.plan);
  EXPECT_EQ(report.plan->offload.optimizer, OffloadDevice::none);
}

TEST(SharedConfigs, MsSwiftIsRejectedBeforeZeroPlusPlus) {
  const CheckReport report = check_shared("ms_swift_zero3", {"world_size=8", "engine_version=0.9.5"});
  EXPECT_THAT(found(report, Severity::error), IsSupersetOf({"ds.version /zero_optimization/zero_quantized_weights",
                                                            "ds.version /zero_optimization/zero_quantized_gradients"}));
}

const char* const article_with_moe = R"({
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "fp16": {"enabled": true},
  "zero_optimization": {"stage": 3, "prefetch_bucket_size": 50000000},
  "moe": {"enable": true, "num_experts": [8], "top_k": 2, "ep_size": 2, "min_capacity": 4, "drop_tokens": true,
          "noisy_gate_policy": "RSample", "load_balance_loss_weight": 0.01}
})";

TEST(Articles, ATopLevelMoeIsIgnoredAndEachOfItsKeysHasItsPlace) {
  const CheckReport report = check_ds(source(article_with_moe));
  EXPECT_THAT(found(report, Severity::error), IsEmpty());
  ASSERT_TRUE(report.plan);
  EXPECT_EQ(report.plan->gradient_accumulation, 1);
  EXPECT_EQ(report.plan->zero.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(treatment(report, "/moe"), "ignored");
  EXPECT_EQ(treatment(report, "/moe/load_balance_loss_weight"), "ignored");
  EXPECT_EQ(treatment(report, "/zero_optimization/prefetch_bucket_size"), "used");
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.place.pointer.rfind("/moe", 0) == 0) {
      EXPECT_FALSE(diagnostic.help.empty()) << diagnostic.message;
    }
  }
}

TEST(Articles, ContiguousMemoryIsRejectedAndEncodersAreIgnored) {
  const CheckReport report = check_ds(source(R"({
    "train_batch_size": 128, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "contiguous_memory": true},
    "moe": {"encoder": {"num_experts": 8}, "decoder": {"num_experts": 8}}
  })"));
  EXPECT_THAT(found(report, Severity::error), testing::ElementsAre("ds.unknown /zero_optimization/contiguous_memory"));
  EXPECT_THAT(found(report, Severity::warning), IsSupersetOf({"ds.unknown /moe/encoder", "ds.unknown /moe/decoder"}));
  EXPECT_EQ(treatment(report, "/zero_optimization/contiguous_memory"), "rejected");
  EXPECT_EQ(treatment(report, "/moe/encoder/num_experts"), "ignored");
}

TEST(Keys, AreIgnoredWhereTheStageDoesNotUseThem) {
  const CheckReport report = check_ds(source(R"({
    "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1e9, "allgather_bucket_size": 2e8, "reduce_scatter": true},
    "activation_checkpointing": {"partition_activations": true}
  })"));
  EXPECT_EQ(treatment(report, "/zero_optimization/stage3_max_live_parameters"), "ignored");
  EXPECT_EQ(treatment(report, "/zero_optimization/allgather_bucket_size"), "ignored");
  EXPECT_EQ(treatment(report, "/zero_optimization/reduce_scatter"), "used");
  EXPECT_EQ(treatment(report, "/activation_checkpointing/partition_activations"), "ignored");
  EXPECT_THAT(found(report, Severity::warning), IsSupersetOf({"ds.stage /zero_optimization/stage3_max_live_parameters",
                                                              "ds.unused /zero_optimization/allgather_bucket_size",
                                                              "ds.unused /activation_checkpointing"}));
}

TEST(Keys, OfAPlanForAnotherEngineAreIgnored) {
  ConfigurationInput input;
  input.file = source(R"({"engine": "fsdp2", "world_size": 8, "zero": {"stage": 3}, "moe": {"capacity_factor": 1.5}})");
  const CheckReport report = check_configuration(input);
  EXPECT_TRUE(report.plan);
  EXPECT_EQ(treatment(report, "/zero"), "ignored");
  EXPECT_EQ(treatment(report, "/zero/stage"), "ignored");
  EXPECT_EQ(treatment(report, "/moe/capacity_factor"), "ignored");
  EXPECT_EQ(treatment(report, "/engine"), "used");
}

TEST(Defaults, AreListedAsJsonUnderThePlansKeys) {
  ConfigurationInput input;
  input.file = source(R"({"zero": {"stage": 3}})");
  const CheckReport report = check_configuration(input);
  EXPECT_EQ(report.defaults.at("/gradient_clipping"), "1");
  EXPECT_EQ(report.defaults.at("/construction"), "\"zero_init\"");
  EXPECT_EQ(report.defaults.at("/zero/overlap_comm"), "true");
  EXPECT_EQ(report.defaults.at("/zero/stage3_max_live_parameters"), "1000000000");
  EXPECT_EQ(report.defaults.count("/zero/stage"), 0U);
}

TEST(Check, SortsByPlaceAndGivesNoPlanWithAnError) {
  const CheckReport report = check_ds(source(R"({
    "zero_optimization": {"stage": 7, "nonsense": 1},
    "train_batch_size": 30, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1
  })"));
  EXPECT_FALSE(report.plan);
  EXPECT_THAT(found(report, Severity::error),
              testing::ElementsAre("ds.range /zero_optimization/stage", "ds.unknown /zero_optimization/nonsense",
                                   "ds.batch /train_batch_size"));
}

TEST(Check, ReadsWithoutAFile) {
  ConfigurationInput input;
  input.overrides = {"zero.stage=2", "world_size=4"};
  const CheckReport report = check_configuration(input);
  ASSERT_TRUE(report.plan);
  EXPECT_EQ(report.plan->zero.stage, 2);
  EXPECT_TRUE(report.keys.empty());
}

}  // namespace
}  // namespace plimsoll
