// Does a plan read back as it was written, as plan.json and as ds_config.json with what such a file cannot say?
#include "planner/spec/write_plan.hpp"

#include <gtest/gtest.h>

#include "planner/spec/read_ds_config.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

const char* const plans[] = {
    R"({})",
    R"({"world_size": 8, "zero": {"stage": 1}, "gradient_dtype": "fp32", "gradient_accumulation": 2})",
    R"({"world_size": 8, "zero": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 2e8}, "precision": "fp16"})",
    R"({"world_size": 8, "zero": {"stage": 3, "stage3_max_live_parameters": 0, "stage3_model_persistence_threshold": 1e8,
        "stage3_gather_16bit_weights_on_model_save": true}, "recompute": {"every": 2}, "loss": {"chunked": 512}})",
    R"({"world_size": 8, "zero": {"stage": 3}, "offload": {"optimizer": "cpu", "parameters": "cpu", "pin_memory": false}})",
    R"({"world_size": 8, "zero": {"stage": 2}, "offload": {"optimizer": "cpu"}, "optimizer": {"implementation": "torch_cpu"}})",
    R"({"world_size": 8, "expert_parallel": 4, "zero": {"stage": 3}, "routing": {"kind": "collapse", "share": 0.5}})",
    R"({"world_size": 8, "expert_parallel": 4, "zero": {"stage": 2},
        "moe": {"num_experts": [8, 4], "top_k": 2, "capacity_factor": 1.25, "drop_tokens": false, "use_residual": true}})",
    R"({"world_size": 8, "zero": {"stage": 3}, "moe": {"implementation": "grouped", "leaf": true},
        "routing": {"kind": "histogram", "counts": [[[1, 2]]]}})",
    R"({"world_size": 2, "optimizer": {"type": "adam", "implementation": "single"}, "gradient_clipping": 0})",
    R"({"world_size": 2, "zero": {"stage": 1}, "optimizer": {"implementation": "foreach"}, "communication_dtype": "fp32",
        "construction": "cpu", "compile": true, "expandable_segments": true, "attention": "flash"})",
};

TEST(PlanJson, ReadsBackAsItWasWritten) {
  const char* const others[] = {
      R"({"engine": "fsdp2", "world_size": 8, "fsdp": {"reshard_after_forward": false, "reduce_dtype": "bf16", "replicate": 2}})",
      R"({"engine": "fsdp2", "world_size": 8, "offload": {"optimizer": "cpu", "parameters": "cpu", "pin_memory": false}})",
      R"({"engine": "ddp", "precision": "bf16_autocast"})",
      R"({"engine": "ddp", "master_weights": "none"})",
      R"({"engine": "plimsoll", "world_size": 8, "expert_parallel": 8})",
      R"({"trainable": {"lora": {"rank": 8, "targets": ["q"]}}})",
      R"({"trainable": {"lora": {"rank": 8, "targets": ["q"], "dtype": "16bit", "dropout": 0.25}}})"};
  std::vector<std::string> texts(std::begin(plans), std::end(plans));
  texts.insert(texts.end(), std::begin(others), std::end(others));
  for (const std::string& text : texts) {
    const Result<Plan> plan = read_plan(source(text));
    ASSERT_TRUE(plan) << text << format(plan.diagnostics());
    const Result<Plan> again = read_plan(source(write_plan_json(*plan)));
    ASSERT_TRUE(again) << format(again.diagnostics());
    EXPECT_EQ(write_plan_json(*plan), write_plan_json(*again));
    EXPECT_EQ(plan->offload.parameters, again->offload.parameters);
    if (plan->offload.parameters != OffloadDevice::none) {
      EXPECT_EQ(plan->offload.optimizer, again->offload.optimizer);
      EXPECT_EQ(plan->offload.pin_parameters, again->offload.pin_parameters);
    }
    EXPECT_TRUE(same_settings(*plan, *again));
  }
}

// One key of an adapter set over a plan leaves the others as they are.
TEST(PlanJson, KeysOfAdaptersAreSetOneByOne) {
  PlanContext context;
  context.overrides = {"trainable.lora.rank=16", "trainable.lora.dropout=0.2"};
  const Result<Plan> plan = read_plan(
      source(R"({"trainable": {"lora": {"rank": 8, "targets": ["q"], "dtype": "16bit", "dropout": 0.25}}})"), context);
  ASSERT_TRUE(plan) << format(plan.diagnostics());
  ASSERT_TRUE(plan->lora);
  EXPECT_EQ(plan->lora->rank, 16);
  EXPECT_EQ(plan->lora->targets, std::vector<std::string>{"q"});
  EXPECT_FALSE(plan->lora->fp32);
  EXPECT_EQ(plan->lora->dropout, 0.2);
}

TEST(DsConfig, ReadsBackAsItWasWrittenWithWhatItCannotSay) {
  for (const char* text : plans) {
    const Result<Plan> plan = read_plan(source(text));
    ASSERT_TRUE(plan) << text << format(plan.diagnostics());
    PlanContext context;
    context.overrides = beside_ds_config(*plan);
    const std::string config = write_ds_config(*plan);
    const Result<Plan> again = read_ds_config(source(config), context);
    ASSERT_TRUE(again) << config << format(again.diagnostics());
    EXPECT_EQ(write_plan_json(*plan), write_plan_json(*again)) << config;
  }
}

TEST(DsConfig, NamesThePresetOfTheFamily) {
  const Result<Plan> plan = read_plan(source(R"({"world_size": 4, "expert_parallel": 2})"));
  ASSERT_TRUE(plan);
  ModelSpec model;
  model.family = "qwen2_moe";
  EXPECT_NE(write_ds_config(*plan, &model).find("\"preset_model\": \"qwen3_moe\""), std::string::npos);
  EXPECT_EQ(write_ds_config(*plan).find("preset_model"), std::string::npos);
}

TEST(DsConfig, EmptiesTheListOfLeafModulesWhereThePlanWantsNone) {
  const Result<Plan> plan = read_plan(source(R"({"zero": {"stage": 3}, "moe": {"leaf": false}})"));
  ASSERT_TRUE(plan);
  ModelSpec model;
  model.family = "mixtral";
  PlanContext context;
  context.model = &model;
  context.overrides = {"world_size=1", "sequence=4096"};
  const Result<Plan> again = read_ds_config(source(write_ds_config(*plan, &model)), context);
  ASSERT_TRUE(again) << format(again.diagnostics());
  EXPECT_FALSE(again->moe.leaf);
  EXPECT_TRUE(again->states("/moe/leaf"));
}

TEST(Settings, DifferIfOneDoes) {
  const Result<Plan> plan = read_plan(source("{}"));
  Plan other = *plan;
  other.sequence = 2048;
  EXPECT_FALSE(same_settings(*plan, other));
}

}  // namespace
}  // namespace plimsoll
