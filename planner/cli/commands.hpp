// Which commands does the program have?  A table: to add one, write its file and add its line in commands.cpp.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's name
class App;
}

namespace plimsoll {

/// What the program returns.
namespace exit_code {
inline constexpr int ok = 0;
inline constexpr int input = 1;  ///< the input has errors
inline constexpr int usage = 2;
inline constexpr int machine = 3;  ///< a file missing or unreadable, no device, a full disk
inline constexpr int no_plan = 4;  ///< asked for a plan and none fits
inline constexpr int beyond = 5;   ///< a comparison is beyond its --within
}  // namespace exit_code

/// The end of a command whose input has errors: prints them, under --json also as an object on standard output.
/// @return exit_code::input
int refuse(const Diagnostics& diagnostics, bool json);

/// The end of a command whose options make no sense together: says so.
/// @return exit_code::usage
int refuse_usage(const char* command, const std::string& message);

/// The check of an option that takes a finite number from `least` to `most`: what is wrong with a text, in words.
std::function<std::string(std::string)> number_from(double least, double most);

struct Command {
  const char* name;
  const char* summary;   ///< one line
  const char* examples;  ///< lines that a person can copy
  /// Declares the options; what it returns runs after they are parsed, and gives the exit code.
  std::function<int()> (*declare)(CLI::App& app);
};

// One a file: planner/cli/command_<name>.cpp.
std::function<int()> declare_check(CLI::App& app);
std::function<int()> declare_ledger(CLI::App& app);
std::function<int()> declare_volumes(CLI::App& app);
std::function<int()> declare_simulate(CLI::App& app);
std::function<int()> declare_explain(CLI::App& app);
std::function<int()> declare_max(CLI::App& app);
std::function<int()> declare_need(CLI::App& app);
std::function<int()> declare_recommend(CLI::App& app);
std::function<int()> declare_diff(CLI::App& app);
std::function<int()> declare_sweep(CLI::App& app);
std::function<int()> declare_validate(CLI::App& app);
std::function<int()> declare_compare(CLI::App& app);
std::function<int()> declare_oom(CLI::App& app);

/// What a program of commands says of itself.
struct CommandLine {
  const char* call;     ///< how a user starts it: "plimsoll calibrate"
  const char* file;     ///< before its messages: "plimsoll-calibrate"
  const char* version;  ///< a line
  const char* summary;
  std::string footer;               ///< of its help
  std::vector<std::string> others;  ///< further names that may stand where a command stands, for "did you mean"
};

/// Parses the command line, runs the command that it names, and returns the exit code.
/// @throws MachineError
int run_commands(const CommandLine& line, std::span<const Command> commands, int argc, char** argv);

/// plimsoll: its commands and the sibling programs.
/// @throws MachineError
int run_program(int argc, char** argv);

}  // namespace plimsoll
