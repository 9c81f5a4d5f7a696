// The table of commands (calibrate/cli/commands.hpp).
#include "calibrate/cli/commands.hpp"

namespace plimsoll::calibrate {
namespace {

const std::vector<Command>& table() {
  static const std::vector<Command> commands = {
      {"probe", "what is here: devices, links, host, versions, as a cluster.json",
       "plimsoll calibrate probe -o cluster.json", declare_probe},
      {"bench", "measure kernels, copies, collectives, pairs of them and fixed costs",
       "plimsoll calibrate bench -o h200.jsonl --budget 120s\n"
       "plimsoll calibrate bench -o h200.jsonl --resume\n"
       "torchrun --nproc-per-node 8 --no-python -- plimsoll-calibrate bench -o node.jsonl\n"
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

}  // namespace

int run_program(int argc, char** argv) {
  const CommandLine line{
      "plimsoll calibrate",
      "plimsoll-calibrate",
      "plimsoll-calibrate " PLIMSOLL_VERSION,
      "Measures a machine, or reads what was measured on it, and fits the calibration that Plimsoll predicts with.",
      "Examples:\n"
      "  plimsoll calibrate bench -o mine.jsonl --budget 120s\n"
      "  plimsoll calibrate fit mine.jsonl -o mine.json\n"
      "  plimsoll simulate --model llama-3.1-8b --cluster 8xh200 --calibration mine.json\n"
      "  plimsoll calibrate check mine.json\n"
      "\nplimsoll calibrate COMMAND --help shows a command's options and examples.",
      {}};
  return run_commands(line, table(), argc, argv);
}

}  // namespace plimsoll::calibrate
