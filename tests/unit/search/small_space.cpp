// Small models, clusters, plans and their evaluation (tests/unit/search/small_space.hpp).
#include "tests/unit/search/small_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "planner/account/work.hpp"
#include "planner/base/check.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "planner/step/build_step.hpp"

namespace plimsoll::testing {

ModelSpec small_model(std::int64_t hidden, int layers, std::int64_t experts) {
  auto file = std::make_shared<SourceFile>();
  file->name = "small.json";
  const std::string common = fmt::format(
      R"("hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096)",
      hidden, 3 * hidden, layers);
  file->text = experts > 0 ? fmt::format(R"({{"model_type": "mixtral", "num_local_experts": {},
                                              "num_experts_per_tok": 2, {}}})",
                                         experts, common)
                           : fmt::format(R"({{"model_type": "llama", {}}})", common);
  const auto document = parse_document(file);
  CHECK(document, "the small model's text is JSON");
  auto model = read_model(*document, experts > 0 ? "small mixture" : "small");
  CHECK(model, "the small model's text describes a model");
  return *model;
}

ClusterSpec small_cluster(int gpus, double gibibytes) {
  ClusterSpec cluster = make_cluster(*find_server("h100"), gpus);
  cluster.device.memory = Bytes(static_cast<std::int64_t>(gibibytes * (1 << 30)));
  return cluster;
}

Scenario small_scenario(ModelSpec model, ClusterSpec cluster, const std::vector<std::string>& sets) {
  PlanContext context;
  context.overrides = sets;
  context.cluster_world = cluster.world();
  context.model = &model;
  PlanReading reading = read_plan_file(nullptr, context);
  CHECK(!has_errors(reading.diagnostics), "the small plan has no errors");
  return {std::move(model), std::move(cluster), std::move(reading.plan)};
}

Evaluated CountingEvaluator::operator()(const Scenario& scenario, double /*worth_s*/) const {
  if (calls != nullptr) ++*calls;
  const StepProgram program = build_step(scenario, 0);
  const RankProgram& rank = program.classes.front().program;
  LedgerContext context;
  context.capacity = scenario.cluster.device.memory;
  context.bistable = false;
  context.host_capacity = scenario.cluster.host_memory;
  context.ranks_per_node = std::min(scenario.plan.world_size, scenario.cluster.devices_per_node);
  const Ledger ledger = make_ledger(rank, context);
  Evaluated evaluated;
  evaluated.step_time_s = account_work(program, rank, scenario.cluster).lower_bound.count;
  evaluated.judged = true;
  evaluated.verdict = ledger.verdict;
  evaluated.host_breaks = ledger.breaks_on_host;
  if (scenario.plan.gradient_accumulation == 1) evaluated.least_memory = peak_of_sizes(rank);
  if (scenario.plan.gradient_accumulation >= 3) evaluated.least_accumulating = peak_of_sizes(rank);
  evaluated.allocated_peak = ledger.allocated_peak.value;
  evaluated.device_peak = ledger.device_peak.value;
  evaluated.job_device_peak = ledger.job_device_peak.value;
  evaluated.host_per_node = ledger.host_per_node;
  evaluated.margin = ledger.margin;
  return evaluated;
}

Exhaustive evaluate_all(const Space& space, const Evaluator& evaluate) {
  Exhaustive result;
  Scenario scenario = space.asked();
  for (const Choice& choice : space.choices()) {
    for (const std::int64_t micro : space.micro_batches()) {
      std::vector<std::int64_t> accumulations = space.accumulations(choice, micro);
      std::reverse(accumulations.begin(), accumulations.end());
      for (const std::int64_t accumulation : accumulations) {
        ++result.candidates;
        scenario.plan = space.plan(choice, micro, accumulation);
        if (!space.is_legal(scenario.plan)) continue;
        const Evaluated evaluated = evaluate(scenario, std::numeric_limits<double>::infinity());
        if (evaluated.verdict != Verdict::fits) continue;
        const auto tokens =
            static_cast<double>(micro * accumulation * choice.world) * static_cast<double>(scenario.plan.sequence);
        const double time = evaluated.step_time_s / tokens;
        if (result.best && time >= result.best->seconds_per_token) continue;
        result.best = Found{choice, micro, accumulation, time, evaluated, scenario.plan};
      }
    }
  }
  return result;
}

}  // namespace plimsoll::testing
