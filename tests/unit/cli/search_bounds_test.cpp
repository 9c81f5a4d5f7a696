// Is what a search concludes without evaluating a plan never above what the simulator says of it?  Random plans of a dense
// model and of a mixture, on clocks that sag (H200) and on such that do not (H100), with copies of offload.
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/fastest_rates.hpp"
#include "planner/cli/plan_evaluator.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/write_plan.hpp"
#include "simulator/timeline.hpp"
#include "tests/unit/cli/program.hpp"

namespace plimsoll {
namespace {

std::string pick(std::mt19937& random, std::initializer_list<const char*> values) {
  return *(values.begin() + random() % values.size());
}

/// Long enough to be judged by a few of their layers.
constexpr const char* dense = R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 6144, "vocab_size": 4000,
  "max_position_embeddings": 8192, "tie_word_embeddings": false})";
constexpr const char* mixture = R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 4000,
  "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 2048, "norm_topk_prob": true,
  "max_position_embeddings": 8192, "tie_word_embeddings": false})";

/// Nothing where its plan is refused.
std::optional<Scenario> random_scenario(std::mt19937& random) {
  const bool experts = random() % 2 == 0;
  const test::TemporaryFile model{experts ? mixture : dense};
  const std::string engine = pick(random, {"deepspeed", "deepspeed", "deepspeed", "fsdp2", "plimsoll"});
  InputOptions options;
  options.model = model.path();
  options.cluster = pick(random, {"2xh200", "4xh100", "8xh100"});
  options.sets = {"engine=" + engine, "sequence=" + pick(random, {"128", "1024", "4096"}),
                  "micro_batch=" + pick(random, {"1", "2", "3", "5"}),
                  "gradient_accumulation=" + pick(random, {"1", "2", "4", "9"}),
                  "recompute=" + pick(random, {"none", "full", R"({"every": 2})"})};
  const auto set = [&](const char* key, std::initializer_list<const char*> values) {
    options.sets.push_back(std::string(key) + "=" + pick(random, values));
  };
  if (engine == "deepspeed") {
    const int stage = static_cast<int>(random() % 4);
    options.sets.push_back("zero.stage=" + std::to_string(stage));
    set("zero.overlap_comm", {"true", "true", "false"});
    set("zero.reduce_bucket_size", {"5000000", "500000000"});
    set("gradient_dtype", {"bf16", "fp32"});
    if (stage > 0) set("offload.optimizer", {"none", "cpu", "cpu", "nvme"});
    if (stage == 3) {
      set("offload.parameters", {"none", "cpu"});
      set("zero.stage3_max_live_parameters", {"0", "1000000000"});
    }
    if (experts) set("moe.implementation", {"grouped", "autoep", "autoep"});
  }
  if (engine == "fsdp2") set("fsdp.reshard_after_forward", {"true", "false"});
  if (experts) set("expert_parallel", {"1", "2"});
  const Inputs inputs(options);
  if (has_errors(inputs.diagnostics())) return std::nullopt;
  return inputs.scenario();
}

double simulated(const Scenario& scenario) {
  const Calibration calibration = *load_calibration("", scenario.cluster);
  return to_seconds(simulate_step(build(scenario).program, scenario.cluster, calibration).step_time);
}

TEST(SearchBounds, never_exceed_the_simulated_step) {
  std::mt19937 random(20261130);
  int compared = 0, offloaded = 0, known = 0;
  for (int i = 0; i < 160; ++i) {
    const std::optional<Scenario> drawn = random_scenario(random);
    if (!drawn) continue;
    const Scenario& scenario = *drawn;
    ++compared;
    offloaded += scenario.plan.offload.optimizer != OffloadDevice::none;
    const Calibration calibration = *load_calibration("", scenario.cluster);
    const SearchOptions options = search_options(calibration);
    const PlanBounds bounds(scenario.model, scenario.cluster, options.peaks, scenario.plan);
    const std::int64_t accumulation = scenario.plan.gradient_accumulation;
    const LayersTime layers = options.outline(scenario, OutlineOf::layers).layers;
    known += layers.device_s > 0;
    const double step_s = simulated(scenario) * (1 + 1e-9);  // picoseconds are rounded
    EXPECT_LE(bounds.step_seconds(scenario.plan.micro_batch, accumulation), step_s) << write_plan_json(scenario.plan);
    EXPECT_LE(bounds.step_seconds(layers, accumulation, options.beside_layers), step_s)
        << write_plan_json(scenario.plan);
  }
  EXPECT_GT(compared, 80);
  EXPECT_GT(offloaded, 40);
  EXPECT_GT(known, 80);
}

TEST(SearchBounds, never_exceed_what_a_plan_takes_that_trains_a_part) {
  const test::TemporaryFile model{dense};
  int compared = 0;
  for (const char* part : {"trainable.lora.rank=8", R"(trainable=["lm_head"])", R"(trainable=["q_proj"])",
                           R"(trainable={"lora": {"rank": 8, "base": "nf4"}})"}) {
    for (const char* engine :
         {"engine=ddp", "engine=fsdp2", "zero.stage=0", "zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
      for (const char* other :
           {"recompute=none", "recompute=full", "precision=bf16_autocast", "offload.optimizer=cpu"}) {
        InputOptions options;
        options.model = model.path();
        options.cluster = "2xh100";
        options.sets = {engine, part, other, "micro_batch=4"};
        const Inputs inputs(options);
        if (has_errors(inputs.diagnostics())) continue;
        ++compared;
        const Scenario scenario = inputs.scenario();
        const Calibration calibration = *load_calibration("", scenario.cluster);
        const PeakRates peaks = search_options(calibration).peaks;
        const PlanBounds bounds(scenario.model, scenario.cluster, peaks, scenario.plan);
        const Ledger ledger = evaluate(scenario).ledger;
        const std::string words = std::string(engine) + " " + part + " " + other;
        EXPECT_LE(bounds.device_memory(4), ledger.allocated_peak.value) << words;
        EXPECT_LE(bounds.step_seconds(4, 1), simulated(scenario)) << words;
      }
    }
  }
  EXPECT_GT(compared, 40);
}

// T(m) >= A F(m) + (T(M) - A F(M)) m / M for m < M.
TEST(SearchBounds, what_a_step_takes_beyond_its_layers_grows_no_faster_than_its_micro_batch) {
  std::mt19937 random(20261201);
  int compared = 0;
  for (int i = 0; i < 50; ++i) {
    std::optional<Scenario> drawn = random_scenario(random);
    if (!drawn) continue;
    Scenario& scenario = *drawn;
    ++compared;
    const Calibration calibration = *load_calibration("", scenario.cluster);
    const SearchOptions options = search_options(calibration);
    ASSERT_TRUE(options.larger_steps_bound);
    double before = std::numeric_limits<double>::infinity();
    for (const int micro : {1, 2, 3, 4, 6, 9}) {
      scenario.plan.micro_batch = micro;
      const double layers = options.outline(scenario, OutlineOf::layers).layers.longest_s();
      const double beyond =
          (simulated(scenario) - layers * static_cast<double>(scenario.plan.gradient_accumulation)) / micro;
      EXPECT_LE(beyond, before * (1 + 1e-9)) << micro << ": " << write_plan_json(scenario.plan);
      before = beyond;
    }
  }
  EXPECT_GT(compared, 25);
}

}  // namespace
}  // namespace plimsoll
