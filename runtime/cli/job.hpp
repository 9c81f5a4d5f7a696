// What is to be run?  The files of the command line as a checked scenario, the program of each rank, and whether its arena
// fits, before anything is allocated.
#pragma once

#include <optional>

#include "planner/account/arena.hpp"
#include "planner/spec/scenario.hpp"
#include "runtime/cli/run_options.hpp"

namespace plimsoll {

/// The scenario; none if the inputs have errors, which are printed.  @throws MachineError if a file cannot be read
std::optional<Scenario> load_job(const RunOptions& options);

/// True if every rank's arena fits the device, and on the host backend the host's memory; else prints the ledger.
/// @param processes ranks that are threads of this process
bool fits(const Scenario& scenario, const StepProgram& program, const ArenaPlan& arena, bool on_host, int processes);

/// Bytes alive by category when most is alive, largest first, a line each.
std::string ledger_in_words(const RankProgram& rank, const ArenaPlan& arena);

}  // namespace plimsoll
