// Which files make the recommended plan run?  plan.json for plimsoll, ds_config.json for DeepSpeed, launch.sh with the lines of
// the usual launchers, and report.md with the reasons and with what the training code itself has to do,
// where the engine has one: plimsoll-run takes plan.json as it is (planner/cli/recommendation.hpp).
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
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

/// One word of a shell's line, whatever stands in it.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

/// The argument of --model or --cluster as it holds in another folder too: a file or folder by its whole path.
std::string from_anywhere(const std::string& argument, const std::string& otherwise) {
  if (argument.empty()) return otherwise;
  std::error_code error;
  return fs::exists(argument, error) ? fs::absolute(argument, error).lexically_normal().string() : argument;
}

/// What a launcher starts on each GPU.
struct Started {
  std::string set;        ///< lines that set what `program` takes from the environment
  std::string options;    ///< of torchrun
  std::string program;    ///< and its arguments
  const char* arguments;  ///< what the user's own arguments are for
};

Started started(const Scenario& scenario, const InputOptions& inputs) {
  if (scenario.plan.engine == Engine::plimsoll) {
    // With --nodes the cluster is another one than the argument names.
    const std::string cluster = inputs.nodes.empty() ? inputs.cluster : std::string();
    return {fmt::format("# MODEL and CLUSTER are what plimsoll-run --help says.\nMODEL=${{MODEL:-{}}}\n"
                        "CLUSTER=${{CLUSTER:-{}}}\n",
                        quoted(from_anywhere(inputs.model, scenario.model.name)),
                        quoted(from_anywhere(cluster, scenario.cluster.name))),
            " --no-python --", R"(plimsoll-run --model "$MODEL" --cluster "$CLUSTER" --plan plan.json --backend cuda)",
            "further arguments of plimsoll-run, such as --data FILE"};
  }
  const bool deepspeed = scenario.plan.engine == Engine::deepspeed;
  return {"# TRAIN is your training script.\nTRAIN=${TRAIN:-train.py}\n", "",
          std::string("\"$TRAIN\"") + (deepspeed ? " --deepspeed --deepspeed_config ds_config.json" : ""),
          "arguments of the script"};
}

/// Sources: torchrun's, the deepspeed launcher's and Slurm's own options; plimsoll-run's are runtime/README.md's.
std::string launch_script(const Scenario& scenario, const InputOptions& inputs) {
  const Plan& plan = scenario.plan;
  const int per_node = std::min(plan.world_size, scenario.cluster.devices_per_node);
  const int nodes = static_cast<int>(ceil_div(plan.world_size, per_node));
  const bool deepspeed = plan.engine == Engine::deepspeed;
  const Started what = started(scenario, inputs);
  std::string text = fmt::format("#!/bin/sh\n# {}\n# usage: launch.sh torchrun{}|srun [{}]\n",
                                 scenario_in_words(scenario), deepspeed ? "|deepspeed" : "", what.arguments);
  text += "# MASTER_ADDR and NODE_RANK are needed by torchrun on several nodes.\nset -eu\n" + what.set;
  text += "launcher=${1:-torchrun}\n[ $# -eq 0 ] || shift\ncd \"$(dirname \"$0\")\"\n";
  if (plan.expandable_segments && plan.engine != Engine::plimsoll)
    text += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  text += "case $launcher in\n";
  text += fmt::format(
      "torchrun) torchrun --nnodes={} --nproc_per_node={} {}{} {} \"$@\" ;;\n", nodes, per_node,
      nodes > 1 ? R"(--node_rank="$NODE_RANK" --master_addr="$MASTER_ADDR" --master_port=29500)" : "--standalone",
      what.options, what.program);
  if (deepspeed)
    text += fmt::format("deepspeed) deepspeed {}--num_nodes={} --num_gpus={} {} \"$@\" ;;\n",
                        nodes > 1 ? "--hostfile=hostfile " : "", nodes, per_node, what.program);
  text += fmt::format(
      "srun) srun --nodes={0} --ntasks-per-node=1 --gpus-per-node={1} sh -c 'exec torchrun --nnodes={0} "
      "--nproc_per_node={1} --node_rank=\"$SLURM_NODEID\" --master_addr=\"$(scontrol show hostnames "
      "\"$SLURM_JOB_NODELIST\" | head -n 1)\" --master_port=29500{2} \"$@\"' sh {3} \"$@\" ;;\n",
      nodes, per_node, what.options, what.program);
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
    if (plan.offload.parameters == OffloadDevice::cpu)
      text += fmt::format("- `offload_policy=CPUOffloadPolicy(pin_memory={})` in each `fully_shard`\n",
                          plan.offload.pin_parameters ? "True" : "False");
  }
  if (plan.engine != Engine::deepspeed)
    text += fmt::format("- micro-batch {}, {} of them a step, {}\n", plan.micro_batch, plan.gradient_accumulation,
                        name_of(plan.precision));
  if (plan.compile) text += "- `torch.compile` of every decoder layer\n";
  return text;
}

}  // namespace

void check_emit_folder(const std::string& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error))
    throw MachineError(fmt::format("cannot make {}: {} is no folder", folder, there.string()));
  if (access(there.c_str(), W_OK | X_OK) != 0)
    throw MachineError(fmt::format("cannot write into {}: {}", there.string(), std::generic_category().message(errno)));
}

void emit_plan(const Recommendation& recommendation, const std::string& folder, const InputOptions& inputs) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw MachineError(fmt::format("cannot make {}: {}", folder, error.message()));
  const fs::path at(folder);
  const Scenario& scenario = recommendation.best->scenario;
  const Plan& plan = scenario.plan;
  write(at / "plan.json", write_plan_json(plan));
  if (plan.engine == Engine::deepspeed) write(at / "ds_config.json", write_ds_config(plan, &scenario.model));
  write(at / "launch.sh", launch_script(scenario, inputs));
  fs::permissions(at / "launch.sh", fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add, error);
  std::string beside;
  if (plan.engine == Engine::deepspeed) {
    beside = "\nTo look at ds_config.json with plimsoll, beside it:\n\n";
    for (const std::string& set : beside_ds_config(plan)) beside += fmt::format("    --set '{}'\n", set);
  }
  const std::string rest = plan.engine == Engine::plimsoll
                               ? "## How it runs\n\nplimsoll-run trains the model by plan.json, without training code; "
                                 "launch.sh starts it:\n\n"
                                 "    ./launch.sh torchrun --data FILE --steps 1000 --log run.log\n"
                               : "## What the training code has to do\n\n" + left_to_the_code(scenario);
  write(at / "report.md", fmt::format("# {}\n\n```\n{}```\n\n{}{}", scenario_in_words(scenario),
                                      recommendation_text(recommendation, false), rest, beside));
}

}  // namespace plimsoll
