// One rank's run: initial state or checkpoint, steps, log, checkpoints.
#pragma once

#include <functional>

#include "planner/spec/scenario.hpp"
#include "runtime/cli/run_options.hpp"
#include "runtime/cli/token_source.hpp"
#include "runtime/host/transport.hpp"

namespace plimsoll {

/// What the ranks of this process share.
struct Run {
  const RunOptions& options;
  const Scenario& scenario;
  const TokenSource& tokens;
  std::vector<std::vector<MeasuredOp>> measured;  ///< by rank of this process: the last step's ops
  /// Told by a rank that cannot go on, before it gives its memory back: on a device that may take for ever.
  std::function<void(Transport& rank, const std::string& why)> failed;
};

/// @return the exit code; errors of the input are printed by rank 0; 3 after `failed`
int train(Run& run, Transport& transport);

/// The whole program after parsing.  @throws MachineError
int run_job(const RunOptions& options);

}  // namespace plimsoll
