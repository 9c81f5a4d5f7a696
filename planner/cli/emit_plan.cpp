// Which files make the recommended plan run?  plan.json for plimsoll, ds_config.json for DeepSpeed, launch.sh with the lines of
// the usual launchers, and report.md with the reasons and with what the training code itself has to do
// (planner/cli/recommendation.hpp).
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "planner/base/machine_error.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/spec/write_plan.hpp"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw MachineError(fmt::format("cannot write {}", path.string()));
}

/// Sources: torchrun's, the deepspeed launcher's and Slurm's own options.
std::string launch_script(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const int per_node = std::min(plan.world_size, scenario.cluster.devices_per_node);
  const int nodes = static_cast<int>(ceil_div(plan.world_size, per_node));
  const bool deepspeed = plan.engine == Engine::deepspeed;
  const char* arguments = deepspeed ? " --deepspeed --deepspeed_config ds_config.json" : "";
  std::string text = fmt::format("#!/bin/sh\n# {}\n# usage: launch.sh torchrun{}|srun [arguments of the script]\n",
                                 scenario_in_words(scenario), deepspeed ? "|deepspeed" : "");
  text +=
      "# TRAIN is your training script; MASTER_ADDR and NODE_RANK are needed by torchrun on several nodes.\nset -eu\n";
  text += "TRAIN=${TRAIN:-train.py}\nlauncher=${1:-torchrun}\n[ $# -eq 0 ] || shift\ncd \"$(dirname \"$0\")\"\n";
  if (plan.expandable_segments) text += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  text += "case $launcher in\n";
  text += fmt::format(
      "torchrun) torchrun --nnodes={} --nproc_per_node={} {} \"$TRAIN\"{} \"$@\" ;;\n", nodes, per_node,
      nodes > 1 ? "--node_rank=\"$NODE_RANK\" --master_addr=\"$MASTER_ADDR\" --master_port=29500" : "--standalone",
      arguments);
  if (deepspeed)
    text += fmt::format("deepspeed) deepspeed {}--num_nodes={} --num_gpus={} \"$TRAIN\"{} \"$@\" ;;\n",
                        nodes > 1 ? "--hostfile=hostfile " : "", nodes, per_node, arguments);
  text += fmt::format(
      "srun) srun --nodes={0} --ntasks-per-node=1 --gpus-per-node={1} sh -c 'exec torchrun --nnodes={0} "
      "--nproc_per_node={1} --node_rank=\"$SLURM_NODEID\" --master_addr=\"$(scontrol show hostnames "
      "\"$SLURM_JOB_NODELIST\" | head -n 1)\" --master_port=29500 \"$@\"' sh \"$TRAIN\"{2} \"$@\" ;;\n",
      nodes, per_node, arguments);
  return text + "*) echo \"launch.sh: no launcher $launcher\" >&2; exit 2 ;;\nesac\n";
}

/// What no configuration file can say.
std::string left_to_the_code(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  std::string text = fmt::format("- sequences of {} tokens, {} attention\n", plan.sequence, name_of(plan.attention));
  if (plan.recompute.every == 1) text += "- `model.gradient_checkpointing_enable()`\n";
  if (plan.recompute.every > 1)
    text +=
        fmt::format("- activation checkpointing of every {}. decoder layer, from the first\n", plan.recompute.every);
  if (plan.moe.leaf) text += "- `deepspeed.utils.set_z3_leaf_modules(model, [the MoE block's class])`\n";
  if (plan.construction == Construction::zero_init)
    text += "- the model is built under `deepspeed.zero.Init()` (the Hugging Face integration does it)\n";
  if (plan.construction == Construction::meta) text += "- the model is built on the meta device\n";
  if (plan.engine == Engine::fsdp2) {
    text += fmt::format("- `fully_shard(layer, reshard_after_forward={})` on every decoder layer, then on the model\n",
                        plan.fsdp.reshard_after_forward ? "True" : "False");
    if (plan.fsdp.replicate > 1)
      text += fmt::format("- on a mesh of {} replicas x {} shards\n", plan.fsdp.replicate,
                          plan.world_size / plan.fsdp.replicate);
  }
  if (plan.engine != Engine::deepspeed)
    text += fmt::format("- micro-batch {}, {} micro-batches a step, {}\n", plan.micro_batch, plan.gradient_accumulation,
                        name_of(plan.precision));
  if (plan.compile) text += "- `torch.compile` of every decoder layer\n";
  return text;
}

}  // namespace

void emit_plan(const Recommendation& recommendation, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw MachineError(fmt::format("cannot make {}: {}", folder, error.message()));
  const fs::path at(folder);
  const Scenario& scenario = recommendation.best->scenario;
  const Plan& plan = scenario.plan;
  write(at / "plan.json", write_plan_json(plan));
  if (plan.engine == Engine::deepspeed) write(at / "ds_config.json", write_ds_config(plan, &scenario.model));
  write(at / "launch.sh", launch_script(scenario));
  fs::permissions(at / "launch.sh", fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add, error);
  std::string beside;
  if (plan.engine == Engine::deepspeed) {
    beside = "\nTo look at ds_config.json with plimsoll, beside it:\n\n";
    for (const std::string& set : beside_ds_config(plan)) beside += fmt::format("    --set '{}'\n", set);
  }
  write(at / "report.md",
        fmt::format("# {}\n\n```\n{}```\n\n## What the training code has to do\n\n{}{}", scenario_in_words(scenario),
                    recommendation_text(recommendation, false), left_to_the_code(scenario), beside));
}

}  // namespace plimsoll
