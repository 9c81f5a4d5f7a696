// The table of commands, the answers they share, and the sibling programs (planner/cli/commands.hpp).
#include "planner/cli/commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

constexpr std::array siblings = {std::pair{"calibrate", "measure kernels and links, and fit them"},
                                 std::pair{"run", "execute a step program on devices"},
                                 std::pair{"gui", "the desktop program"}};

const std::vector<Command>& table() {
  static const std::vector<Command> commands = {
      {"check", "is this configuration legal, and what does each key really do?",
       "plimsoll check --ds ds_config.json --gpus 8\n"
       "plimsoll check --plan plan.json --model mixtral-8x7b --cluster 8xh100",
       declare_check},
      {"ledger", "bytes per GPU and per host, by category and phase; does it fit?",
       "plimsoll ledger --model llama-3.1-8b --cluster 8xh100 --set zero.stage=3 --set micro_batch=2\n"
       "plimsoll ledger --model qwen3-30b-a3b --cluster 8xh200 --plan plan.json --json",
       declare_ledger},
      {"volumes", "bytes on the wire by collective, group, phase and link tier",
       "plimsoll volumes --model mixtral-8x7b --cluster 16xh100 --set zero.stage=1 --set expert_parallel=8",
       declare_volumes},
      {"simulate", "step time, tokens/s, MFU, what the GPU waits for; a trace; the cost of a token budget",
       "plimsoll simulate --model llama-2-7b --cluster 2xh200 --set engine=fsdp2 --set micro_batch=2\n"
       "plimsoll simulate --model mixtral-8x7b --cluster 8xh200 --plan plan.json --trace step.json --tokens 1e12 "
       "--price 2.5",
       declare_simulate},
      {"explain", "the step program as a listing, what is alive at the peak, or the formula behind a number",
       "plimsoll explain --model llama-3.1-8b --cluster 8xh100 --peak\n"
       "plimsoll explain --model llama-3.1-8b --cluster 8xh100 --number gpu.categories_at_peak.gradients",
       declare_explain},
      {"recommend", "the best legal plans, what they cost, and what was excluded and why",
       "plimsoll recommend --model qwen3-30b-a3b --cluster 8xh100 --set sequence=4096\n"
       "plimsoll recommend --model llama-3.1-70b --cluster 64xh100 --global-batch 256 --emit run/",
       declare_recommend},
      {"max", "the largest micro_batch or sequence with which the plan still fits",
       "plimsoll max micro_batch --model llama-3.1-8b --cluster 8xh100 --set zero.stage=3", declare_max},
      {"need", "the smallest number of GPUs that runs it, and with which plan",
       "plimsoll need --model llama-3.1-70b --device h100,h200", declare_need},
      {"diff", "two plans, term by term: memory, volumes and time",
       "plimsoll diff a.json b.json --model mixtral-8x7b --cluster 8xh100", declare_diff},
      {"sweep", "a table over the values of one or more keys",
       "plimsoll sweep micro_batch=1,2,4,8 zero.stage=2,3 --model llama-3.1-8b --cluster 8xh100 --chart memory.svg",
       declare_sweep},
      {"validate", "predictions against tables of measured runs: the error of each figure, per row and in all",
       "plimsoll validate h200_torch.json h200_deepspeed.json --brief\n"
       "plimsoll validate runs.csv --figure allocated_peak --within 1",
       declare_validate},
      {"compare", "which tensor is in a real step and not in the program, or the other way round?",
       "plimsoll compare --model config.json --cluster 2xh200 --plan plan.json --allocator-trace step.json.gz\n"
       "plimsoll compare --model config.json --cluster 2xh200 --plan plan.json --snapshot snapshot.json --events\n"
       "plimsoll compare --model sparrow-dense --cluster 2xh200 --set engine=plimsoll --set sequence=128 --run-log log",
       declare_compare},
      {"oom", "which tensor does this out-of-memory message name?",
       "plimsoll oom \"CUDA out of memory. Tried to allocate 12.94 GiB\" --parameters 13897000000 --gpus 4\n"
       "plimsoll oom train.log --model config.json --cluster 8xa100-80 --ds ds_config.json",
       declare_oom},
  };
  return commands;
}

/// Starts plimsoll-<name>, which lies beside this program (or in its own folder of a build); returns only by exception.
[[noreturn]] void start_sibling(const std::string& name, char** arguments) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  const std::string program = "plimsoll-" + name;
  const fs::path in_build = here.parent_path() / (name == "run" ? "runtime" : name);
  for (const fs::path& folder : {here, in_build, in_build / "cli"}) {
    const fs::path file = folder / program;
    if (!fs::is_regular_file(file, error)) continue;
    execv(file.c_str(), arguments);
    throw MachineError(fmt::format("cannot start {}: {}", file.string(), std::strerror(errno)));
  }
  throw MachineError(
      fmt::format("{} is not there: it was left out of this build, or not installed beside plimsoll", program));
}

}  // namespace

std::function<std::string(std::string)> number_from(double least, double most) {
  return [=](const std::string& text) -> std::string {
    double number = 0;
    // Not a number compares false with everything.
    if (CLI::detail::lexical_cast(text, number) && number >= least && number <= most) return {};
    return fmt::format("{} is no number from {} to {}", text, least, most);
  };
}

int refuse(const Diagnostics& diagnostics, bool json) {
  print_diagnostics(diagnostics);
  if (json) print(diagnostics_json(diagnostics));
  return exit_code::input;
}

int refuse_usage(const char* command, const std::string& message) {
  fmt::print(stderr, "plimsoll {0}: {1}\nTry: plimsoll {0} --help\n", command, message);
  return exit_code::usage;
}

int run_program(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  CommandLine line{"plimsoll",
                   "plimsoll",
                   "plimsoll " PLIMSOLL_VERSION,
                   "Does a ZeRO or Mixture-of-Experts training run fit, what does it send, how long does a step take?",
                   "Also:\n",
                   {}};
  for (const auto& [name, summary] : siblings) {
    if (first == name) start_sibling(name, argv + 1);
    line.footer += fmt::format("  {:<26}{}\n", name, summary);
    line.others.emplace_back(name);
  }
  line.footer += "\nplimsoll COMMAND --help shows a command's options and examples.";
  return run_commands(line, table(), argc, argv);
}

}  // namespace plimsoll
