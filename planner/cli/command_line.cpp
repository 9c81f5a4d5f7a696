// From a command line to the command that it names (planner/cli/commands.hpp): for every program that has commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

std::string footer_of(const Command& command) {
  std::string text = "Examples:\n";
  std::string_view lines = command.examples;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    text += fmt::format("  {}\n", lines.substr(0, end));
    lines.remove_prefix(std::min(lines.size(), end + 1));
  }
  return text;
}

int usage_error(const CommandLine& line, const std::string& message, const std::string& command) {
  fmt::print(stderr, "{}: {}\nTry: {} {}{}--help\n", line.file, message, line.call, command,
             command.empty() ? "" : " ");
  return exit_code::usage;
}

int unknown_command(const CommandLine& line, std::span<const Command> commands, const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  names.insert(names.end(), line.others.begin(), line.others.end());
  const auto near = nearest(name, names);
  return usage_error(
      line, fmt::format("there is no command {}{}", name, near ? fmt::format("; did you mean {}?", *near) : ""), "");
}

/// What is wrong with a command line that the library refuses, in words: an option that there is not comes before one that is
/// missing, which it was meant to be.
std::string refusal_of(const CLI::App& command, const CLI::ParseError& error, std::span<char*> arguments) {
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const std::string argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || name.size() == 2 || command.get_allow_extras()) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto near = nearest(name, known);
    return fmt::format("there is no option {}{}", name, near ? fmt::format("; did you mean {}?", *near) : "");
  }
  const std::vector<std::string> extras = command.remaining();
  const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  return error.what() + (lacks && !extras.empty() ? fmt::format(", and {} is not expected", extras.front()) : "");
}

}  // namespace

int run_commands(const CommandLine& line, std::span<const Command> commands, int argc, char** argv) {
  CLI::App app(line.summary);
  app.name(line.call);
  app.set_version_flag("--version", line.version);
  app.require_subcommand(1);
  app.footer(line.footer);
  std::map<std::string, std::function<int()>> runs;
  for (const Command& command : commands) {
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->footer(footer_of(command));
    runs[command.name] = command.declare(*sub);
  }
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) {
    std::vector<std::string> names;
    for (const Command& command : commands) names.emplace_back(command.name);
    return usage_error(line, fmt::format("which command? {}", fmt::join(names, ", ")), "");
  }
  if (first.front() != '-' && !runs.contains(first)) return unknown_command(line, commands, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    finish_output();
    return code;
  } catch (const CLI::ParseError& error) {
    const std::string asked = runs.contains(first) ? first : "";
    const CLI::App& command = asked.empty() ? app : *app.get_subcommand(asked);
    const std::span<char*> arguments(argv + 1, static_cast<std::size_t>(argc - 1));
    return usage_error(line, refusal_of(command, error, arguments), asked);
  }
  const CLI::App& command = *app.get_subcommands().front();
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (!option->get_lnames().empty() && std::find(values.begin(), values.end(), "") != values.end())
      return usage_error(line, fmt::format("{} is empty", option->get_name()), first);
  }
  try {
    const int code = runs.at(command.get_name())();
    finish_output();
    return code;
  } catch (const MachineError& error) {
    const CLI::Option* json = command.get_option_no_throw("--json");
    if (json != nullptr && json->count() > 0 && !has_printed())
      print(diagnostics_json({make_error("machine", error.what())}));
    throw;
  }
}

}  // namespace plimsoll
