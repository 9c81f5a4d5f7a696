// From a command line to the command that it names (planner/cli/commands.hpp): for every program that has commands.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
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
  if (!first.empty() && first.front() != '-' && !runs.contains(first)) return unknown_command(line, commands, first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    finish_output();
    return code;
  } catch (const CLI::ParseError& error) {
    return usage_error(line, error.what(), runs.contains(first) ? first : "");
  }
  const int code = runs.at(app.get_subcommands().front()->get_name())();
  finish_output();
  return code;
}

}  // namespace plimsoll
