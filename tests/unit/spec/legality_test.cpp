// Does each rule refuse what it should, name what would be legal, and leave the rest alone?
#include "planner/spec/legality.hpp"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

const ModelSpec& model(const std::string& name) {
  static std::map<std::string, ModelSpec> loaded;
  if (loaded.count(name) == 0) {
    const auto result = load_model(name);
    EXPECT_TRUE(result) << name;
    loaded[name] = *result;
  }
  return loaded[name];
}

/// Errors of the plan with that model ("": none), as diagnostics.
Diagnostics judge(const std::string& text, const std::string& model_name = "", const ClusterSpec* cluster = nullptr) {
  PlanContext context;
  if (!model_name.empty()) context.model = &model(model_name);
  PlanReading reading = read_plan_file(source(text), context);
  EXPECT_FALSE(has_errors(reading.diagnostics)) << text << "\n" << format(reading.diagnostics);
  const RuleInput input{reading.plan, context.model, cluster};
  Diagnostics errors = check_legality(input);
  EXPECT_EQ(is_legal(input), errors.empty());
  return errors;
}

std::vector<std::string> codes(const Diagnostics& diagnostics) {
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : diagnostics) list.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return list;
}

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ExpertParallelism, DividesExpertsAndRanksAndNamesBothFiles) {
  const Diagnostics errors = judge(R"({"world_size": 64, "expert_parallel": 48, "zero": {"stage": 3}})", "deepseek-v3");
  EXPECT_THAT(codes(errors), ElementsAre("plan.expert.world /expert_parallel", "plan.expert.divides /expert_parallel"));
  EXPECT_EQ(errors[1].help, "divisors of 256 that fit 64 data-parallel ranks: 1, 2, 4, 8, 16, 32, 64");
  ASSERT_EQ(errors[1].notes.size(), 1U);
  EXPECT_EQ(errors[1].notes[0].place.pointer, "/n_routed_experts");
  EXPECT_EQ(errors[1].notes[0].message, "/n_routed_experts is 256 here");
}

TEST(ExpertParallelism, NeedsExpertsAndLayersThatKnowIt) {
  EXPECT_THAT(codes(judge(R"({"world_size": 8, "expert_parallel": 2})", "llama-3.1-8b")),
              ElementsAre("plan.expert.none /expert_parallel"));
  EXPECT_THAT(
      codes(judge(R"({"world_size": 8, "expert_parallel": 2, "moe": {"implementation": "grouped"}})", "mixtral-8x7b")),
      ElementsAre("plan.expert.grouped /expert_parallel"));
  EXPECT_THAT(
      codes(judge(R"({"world_size": 8, "expert_parallel": 2, "engine": "fsdp2", "moe": {"implementation": "loop"}})",
                  "mixtral-8x7b")),
      ElementsAre("plan.engine.expert_parallel /expert_parallel"));
}

TEST(NativeExperts, AreRefusedAtStage3AndReplaceDenseLayersOnly) {
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 3}, "moe": {"num_experts": 8, "top_k": 2}})", "llama-3.1-8b")),
              ElementsAre("plan.moe.native_stage /zero/stage"));
  EXPECT_THAT(judge(R"({"zero": {"stage": 2}, "moe": {"num_experts": 8, "top_k": 2}})", "llama-3.1-8b"), IsEmpty());
  EXPECT_THAT(codes(judge(R"({"moe": {"implementation": "native"}})", "llama-3.1-8b")),
              ElementsAre("plan.moe.native_experts /moe"));
  EXPECT_THAT(codes(judge(R"({"moe": {"num_experts": 8}})", "mixtral-8x7b")),
              ElementsAre("plan.moe.native_dense /moe"));
  EXPECT_THAT(codes(judge(R"({"moe": {"num_experts": [8, 8]}})", "llama-3.1-8b")),
              ElementsAre("plan.moe.native_layers /moe/num_experts"));
  EXPECT_THAT(codes(judge(R"({"moe": {"num_experts": 4, "top_k": 5}})", "llama-3.1-8b")),
              ElementsAre("plan.moe.top_k /moe/top_k"));
  EXPECT_THAT(codes(judge(R"({"sequence": 2, "moe": {"num_experts": 4, "min_capacity": 4}})", "llama-3.1-8b")),
              ElementsAre("plan.moe.min_capacity /moe/min_capacity"));
  EXPECT_THAT(
      codes(judge(R"({"zero": {"stage": 2, "reduce_scatter": false}, "moe": {"num_experts": 4}})", "llama-3.1-8b")),
      ElementsAre("plan.moe.native_reduction /zero/reduce_scatter"));
}

TEST(AutoEp, NeedsAFamilyWithAPreset) {
  const char* const plan = R"({"world_size": 4, "expert_parallel": 4, "zero": {"stage": 3}})";
  EXPECT_THAT(codes(judge(plan, "gpt-oss-20b")), ElementsAre("plan.moe.autoep_family "));
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "qwen2-57b-a14b"})
    EXPECT_THAT(judge(plan, name), IsEmpty()) << name;
}

TEST(Engines, TakeTheirOwnExperts) {
  EXPECT_THAT(codes(judge(R"({"engine": "plimsoll", "moe": {"implementation": "grouped"}})", "mixtral-8x7b")),
              ElementsAre("plan.moe.engine /moe/implementation"));
  EXPECT_THAT(codes(judge(R"({"engine": "ddp", "moe": {"implementation": "autoep"}})", "mixtral-8x7b")),
              ElementsAre("plan.moe.engine /moe/implementation"));
  EXPECT_THAT(codes(judge(R"({"moe": {"implementation": "fused"}})", "mixtral-8x7b")),
              ElementsAre("plan.moe.engine /moe/implementation"));
}

TEST(DeepSpeed, RefusesWhatItAsserts) {
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 0}, "gradient_dtype": "fp32"})")),
              ElementsAre("plan.gradient_dtype /gradient_dtype"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 2}, "gradient_dtype": "fp16"})")),
              ElementsAre("plan.gradient_dtype /gradient_dtype"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})")),
              ElementsAre("plan.offload.ratio /zero/offload_optimizer/ratio"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 0, "offload_optimizer": {"device": "cpu"}}})")),
              ElementsAre("plan.offload.stage /zero/offload_optimizer/device"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 1, "allgather_bucket_size": 3}})")),
              ElementsAre("plan.zero.allgather /zero/allgather_bucket_size"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 2}, "construction": "zero_init"})")),
              ElementsAre("plan.construction /construction"));
  EXPECT_THAT(
      codes(judge(
          R"({"zero": {"stage": 3}, "offload": {"optimizer": "cpu"}, "optimizer": {"implementation": "fused"}})")),
      ElementsAre("plan.optimizer.offload /optimizer/implementation"));
  for (const int stage : {0, 2, 3})
    EXPECT_THAT(codes(judge(fmt::format(
                    R"({{"zero": {{"stage": {}}}, "optimizer": {{"implementation": "torch_cpu"}}}})", stage))),
                ElementsAre("plan.optimizer.offload /optimizer/implementation"));
}

TEST(PyTorch, KeepsNoMasterAndMomentsOfTheParametersType) {
  EXPECT_THAT(codes(judge(R"({"engine": "ddp", "master_weights": "fp32"})")),
              ElementsAre("plan.engine.master_weights /master_weights"));
  EXPECT_THAT(codes(judge(R"({"engine": "fsdp2", "master_weights": "none", "optimizer": {"moments": "fp32"}})")),
              ElementsAre("plan.optimizer.moments /optimizer/moments"));
  EXPECT_THAT(judge(R"({"engine": "fsdp2", "master_weights": "none"})"), IsEmpty());
  EXPECT_THAT(codes(judge(R"({"engine": "fsdp2", "world_size": 8, "fsdp": {"replicate": 3}})")),
              ElementsAre("plan.fsdp.replicate /fsdp/replicate"));
  EXPECT_EQ(judge(R"({"engine": "fsdp2", "world_size": 8, "fsdp": {"replicate": 3}})")[0].help, "divisors: 1, 2, 4, 8");
}

TEST(Unbuilt, IsRefusedByName) {
  for (const char* plan :
       {R"({"zero": {"stage": 3}, "offload": {"parameters": "nvme"}})",
        R"({"engine": "fsdp2", "compile": true, "trainable": {"lora": {"rank": 8}}})",
        R"({"engine": "fsdp2", "compile": true, "trainable": ["layers.0."]})",
        R"({"zero": {"stage": 3}, "compile": true, "attention": "eager"})",
        R"({"engine": "plimsoll", "compile": true})",
        R"({"zero": {"stage": 2}, "compile": true, "moe": {"implementation": "native", "num_experts": 4}})",
        R"({"zero": {"stage": 3}, "trainable": {"lora": {"rank": 8, "base": "nf4"}}})",
        R"({"zero": {"stage": 2}, "offload": {"optimizer": "cpu"}, "optimizer": {"moments": "int8"}})",
        R"({"precision": "bf16_autocast"})", R"({"master_weights": "none"})",
        R"({"engine": "fsdp2", "construction": "cpu", "offload": {"optimizer": "cpu", "parameters": "cpu"}})"}) {
    const Diagnostics errors = judge(plan);
    ASSERT_FALSE(errors.empty()) << plan;
    EXPECT_EQ(errors[0].code, "plan.unsupported") << plan;
    EXPECT_FALSE(errors[0].help.empty()) << plan;
  }
}

TEST(Compiled, LayersAreTakenByDeepSpeed) {
  for (const int stage : {0, 1, 2, 3})
    EXPECT_THAT(judge(fmt::format(R"({{"zero": {{"stage": {}}}, "compile": true}})", stage), "llama-3.2-1b"),
                IsEmpty());
}

TEST(Compiled, ModulesByThemselvesAreKnownOfPlainLayersAlone) {
  const char* plan = R"({"zero": {"stage": 3}, "compile": true, "moe": {"implementation": "grouped", "leaf": true}})";
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b"}) EXPECT_THAT(judge(plan, model), IsEmpty()) << model;
  for (const char* model : {"deepseek-v2-lite", "gpt-oss-20b"})
    EXPECT_THAT(codes(judge(plan, model)), ElementsAre("plan.unsupported /compile")) << model;
  const char* dense = R"({"zero": {"stage": 3}, "compile": true})";
  EXPECT_THAT(judge(dense, "qwen3-8b"), IsEmpty());
  EXPECT_THAT(codes(judge(dense, "qwen2.5-7b")), ElementsAre("plan.unsupported /compile"));
  EXPECT_THAT(codes(judge(R"({"zero": {"stage": 3}, "compile": true, "moe": {"leaf": false}})", "mixtral-8x7b")),
              ElementsAre("plan.unsupported /compile"));
}

TEST(Trained, NamesMustExist) {
  EXPECT_THAT(codes(judge(R"({"trainable": {"lora": {"rank": 8, "targets": ["query"]}}})", "llama-3.2-1b")),
              ElementsAre("plan.trainable.none /trainable"));
  EXPECT_THAT(codes(judge(R"({"trainable": ["mlp.experts"]})", "llama-3.2-1b")),
              ElementsAre("plan.trainable.none /trainable"));
  EXPECT_THAT(judge(R"({"trainable": {"lora": {"rank": 8}}})", "llama-3.2-1b"), IsEmpty());
  EXPECT_THAT(judge(R"({"trainable": ["layers.0.*proj", "norm"]})", "llama-3.2-1b"), IsEmpty());
}

TEST(Offload, UnderFullyShardIsOfEverything) {
  EXPECT_THAT(codes(judge(R"({"engine": "fsdp2", "offload": {"optimizer": "cpu"}})")),
              ElementsAre("plan.offload.policy /offload"));
  EXPECT_THAT(judge(R"({"engine": "fsdp2", "offload": {"optimizer": "cpu", "parameters": "cpu"}})"), IsEmpty());
}

TEST(Unbuilt, LatentAttentionHasNoFusedLayers) {
  const char* plan = R"({"engine": "plimsoll", "world_size": 8, "zero": {"stage": 3}})";
  EXPECT_THAT(codes(judge(plan, "deepseek-v3")), ElementsAre("plan.unsupported /engine"));
  EXPECT_THAT(codes(judge(plan, "qwen3-30b-a3b")), IsEmpty());
}

TEST(Routing, FitsTheModelThePlanAndTheRanks) {
  const auto plan = [](const std::string& counts, const std::string& more = "") {
    return R"({"world_size": 2, "micro_batch": 1, "sequence": 4, "routing": {"kind": "histogram", "counts": )" +
           counts + "}" + more + "}";
  };
  EXPECT_THAT(judge(plan("[[[1, 1, 1, 1, 1, 1, 1, 1]]]"), "mixtral-8x7b"), IsEmpty());
  EXPECT_THAT(codes(judge(plan("[[[1, 1, 1, 1, 1, 1, 1, 2]]]"), "mixtral-8x7b")),
              ElementsAre("plan.routing.histogram /routing/counts"));
  EXPECT_THAT(codes(judge(plan("[[[4, 4]]]"), "mixtral-8x7b")), ElementsAre("plan.routing.histogram /routing/counts"));
  EXPECT_THAT(codes(judge(plan("[[[8, 0, 0, 0, 0, 0, 0, 0]], [[8, 0, 0, 0, 0, 0, 0, 0]]]"), "mixtral-8x7b")),
              ElementsAre("plan.routing.histogram /routing/counts"));
  for (const char* kind : {"skew", "collapse"})
    EXPECT_THAT(codes(judge(fmt::format(R"({{"routing": {{"kind": "{}"}}}})", kind), "mixtral-8x7b")),
                ElementsAre("plan.routing.missing /routing"));
  EXPECT_THAT(codes(judge(R"({"routing": {"kind": "skew", "max_over_mean": 9}})", "mixtral-8x7b")),
              ElementsAre("plan.routing.skew /routing/max_over_mean"));
}

TEST(Sizes, BeyondTheClusterOrBeyondInt64AreRefused) {
  const auto cluster = load_cluster("8xh100");
  ASSERT_TRUE(cluster);
  EXPECT_THAT(codes(judge(R"({"world_size": 16})", "", &*cluster)), ElementsAre("plan.world.cluster /world_size"));
  EXPECT_THAT(judge(R"({"world_size": 4})", "", &*cluster), IsEmpty());
  EXPECT_THAT(codes(judge(R"({"micro_batch": 1048576, "sequence": 134217728})")),
              ElementsAre("plan.too_large /micro_batch"));
  EXPECT_THAT(codes(judge(R"({"gradient_accumulation": 4096})", "llama-3.1-405b")),
              ElementsAre("plan.too_large /gradient_accumulation"));
  EXPECT_THAT(codes(judge(R"({"sequence": 131072, "loss": {"chunked": 15}})")), ElementsAre("plan.too_large /loss"));
  EXPECT_THAT(judge(R"({"sequence": 131072, "loss": {"chunked": 16}})"), IsEmpty());
  EXPECT_THAT(codes(judge(R"({"micro_batch": 8, "sequence": 134217728, "attention": "eager"})", "llama-3.1-405b")),
              ElementsAre("plan.too_large /micro_batch"));
}

TEST(Clusters, WhoseRanksCannotReachEachOtherAreRefusedWithTheRanks) {
  const auto cluster = load_cluster("16xh100");
  ASSERT_TRUE(cluster);
  ClusterSpec apart = *cluster;
  apart.nics_per_node = 0;
  const Diagnostics errors = judge(R"({"world_size": 16})", "", &apart);
  ASSERT_THAT(codes(errors), ElementsAre("cluster.unreachable "));
  EXPECT_EQ(errors[0].message, "rank 7 (node 0) cannot reach rank 8 (node 1): the nodes have no network");
  EXPECT_THAT(judge(R"({"world_size": 8})", "", &apart), IsEmpty());
  apart.in_node.bandwidth = {};
  EXPECT_THAT(codes(judge(R"({"world_size": 2})", "", &apart)), ElementsAre("cluster.unreachable "));
  EXPECT_THAT(judge(R"({"world_size": 1})", "", &apart), IsEmpty());
}

TEST(Rules, HaveACodeEvidenceAndASeverityEach) {
  for (const Rule& rule : legality_rules()) {
    EXPECT_EQ(rule.severity, Severity::error) << rule.code;
    EXPECT_STRNE(rule.evidence, "") << rule.code;
  }
  for (const Rule& rule : trap_rules()) {
    EXPECT_NE(rule.severity, Severity::error) << rule.code;
    EXPECT_STRNE(rule.evidence, "") << rule.code;
    EXPECT_EQ(std::string(rule.code).rfind("trap.", 0), 0U) << rule.code;
  }
}

std::vector<std::string> traps(const std::string& text, const std::string& model_name = "") {
  PlanContext context;
  if (!model_name.empty()) context.model = &model(model_name);
  const PlanReading reading = read_plan_file(source(text), context);
  EXPECT_FALSE(has_errors(reading.diagnostics)) << format(reading.diagnostics);
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : find_traps({reading.plan, context.model, nullptr}))
    list.push_back(std::string(diagnostic.severity == Severity::warning ? "warning " : "note ") + diagnostic.code);
  return list;
}

using testing::Contains;
using testing::Not;

TEST(Traps, OfAutoEpSaveOneRanksExperts) {
  EXPECT_THAT(traps(R"({"world_size": 4, "expert_parallel": 2, "zero": {"stage": 2}})", "mixtral-8x7b"),
              Contains("warning trap.autoep_save"));
  EXPECT_THAT(traps(R"({"world_size": 4, "expert_parallel": 4, "zero": {"stage": 3}})", "mixtral-8x7b"),
              Contains("note trap.experts_unsharded"));
  EXPECT_THAT(traps(R"({"world_size": 4, "expert_parallel": 2, "zero": {"stage": 3}})", "mixtral-8x7b"),
              Not(Contains("note trap.experts_unsharded")));
}

TEST(Traps, OfExpertsDependOnFamilyPrecisionAndLeaf) {
  EXPECT_THAT(traps(R"({"zero": {"stage": 3}})", "qwen3-30b-a3b"), Contains("note trap.zero_router"));
  EXPECT_THAT(traps(R"({"zero": {"stage": 3}})", "mixtral-8x7b"), Not(Contains("note trap.zero_router")));
  EXPECT_THAT(traps(R"({"zero": {"stage": 3}})", "mixtral-8x7b"), Contains("note trap.leaf"));
  EXPECT_THAT(traps(R"({"engine": "ddp", "precision": "bf16_autocast"})", "mixtral-8x7b"),
              Contains("warning trap.fp32_experts"));
  EXPECT_THAT(traps(R"({"moe": {"num_experts": 8, "drop_tokens": false}})", "llama-3.1-8b"),
              Contains("note trap.no_drop"));
  EXPECT_THAT(traps(R"({"routing": {"kind": "balanced", "share": 0.9}})", "mixtral-8x7b"),
              Contains("warning trap.routing_key_unused"));
  EXPECT_THAT(traps(R"({"routing": {"kind": "collapse", "share": 0.9}})", "llama-3.1-8b"),
              Contains("warning trap.routing_unused"));
}

TEST(Traps, OfStagesNameBucketsReductionsAndGathers) {
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 2}})"), Contains("note trap.all_reduce"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 3}})"), Not(Contains("note trap.all_reduce")));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 2}})", "qwen2.5-0.5b"), Contains("warning trap.bucket"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 2}})", "llama-3.1-8b"),
              Not(Contains("warning trap.bucket")));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 3, "stage3_max_live_parameters": 1e10}})", "llama-3.1-8b"),
              Contains("warning trap.max_live"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 3}})", "llama-3.1-8b"), Contains("note trap.max_live"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 3}, "compile": true})", "llama-3.1-8b"),
              Contains("warning trap.compiled_modules"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 2}, "compile": true})", "llama-3.1-8b"),
              testing::Not(Contains("warning trap.compiled_modules")));
  EXPECT_THAT(traps(R"({"world_size": 1, "zero": {"stage": 3}})"), Contains("warning trap.world"));
  EXPECT_THAT(traps(R"({"world_size": 8, "zero": {"stage": 2}, "gradient_accumulation": 4})"),
              testing::IsSupersetOf({"note trap.second_copy", "note trap.sums_in_16bit"}));
}

}  // namespace
}  // namespace plimsoll
