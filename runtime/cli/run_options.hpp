// What does the command line of plimsoll-run say?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/core/backend.hpp"

namespace plimsoll {

struct RunOptions {
  std::string model, cluster, plan;
  std::vector<std::string> sets;
  std::string data = "synthetic", backend = "host";
  std::int64_t steps = 10, seed = 1;
  std::string log, trace;
  std::string checkpoints;            ///< folder; empty: none are written
  std::int64_t checkpoint_every = 0;  ///< steps; 0: after the last one
  bool resume = false;
  double timeout_s = 300;  ///< that ranks wait for each other
  Hyperparameters hyperparameters{3e-4, 0.9, 0.95, 1e-8, 0.1, 1};
};

/// The options; or the exit code, where --help or a mistake was printed.
struct ParsedOptions {
  std::optional<RunOptions> options;
  int exit_code = 0;
};
ParsedOptions parse_run_options(int argc, char** argv);

}  // namespace plimsoll
