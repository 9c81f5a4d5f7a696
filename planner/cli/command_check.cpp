// plimsoll check: is this configuration legal, and what does each key really do?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

Colour colour_of(Treatment treatment) {
  switch (treatment) {
    case Treatment::used: return Colour::green;
    case Treatment::ignored: return Colour::dim;
    case Treatment::warned: return Colour::yellow;
    case Treatment::rejected: return Colour::red;
  }
  return Colour::none;
}

void print_keys(const CheckReport& report) {
  Table table({{"key"}, {"treatment"}});
  for (const KeyVerdict& key : report.keys) {
    // A section says nothing that its keys do not say, unless it is dropped as a whole.
    const bool section = std::any_of(report.keys.begin(), report.keys.end(), [&](const KeyVerdict& other) {
      return other.pointer.size() > key.pointer.size() && other.pointer.rfind(key.pointer + "/", 0) == 0;
    });
    if (section && key.treatment == Treatment::used) continue;
    table.row({key.pointer, paint(name_of(key.treatment), colour_of(key.treatment))});
  }
  if (!table.empty()) print(fmt::format("\nKeys\n{}", table.text(2)));
}

void print_defaults(const CheckReport& report) {
  Table table({{"default taken"}, {"value"}});
  for (const auto& [key, value] : report.defaults) table.row({key, value});
  if (!table.empty()) print(fmt::format("\nDefaults\n{}", table.text(2)));
}

void print_parameters(const ModelSpec& model) {
  const ParameterCounts counts = count_parameters(model);
  Table table({{"parameters"}, {"", Align::right}});
  table.row({"total", format_count(counts.total)});
  table.row({"active (what one token passes, embedding and head included)", format_count(counts.active)});
  table.row({"active without the embedding", format_count(counts.active_without_embedding)});
  table.row({"active without embedding and head", format_count(counts.active_without_embedding_and_head)});
  table.row({"dense", format_count(counts.dense)});
  table.row({"expert", format_count(counts.expert)});
  print(fmt::format("\n{} ({})\n{}", model.name, model.family, table.text(2)));
  for (const std::string& assumption : model.assumptions) print(fmt::format("  {}\n", assumption));
}

void print_report(const Inputs& inputs) {
  const bool legal = !has_errors(inputs.diagnostics());
  const std::string counts = count_in_words(inputs.diagnostics());
  print(fmt::format("{}{}\n", legal ? paint("legal", Colour::green) : paint("not legal", Colour::red),
                    counts.empty() ? "" : ": " + counts));
  for (const Diagnostic& diagnostic : inputs.diagnostics())
    print(fmt::format("\n{}", format(diagnostic, colours(Stream::output))));
  print_keys(inputs.report());
  const bool plan_given =
      !inputs.options().plan.empty() || !inputs.options().ds.empty() || !inputs.options().sets.empty();
  if (plan_given) print_defaults(inputs.report());
  if (inputs.model()) print_parameters(*inputs.model());
}

int check(const InputOptions& options) {
  const Inputs inputs(options);
  if (options.json) {
    print(check_json(inputs));
  } else {
    print_report(inputs);
  }
  if (!has_errors(inputs.diagnostics())) return exit_code::ok;
  finish_output();
  fmt::print(stderr, "plimsoll check: {}\n", count_in_words(inputs.diagnostics()));
  return exit_code::input;
}

}  // namespace

std::function<int()> declare_check(CLI::App& app) {
  auto options = std::make_shared<InputOptions>();
  add_common_inputs(app, *options, {.scenario = false});
  return [options] { return check(*options); };
}

}  // namespace plimsoll
