// Which commands does plimsoll-calibrate have?  As in planner/cli/commands.hpp: a table, one file a command.
#pragma once

#include "planner/cli/commands.hpp"

namespace plimsoll::calibrate {

std::function<int()> declare_probe(CLI::App& app);
std::function<int()> declare_bench(CLI::App& app);
std::function<int()> declare_fit(CLI::App& app);
std::function<int()> declare_report(CLI::App& app);
std::function<int()> declare_import(CLI::App& app);
std::function<int()> declare_check(CLI::App& app);
std::function<int()> declare_agree(CLI::App& app);

/// Parses the command line, runs the command, and returns the exit code.  @throws MachineError
int run_program(int argc, char** argv);

}  // namespace plimsoll::calibrate
