// Parses the command line (runtime/cli/run_options.hpp).
#include "runtime/cli/run_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace plimsoll {

namespace {

constexpr const char* examples =
    "Examples:\n"
    "  plimsoll-run --model sparrow-dense --cluster 1xh200 --set sequence=128 --steps 20 --data "
    "/usr/share/common-licenses/GPL-3\n"
    "  plimsoll-run --model sparrow-moe --cluster 4xh200 --set expert_parallel=2 --set sequence=64 --steps 5\n"
    "  mpirun -n 4 plimsoll-run --model sparrow-dense --cluster 4xh200 --set sequence=64 --steps 5\n"
    "  torchrun --nproc-per-node 4 --no-python -- plimsoll-run --model sparrow-dense --cluster 4xh200 --set "
    "sequence=64\n"
    "Started alone, all ranks are threads of this program; under mpirun, srun or torchrun each process is one rank.\n";

}  // namespace

ParsedOptions parse_run_options(int argc, char** argv) {
  CLI::App app("Executes the step program of engine plimsoll: trains a model, on the host or on CUDA devices.");
  app.name("plimsoll-run");
  app.footer(examples);
  RunOptions o;
  app.add_option("--model", o.model, "a Hugging Face config.json or a preset")->required();
  app.add_option("--cluster", o.cluster, "a cluster.json or a preset like 2xh200")->required();
  app.add_option("--plan", o.plan, "a plan.json");
  app.add_option("--set", o.sets, "KEY=VALUE of the plan, e.g. zero.stage=3; repeatable")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--steps", o.steps, "optimizer steps, those of a resumed checkpoint included")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--data", o.data, "a text file, each byte a token; FILE.tokens, int32 each; or synthetic")
      ->capture_default_str();
  app.add_option("--backend", o.backend, "host or cuda")->check(CLI::IsMember({"host", "cuda"}))->capture_default_str();
  app.add_option("--seed", o.seed, "of initial weights and synthetic tokens")->capture_default_str();
  app.add_option("--log", o.log, "JSON lines, one a step; plimsoll compare --run-log reads it");
  app.add_option("--trace", o.trace, "the last step as a Chrome/Perfetto trace");
  app.add_option("--checkpoints", o.checkpoints, "folder in which checkpoints are written");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints; 0: after the last step only");
  app.add_flag("--resume", o.resume, "go on from the newest checkpoint of --checkpoints");
  app.add_option("--timeout", o.timeout_s, "seconds that ranks wait for each other")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", o.hyperparameters.learning_rate, "learning rate")->capture_default_str();
  app.add_option("--beta1", o.hyperparameters.beta1, "AdamW")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--beta2", o.hyperparameters.beta2, "AdamW")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--weight-decay", o.hyperparameters.weight_decay, "of all parameters")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return {{}, app.exit(success)};
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "plimsoll-run: {}\nTry: plimsoll-run --help\n", error.what());
    return {{}, 2};
  }
  if (o.resume && o.checkpoints.empty()) {
    fmt::print(stderr, "plimsoll-run: --resume needs --checkpoints DIR\n");
    return {{}, 2};
  }
  return {o, 0};
}

}  // namespace plimsoll
