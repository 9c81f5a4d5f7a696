// The common inputs as options of a command (planner/cli/common_inputs.hpp).
#include <CLI/CLI.hpp>

#include "planner/cli/common_inputs.hpp"

namespace plimsoll {

void add_common_inputs(CLI::App& app, InputOptions& options, InputOffer offer) {
  const char* group = "Inputs";
  auto* model =
      app.add_option("--model", options.model, "a Hugging Face config.json, a preset, or sketch:dense=7B,...");
  auto* cluster = app.add_option("--cluster", options.cluster, "a cluster.json or a preset like 8xh100");
  model->group(group)->required(offer.scenario);
  cluster->group(group)->required(offer.scenario);
  if (offer.plan) {
    auto* plan = app.add_option("--plan", options.plan, "a plan.json")->group(group);
    app.add_option("--ds", options.ds, "a ds_config.json, read as DeepSpeed does")->group(group)->excludes(plan);
  }
  app.add_option("--set", options.sets, "KEY=VALUE of the plan, e.g. zero.stage=3; repeatable")
      ->group(group)
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--gpus", options.gpus, "short for --set world_size=N")->group(group)->type_name("N");
  app.add_option("--nodes", options.nodes, "replaces the cluster's number of nodes")->group(group)->type_name("N");
  app.add_option("--host-memory", options.host_memory, "of a node, e.g. \"512 GiB\"")->group(group)->type_name("SIZE");
  app.add_option("--calibration", options.calibration, "a calibration.json or a preset; default: the cluster's")
      ->group(group);
  if (offer.rank) {
    app.add_option("--rank", options.rank, "whose bytes: hottest, mean or a rank")->group(group)->capture_default_str();
  }
  app.add_flag("--json", options.json, "one JSON object on standard output");
}

}  // namespace plimsoll
