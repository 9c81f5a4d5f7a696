// plimsoll diff: two plans for the same model and cluster, term by term: memory at the peak, bytes on the wire, time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "planner/account/volume.hpp"
#include "planner/account/work.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
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

using Terms = std::vector<DiffTerm>;

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

double number(Bytes bytes) { return static_cast<double>(bytes.count); }

Terms memory_terms(const Ledger& a, const Ledger& b) {
  Terms terms;
  for (int i = 0; i < category_count; ++i) {
    const auto c = static_cast<std::size_t>(i);
    terms.push_back({name_of(static_cast<Category>(i)), number(a.replay.categories_at_peak[c]),
                     number(b.replay.categories_at_peak[c])});
  }
  const auto add = [&](const char* name, Bytes of_a, Bytes of_b) {
    terms.push_back({name, number(of_a), number(of_b)});
  };
  add("allocator_slack", a.replay.slack_at_peak, b.replay.slack_at_peak);
  add("allocated peak", a.allocated_peak.value, b.allocated_peak.value);
  add("reserved peak", a.reserved_peak.value, b.reserved_peak.value);
  add("outside the framework", a.outside.total(), b.outside.total());
  add("device peak", a.device_peak.value, b.device_peak.value);
  add("device peak of the job", a.job_device_peak.value, b.job_device_peak.value);
  add("margin", a.margin, b.margin);
  add("resident between steps", a.replay.resident, b.replay.resident);
  add("host memory of a node", a.host_per_node, b.host_per_node);
  return terms;
}

Terms volume_terms(const Evaluation& a, const Evaluation& b) {
  std::map<std::string, DiffTerm> sums;
  const auto sum_up = [&](const Evaluation& side, double DiffTerm::*member) {
    for (const VolumeRow& row : account_volume(side.program, side.rank_program(), side.scenario.cluster).rows) {
      const std::string name = fmt::format("{} {} {}", row.kind, row.group, name_of(row.tier));
      DiffTerm& term = sums[name];
      term.name = name;
      term.*member += number(row.wire);
    }
  };
  sum_up(a, &DiffTerm::a);
  sum_up(b, &DiffTerm::b);
  Terms terms;
  for (auto& [name, term] : sums) terms.push_back(std::move(term));
  return terms;
}

Terms time_terms(const Evaluation& a, const Evaluation& b) {
  const Work of_a = account_work(a.program, a.rank_program(), a.scenario.cluster);
  const Work of_b = account_work(b.program, b.rank_program(), b.scenario.cluster);
  const auto tokens = [](const Evaluation& side, const Work& work) {
    return static_cast<double>(side.program.tokens_per_step_per_rank) / work.lower_bound.count;
  };
  return {{"compute at peak rates, s", of_a.compute_bound.count, of_b.compute_bound.count},
          {"communication at peak rates, s", of_a.communication_bound.count, of_b.communication_bound.count},
          {"step at least, s", of_a.lower_bound.count, of_b.lower_bound.count},
          {"tokens/s a GPU at most", tokens(a, of_a), tokens(b, of_b)},
          {"kernel launches", static_cast<double>(of_a.launches), static_cast<double>(of_b.launches)}};
}

/// @param divisor 2^30 for bytes in GiB, 0 for figures in their own unit
std::string table_of(const char* title, const Terms& terms, double divisor) {
  Table table({{title}, {"A", Align::right}, {"B", Align::right}, {"B - A", Align::right}, {"", Align::right}});
  for (const DiffTerm& term : terms) {
    if (term.a == 0 && term.b == 0) continue;
    const double difference = term.b - term.a;
    const std::string share = term.a != 0 ? fmt::format("{:+.1f} %", 100 * difference / std::abs(term.a)) : "";
    if (divisor > 0) {
      table.row({term.name, fmt::format("{:.2f}", term.a / divisor), fmt::format("{:.2f}", term.b / divisor),
                 fmt::format("{:+.2f}", difference / divisor), share});
    } else {
      table.row({term.name, fmt::format("{:.4g}", term.a), fmt::format("{:.4g}", term.b),
                 fmt::format("{:+.4g}", difference), share});
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
  const Evaluation of_a = evaluate(a->scenario(), a->rank()), of_b = evaluate(b->scenario(), b->rank());
  const Terms memory = memory_terms(of_a.ledger, of_b.ledger), volumes = volume_terms(of_a, of_b),
              time = time_terms(of_a, of_b);
  if (options.inputs.json) {
    print(diff_json(of_a, of_b, memory, volumes, time));
    return exit_code::ok;
  }
  print_side("A", of_a);
  print_side("B", of_b);
  print(table_of("memory at the peak, GiB", memory, double{1 << 30}));
  print(table_of("sent by one GPU in a step, GiB", volumes, double{1 << 30}));
  print(table_of("time (lower bounds from peak rates)", time, 0));
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
