// The table of commands and the parsing of the command line (calibrate/cli/commands.hpp).
#include "calibrate/cli/commands.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>

#include "planner/base/format.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll::calibrate {
namespace {

const std::vector<Command>& table() {
  static const std::vector<Command> commands = {
      {"probe", "what is here: devices, links, host, versions, as a cluster.json",
       "plimsoll calibrate probe -o cluster.json", declare_probe},
      {"bench", "measure kernels, copies, collectives, pairs of them and fixed costs",
       "plimsoll calibrate bench -o h200.jsonl --budget 120s\n"
       "plimsoll calibrate bench -o h200.jsonl --resume\n"
       "torchrun --nproc-per-node 8 --no-python plimsoll-calibrate bench -o node.jsonl\n"
       "plimsoll calibrate bench --backend host -o host.jsonl --budget 10s\n"
       "plimsoll calibrate bench -o llama.jsonl --model llama-3.1-8b --cluster 8xh200 --set zero.stage=3",
       declare_bench},
      {"import", "samples from logs that there are: nccl-tests, Kineto traces, Google Benchmark",
       "plimsoll calibrate import all_gather.log --device h100 -o nccl.jsonl\n"
       "plimsoll calibrate import step.json.gz -o trace.jsonl",
       declare_import},
      {"fit", "samples to a calibration file that every command takes",
       "plimsoll calibrate fit h200.jsonl -o h200.json\n"
       "plimsoll calibrate fit bench.jsonl trace.jsonl --base h200 -o h200-mine.json",
       declare_fit},
      {"report", "how well a calibration agrees with samples: residual tables and a plot",
       "plimsoll calibrate report h200.json h200.jsonl --plot residuals.svg", declare_report},
      {"agree", "two files of samples, point by point: does a log agree with a measurement?",
       "plimsoll calibrate agree h200.jsonl trace.jsonl --points", declare_agree},
      {"check", "half a minute of measuring against an existing calibration: what drifted?",
       "plimsoll calibrate check h200.json", declare_check},
  };
  return commands;
}

std::string footer_of(const Command& command) {
  std::string text = "Examples:\n  ";
  for (const char* c = command.examples; *c != 0; ++c) text += *c == '\n' ? std::string("\n  ") : std::string(1, *c);
  return text + "\n";
}

int usage_error(const std::string& message, const std::string& command) {
  fmt::print(stderr, "plimsoll-calibrate: {}\nTry: plimsoll calibrate {}{}--help\n", message, command,
             command.empty() ? "" : " ");
  return exit_code::usage;
}

}  // namespace

std::span<const Command> commands() { return table(); }

int run_program(int argc, char** argv) {
  CLI::App app(
      "Measures a machine, or reads what was measured on it, and fits the calibration that Plimsoll predicts with.");
  app.name("plimsoll calibrate");
  app.set_version_flag("--version", "plimsoll-calibrate " PLIMSOLL_VERSION);
  app.require_subcommand(1);
  std::map<std::string, std::function<int()>> runs;
  for (const Command& command : table()) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->footer(footer_of(command));
    runs[command.name] = command.declare(*sub);
  }
  app.footer("plimsoll calibrate COMMAND --help shows a command's options and examples.");
  const std::string first = argc > 1 ? argv[1] : "";
  if (!first.empty() && first.front() != '-' && !runs.contains(first)) {
    std::vector<std::string> names;
    for (const auto& [name, run] : runs) names.push_back(name);
    const auto near = nearest(first, names);
    return usage_error(
        fmt::format("there is no command {}{}", first, near ? fmt::format("; did you mean {}?", *near) : ""), "");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    finish_output();
    return code;
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what(), runs.contains(first) ? first : "");
  }
  const int code = runs.at(app.get_subcommands().front()->get_name())();
  finish_output();
  return code;
}

}  // namespace plimsoll::calibrate
