// plimsoll explain: the step program as a listing; what is alive at the peak; the formula behind a number.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/explain_number.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/limits.hpp"
#include "planner/step/listing.hpp"

namespace plimsoll {
namespace {

struct ExplainOptions {
  InputOptions inputs;
  bool peak = false;
  std::string number;
  ListingFilter filter;
  std::optional<int> layer;
  bool no_memory = false;
};

std::string layers_in_words(const Term& term) {
  if (term.last_layer < 0) return {};
  return term.first_layer == term.last_layer ? fmt::format("{}", term.last_layer)
                                             : fmt::format("{} to {}", std::max(0, term.first_layer), term.last_layer);
}

void print_number(const Evaluation& evaluation, const ExplainedNumber& number) {
  const bool bytes = number.unit == "B";
  const std::string sum = format_count(number.value);
  print(fmt::format("{} = {}{}\n{}\n{}\n\n", number.name,
                    bytes ? fmt::format("{} B = {} GiB", sum, gibibytes(Bytes(number.value))) : sum,
                    bytes ? "" : " " + number.unit, number.formula, scenario_in_words(evaluation.scenario)));
  Table table(
      {{bytes ? "GiB" : "count", Align::right}, {"", Align::right}, {"name"}, {"category"}, {"layers"}, {"of each"}});
  for (const Term& term : number.terms)
    table.row({bytes ? gibibytes(Bytes(term.value)) : format_count(term.value),
               term.count == 1 ? "" : fmt::format("{} x", term.count), term.name, term.category, layers_in_words(term),
               term.formula});
  print(table.text());
}

/// What is wrong with the choice of a part of the listing.
Diagnostics wrong_choice(const Evaluation& evaluation, const ExplainOptions& options) {
  Diagnostics wrong;
  std::vector<std::string> names;
  for (const PhaseSpan& span : evaluation.rank_program().phases) names.emplace_back(span.name);
  const std::string& phase = options.filter.phase;
  if (!phase.empty() && std::find(names.begin(), names.end(), phase) == names.end()) {
    const auto near = nearest(phase, names);
    wrong.push_back(make_error(
        "cli.phase", fmt::format("there is no phase {}", phase),
        fmt::format("{}phases: {}", near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(names, ", "))));
  }
  const int layers = static_cast<int>(evaluation.scenario.model.layers.size());
  if (options.layer && *options.layer >= layers)
    wrong.push_back(make_error("cli.layer", fmt::format("there is no layer {}", *options.layer),
                               fmt::format("0 to {}", layers - 1)));
  return wrong;
}

int explain_terms(const ExplainOptions& options, const Evaluation& evaluation) {
  Result<ExplainedNumber> number = options.peak ? Result(explain_peak(evaluation, Bytes(std::int64_t{1} << 20)))
                                                : explain_number(evaluation, options.number);
  if (!number) return refuse(number.diagnostics(), options.inputs.json);
  if (options.inputs.json) {
    print(explain_json(evaluation, *number));
  } else {
    print_number(evaluation, *number);
  }
  return exit_code::ok;
}

int explain(const ExplainOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  if (options.peak || !options.number.empty())
    return explain_terms(options, evaluate(inputs->scenario(), inputs->rank()));
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  if (const Diagnostics wrong = wrong_choice(evaluation, options); !wrong.empty())
    return refuse(wrong, options.inputs.json);
  ListingFilter filter = options.filter;
  filter.layer = options.layer;
  filter.memory = !options.no_memory;
  const std::string listing = list_program(evaluation.program, evaluation.program.classes.front(), filter);
  print(options.inputs.json ? listing_json(evaluation, listing) : listing);
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  add_common_inputs(app, options->inputs, {.rank = true});
  auto* peak = app.add_flag("--peak", options->peak, "what is alive at the peak of a steady step");
  app.add_option("--number", options->number,
                 "the formula behind a number of the ledger's JSON, or per_gpu_bytes_per_step of volumes'")
      ->type_name("NAME")
      ->excludes(peak);
  app.add_option("--phase", options->filter.phase, "list this phase only, e.g. steady_backward");
  app.add_option("--layer", options->layer, "list this decoder layer only")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, limits::layers));
  app.add_flag("--no-memory", options->no_memory, "leave allocations and frees out of the listing");
  return [options] { return explain(*options); };
}

}  // namespace plimsoll
