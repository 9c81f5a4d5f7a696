// Does plan.json read as its contract says?  Every key, the defaults of each engine, overrides, and what is refused.
#include "planner/spec/read_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/spec/read_model.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

Plan plan_of(const std::string& text, std::vector<std::string> overrides = {}, int cluster_world = 0,
             const ModelSpec* model = nullptr) {
  PlanContext context;
  context.overrides = std::move(overrides);
  context.cluster_world = cluster_world;
  context.model = model;
  const Result<Plan> plan = read_plan(source(text), context);
  EXPECT_TRUE(plan) << format(plan.diagnostics());
  return plan ? *plan : Plan{};
}

/// "code pointer" of each error.
std::vector<std::string> errors_of(const std::string& text, std::vector<std::string> overrides = {}) {
  PlanContext context;
  context.overrides = std::move(overrides);
  std::vector<std::string> errors;
  const Result<Plan> plan = read_plan(source(text), context);
  for (const Diagnostic& diagnostic : plan.diagnostics())
    if (diagnostic.severity == Severity::error) errors.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return errors;
}

using testing::ElementsAre;
using testing::UnorderedElementsAre;

TEST(ReadPlan, AcceptsEveryKeyOfTheContract) {
  const Plan plan = plan_of(R"({
    "engine": "deepspeed", // the engine
    "engine_version": "0.19.8", "world_size": 16, "expert_parallel": 8,
    "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1,
    "micro_batch": 2, "sequence": 8192, "gradient_accumulation": 4,
    "precision": "bf16", "master_weights": "fp32",
    "zero": {"stage": 3, "reduce_bucket_size": 2e8, "max_live_parameters": 3e8},
    "moe": {"implementation": "autoep", "leaf": false},
    "routing": {"kind": "skew", "max_over_mean": 1.5},
    "recompute": {"every": 2}, "attention": "eager", "loss": {"chunked": 1024},
    "optimizer": {"type": "adamw", "implementation": "foreach", "moments": "fp32"},
    "gradient_clipping": 0.5, "gradient_dtype": "fp32", "trainable": "all", "construction": "gpu",
    "offload": {"optimizer": "none", "parameters": "none", "pin_memory": false},
    "compile": true, "expandable_segments": true
  })");
  EXPECT_EQ(plan.world_size, 16);
  EXPECT_EQ(plan.expert_parallel, 8);
  EXPECT_EQ(plan.tokens(), 16384);
  EXPECT_EQ(plan.zero.reduce_bucket_size, 200'000'000);
  EXPECT_EQ(plan.zero.stage3_max_live_parameters, 300'000'000);
  EXPECT_EQ(plan.routing.kind, Routing::Kind::skew);
  EXPECT_EQ(plan.recompute.every, 2);
  EXPECT_EQ(plan.attention, AttentionImplementation::eager);
  EXPECT_EQ(plan.loss_chunk, 1024);
  EXPECT_EQ(plan.optimizer.implementation, OptimizerImplementation::foreach);
  EXPECT_EQ(plan.gradient_clipping, 0.5);
  EXPECT_EQ(plan.gradient_dtype, DType::fp32);
  EXPECT_EQ(plan.construction, Construction::gpu);
  EXPECT_TRUE(plan.compile);
  EXPECT_TRUE(plan.expandable_segments);
}

TEST(Defaults, OfDeepSpeedAreThoseOfItsVersion) {
  const Plan plan = plan_of("{}", {}, 8);
  EXPECT_EQ(plan.engine, Engine::deepspeed);
  EXPECT_EQ(plan.world_size, 8);
  EXPECT_EQ(plan.zero.stage, 0);
  EXPECT_EQ(plan.gradient_clipping, 1.0);
  EXPECT_EQ(plan.gradient_dtype, DType::bf16);
  EXPECT_TRUE(plan.master_fp32);
  EXPECT_EQ(plan.construction, Construction::gpu);
  const Plan stage_3 = plan_of(R"({"zero": {"stage": 3}})");
  EXPECT_TRUE(stage_3.zero.overlap_comm);
  EXPECT_EQ(stage_3.construction, Construction::zero_init);
  EXPECT_EQ(stage_3.zero.stage3_prefetch_bucket_size, 50'000'000);
  EXPECT_FALSE(plan_of(R"({"zero": {"stage": 2}})").zero.overlap_comm);
}

TEST(Defaults, OfTheOtherEnginesAreTheirOwn) {
  const Plan fsdp = plan_of(R"({"engine": "fsdp2"})");
  EXPECT_EQ(fsdp.gradient_clipping, 0.0);
  EXPECT_EQ(fsdp.construction, Construction::meta);
  EXPECT_EQ(fsdp.gradient_dtype, DType::fp32);
  EXPECT_EQ(fsdp.fsdp.reduce_dtype, DType::fp32);
  const Plan ddp = plan_of(R"({"engine": "ddp", "precision": "bf16"})");
  EXPECT_FALSE(ddp.master_fp32);
  EXPECT_EQ(ddp.optimizer.moments, DType::bf16);
  EXPECT_EQ(plan_of(R"({"engine": "ddp", "precision": "bf16_autocast"})").gradient_dtype, DType::fp32);
  const Plan own = plan_of(R"({"engine": "plimsoll", "expert_parallel": 2, "world_size": 4})");
  EXPECT_EQ(own.zero.stage, 3);
  EXPECT_EQ(own.moe.implementation, MoeImplementation::fused);
}

TEST(Defaults, OfExpertsFollowFromWhatIsStated) {
  EXPECT_EQ(plan_of(R"({"expert_parallel": 2, "world_size": 2})").moe.implementation, MoeImplementation::autoep);
  EXPECT_EQ(plan_of(R"({"moe": {"num_experts": 8}})").moe.implementation, MoeImplementation::native);
  EXPECT_EQ(plan_of(R"({})").moe.implementation, MoeImplementation::grouped);
  const auto mixtral = load_model("mixtral-8x7b");
  ASSERT_TRUE(mixtral);
  EXPECT_TRUE(plan_of(R"({"zero": {"stage": 3}})", {}, 0, &*mixtral).moe.leaf);
  EXPECT_FALSE(plan_of(R"({"zero": {"stage": 2}})", {}, 0, &*mixtral).moe.leaf);
}

TEST(Defaults, OfOffloadAreACpuOptimizerAndPinnedMemorySince0195) {
  const Plan plan = plan_of(R"({"zero": {"stage": 2}, "offload": {"optimizer": "cpu"}})");
  EXPECT_EQ(plan.optimizer.implementation, OptimizerImplementation::deepspeed_cpu);
  EXPECT_TRUE(plan.offload.pin_optimizer);
  EXPECT_FALSE(plan_of(R"({"engine_version": "0.19.4", "zero": {"stage": 2}, "offload": {"optimizer": "cpu"}})")
                   .offload.pin_optimizer);
}

TEST(Versions, ThatDifferInTooMuchAreRefusedByName) {
  EXPECT_THAT(errors_of(R"({"engine_version": "0.19.2"})"), ElementsAre("plan.version /engine_version"));
  EXPECT_THAT(errors_of(R"({"engine_version": "0.20.0"})"), ElementsAre("plan.version /engine_version"));
  EXPECT_THAT(errors_of(R"({"engine_version": "0.19.3", "moe": {"num_experts": 8}})"),
              ElementsAre("plan.version /engine_version"));
  EXPECT_THAT(errors_of(R"({"engine": "fsdp2", "engine_version": "2.4"})"),
              ElementsAre("plan.version /engine_version"));
  EXPECT_THAT(errors_of(R"({"engine_version": "newest"})"), ElementsAre("plan.version /engine_version"));
  EXPECT_THAT(errors_of(R"({"engine_version": "0.19.6"})"), ElementsAre());
  EXPECT_THAT(errors_of(R"({"engine": "fsdp2", "engine_version": 2.11})"), ElementsAre());
}

TEST(Overrides, WinOverTheFileAndTakeBareWordsAndJson) {
  const Plan plan = plan_of(R"({"zero": {"stage": 1, "overlap_comm": true}, "micro_batch": 1})",
                            {"zero.stage=3", "micro_batch=4", "recompute=full", "engine_version=0.19.7",
                             R"(moe={"implementation": "loop"})", "moe.leaf=true"});
  EXPECT_EQ(plan.zero.stage, 3);
  EXPECT_TRUE(plan.zero.overlap_comm);
  EXPECT_EQ(plan.micro_batch, 4);
  EXPECT_EQ(plan.recompute.every, 1);
  EXPECT_EQ(plan.engine_version, "0.19.7");
  EXPECT_EQ(plan.moe.implementation, MoeImplementation::loop);
  EXPECT_TRUE(plan.moe.leaf);
}

TEST(Overrides, ThatAreWrongAreLocatedInTheOption) {
  EXPECT_THAT(errors_of("{}", {"zero.stage"}), ElementsAre("plan.set "));
  EXPECT_THAT(errors_of("{}", {"=3"}), ElementsAre("plan.set "));
  EXPECT_THAT(errors_of("{}", {"zero..stage=3"}), ElementsAre("plan.set "));
  EXPECT_THAT(errors_of("{}", {"micro_batch=-1"}), ElementsAre("plan.range /micro_batch"));
  EXPECT_THAT(errors_of("{}", {"precision=bf61"}), ElementsAre("plan.choice /precision"));
  EXPECT_THAT(errors_of("{}", {"world_size=0"}), ElementsAre("plan.range /world_size"));
}

TEST(Overrides, OfOneSectionMayStandInAnyOrder) {
  const std::string rank = "trainable.lora.rank=8", targets = R"(trainable.lora.targets=["k_proj"])";
  for (const auto& order : {std::vector{rank, targets}, std::vector{targets, rank}}) {
    const Plan plan = plan_of("{}", order);
    ASSERT_TRUE(plan.lora);
    EXPECT_EQ(plan.lora->rank, 8);
    EXPECT_THAT(plan.lora->targets, ElementsAre("k_proj"));
  }
  EXPECT_THAT(errors_of("{}", {targets}), ElementsAre("plan.missing /trainable/lora"));
  EXPECT_THAT(errors_of("{}", {targets, "trainable.lora.rank=many"}), ElementsAre("plan.type /trainable/lora/rank"));
}

TEST(Errors, NameTheSectionOfAKeyThatStandsOutsideOfIt) {
  for (const auto& [key, meant] : {std::pair{"rank", "trainable.lora.rank"},
                                   {"lora", "trainable.lora"},
                                   {"every", "recompute.every"},
                                   {"chunked", "loss.chunked"},
                                   {"stage3_max_live_parameters", "zero.stage3_max_live_parameters"}}) {
    PlanContext context;
    context.overrides = {std::string(key) + "=1"};
    EXPECT_THAT(format(read_plan(source("{}"), context).diagnostics()),
                testing::HasSubstr("did you mean " + std::string(meant) + "?"));
  }
}

TEST(Errors, ComeAllAtOnceWithTheNearestKey) {
  EXPECT_THAT(errors_of(R"({"micro_batch": "two", "sequense": 1, "zero": {"stge": 1}, "precision": "bf8"})"),
              UnorderedElementsAre("plan.type /micro_batch", "plan.unknown /sequense", "ds.unknown /zero/stge",
                                   "plan.choice /precision"));
}

TEST(Errors, AListOfNothingIsNotAll) {
  EXPECT_THAT(errors_of(R"({"trainable": []})"), ElementsAre("plan.range /trainable"));
}

TEST(Unbuilt, KeysOfTheContractAreRefusedByName) {
  EXPECT_THAT(errors_of(R"({"tensor_parallel": 2, "pipeline_parallel": 4, "context_parallel": 2})"),
              ElementsAre("plan.unsupported /tensor_parallel", "plan.unsupported /pipeline_parallel",
                          "plan.unsupported /context_parallel"));
  EXPECT_THAT(
      errors_of(R"({"zero": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": true}})"),
      ElementsAre("plan.unsupported /zero/zero_hpz_partition_size", "plan.unsupported /zero/zero_quantized_weights"));
  EXPECT_THAT(errors_of(R"({"optimizer": {"type": "muon"}})"), ElementsAre("plan.unsupported /optimizer/type"));
}

TEST(Offload, BelowStage3DoesWhatDeepSpeedDoes) {
  const Plan plan = plan_of(R"({"zero": {"stage": 2}, "offload": {"optimizer": "nvme", "parameters": "cpu"}})");
  EXPECT_EQ(plan.offload.optimizer, OffloadDevice::cpu);
  EXPECT_EQ(plan.offload.parameters, OffloadDevice::none);
}

TEST(Offload, MustNotBeSaidTwiceInOneFileAndDifferently) {
  EXPECT_THAT(
      errors_of(R"({"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "offload": {"optimizer": "none"}})"),
      ElementsAre("plan.contradiction /offload/optimizer"));
  EXPECT_THAT(errors_of(R"({"offload": {"parameters": "cpu"}, "zero": {"stage": 3, "cpu_offload_param": false}})"),
              ElementsAre("plan.contradiction /offload/parameters"));
  const Plan plan =
      plan_of(R"({"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})", {"offload.optimizer=none"});
  EXPECT_EQ(plan.offload.optimizer, OffloadDevice::none);
  EXPECT_THAT(errors_of(R"({"zero": {"stage": 3, "cpu_offload": true}, "offload": {"optimizer": "cpu"}})"),
              ElementsAre());
}

TEST(Offload, OfZeroOptimizationIsDeepSpeedsAlone) {
  for (const char* engine : {"fsdp2", "ddp"}) {
    const Plan plan =
        plan_of(R"({"zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})", {std::string("engine=") + engine});
    EXPECT_EQ(plan.offload.optimizer, OffloadDevice::none) << engine;
    EXPECT_EQ(plan.optimizer.implementation, OptimizerImplementation::fused) << engine;
  }
}

TEST(Routing, HistogramsAreArraysOfLayersRanksAndExpertsOrAFile) {
  const Plan plan = plan_of(R"({"routing": {"kind": "histogram", "counts": [[[1, 2], [3, 4]]]}})");
  ASSERT_EQ(plan.routing.counts.size(), 1U);
  EXPECT_EQ(plan.routing.counts[0][1][0], 3);
  EXPECT_THAT(errors_of(R"({"routing": {"kind": "histogram", "counts": [[1, 2]]}})"),
              ElementsAre("plan.type /routing/counts/0/0"));
  EXPECT_THAT(errors_of(R"({"routing": {"kind": "histogram", "counts": [[[-1]]]}})"),
              ElementsAre("plan.range /routing/counts/0/0/0"));

  PlanContext context;
  std::string asked;
  context.open = [&](const std::string& path) {
    asked = path;
    return source(R"({"counts": [[[5, 6]]]})", path);
  };
  const Result<Plan> from_file =
      read_plan(source(R"({"routing": {"kind": "histogram", "file": "counts.json"}})", "plans/a.json"), context);
  ASSERT_TRUE(from_file);
  EXPECT_EQ(asked, "plans/counts.json");
  EXPECT_EQ(from_file->routing.counts[0][0][1], 6);
}

TEST(Places, SayWhereAKeyWasStated) {
  const Plan plan = plan_of("{\n  \"zero\": {\"prefetch_bucket_size\": 5e7, \"stage\": 3}\n}");
  EXPECT_EQ(place_of(plan, "/zero/stage3_prefetch_bucket_size").pointer, "/zero/prefetch_bucket_size");
  EXPECT_EQ(place_of(plan, "/zero/stage").line, 2);
  EXPECT_EQ(place_of(plan, "/zero/sub_group_size").pointer, "/zero");
  EXPECT_EQ(place_of(plan, "/micro_batch").pointer, "");
  EXPECT_EQ(shown_pointer(plan, "/micro_batch"), "/micro_batch");
}

}  // namespace
}  // namespace plimsoll
