// plimsoll diff: two plans for the same model and cluster, term by term: memory at the peak, bytes on the wire, time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/diff_terms.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

struct DiffOptions {
  InputOptions inputs;
  std::string a, b;
};

/// A ds_config.json has keys that no plan.json has.
bool looks_like_ds_config(const std::string& path) {
  const auto document = parse_document(load_source(path), Syntax::hjson);
  if (!document) return false;
  static constexpr std::array keys = {"zero_optimization",
                                      "train_batch_size",
                                      "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps",
                                      "bf16",
                                      "fp16"};
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return document->root().find(key) != nullptr; });
}

std::optional<Inputs> load_side(InputOptions options, const std::string& path) {
  (looks_like_ds_config(path) ? options.ds : options.plan) = path;
  return load_scenario(options);
}

/// A signed figure with so many decimals; what rounds to nothing has no minus.
std::string change(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return fmt::format("{:+.{}f}", std::round(value * scale) / scale + 0.0, decimals);
}

/// What the tables' two decimals show as more than nothing.
constexpr double least_shown = 0.005;

/// @param divisor 2^30 for bytes in GiB, 0 for figures in their own unit
std::string table_of(const char* title, const DiffTerms& terms, double divisor) {
  Table table({{title}, {"A", Align::right}, {"B", Align::right}, {"B - A", Align::right}, {"", Align::right}});
  for (const DiffTerm& term : terms) {
    if (term.a == 0 && term.b == 0) continue;
    const double difference = term.b - term.a;
    if (divisor > 0) {
      const std::string share = change_in_words(term, least_shown * divisor);
      table.row({term.name, fmt::format("{:.2f}", term.a / divisor), fmt::format("{:.2f}", term.b / divisor),
                 change(difference / divisor, 2), share});
    } else {
      const std::string share = change_in_words(term, 1e-3 * std::max(std::abs(term.a), std::abs(term.b)));
      table.row({name_in_words(term), figure_in_words(term, term.a), figure_in_words(term, term.b),
                 (difference < 0 ? "-" : "+") + figure_in_words(term, std::abs(difference)), share});
    }
  }
  return "\n" + table.text();
}

void print_side(const char* name, const Evaluation& side) {
  print(fmt::format("{}  {}, margin {} GiB: {}\n", name,
                    paint(name_of(side.ledger.verdict), colour_of(side.ledger.verdict)), gibibytes(side.ledger.margin),
                    scenario_in_words(side.scenario)));
}

int diff(const DiffOptions& options) {
  const std::optional<Inputs> a = load_side(options.inputs, options.a);
  const std::optional<Inputs> b = load_side(options.inputs, options.b);
  if (!a || !b) return exit_code::input;
  const auto prices_of_a = a->prices();
  const auto prices_of_b = b->prices();
  if (!prices_of_a) return refuse(prices_of_a.diagnostics(), options.inputs.json);
  if (!prices_of_b) return refuse(prices_of_b.diagnostics(), options.inputs.json);
  print_diagnostics(prices_of_a.diagnostics());
  const Evaluation of_a = evaluate(a->scenario(), a->rank()), of_b = evaluate(b->scenario(), b->rank());
  const DiffTerms memory = memory_terms(of_a.ledger, of_b.ledger), volumes = volume_terms(of_a, of_b),
                  time = time_terms(of_a, of_b, *prices_of_a, *prices_of_b);
  if (options.inputs.json) {
    print(diff_json(of_a, of_b, memory, volumes, time));
    return exit_code::ok;
  }
  print_side("A", of_a);
  print_side("B", of_b);
  print(table_of("memory at the peak, GiB", memory, double{1 << 30}));
  print(table_of("sent by one GPU in a step, GiB", volumes, double{1 << 30}));
  print(table_of("simulated step", time, 0));
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_diff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  app.add_option("A", options->a, "a plan.json or ds_config.json")->required();
  app.add_option("B", options->b, "another")->required();
  add_common_inputs(app, options->inputs, {.plan = false, .rank = true});
  return [options] { return diff(*options); };
}

}  // namespace plimsoll
