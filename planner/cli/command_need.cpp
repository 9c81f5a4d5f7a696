// plimsoll need: how many GPUs of each kind does it take, and with which plan?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/need_search.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/devices.hpp"

namespace plimsoll {
namespace {

struct NeedOptions {
  InputOptions inputs;
  std::vector<std::string> devices;
};

/// One device type: those inputs on a cluster of it.
/// @param told what was said of other devices, which is not said again
std::optional<NeedAnswer> answer(InputOptions options, std::set<std::string>& told) {
  options.any_world = true;
  const Inputs inputs(options);
  if (has_errors(inputs.diagnostics())) {
    refuse(inputs.diagnostics(), options.json);
    return std::nullopt;
  }
  Diagnostics news = inputs.diagnostics();
  std::erase_if(news, [&](const Diagnostic& diagnostic) { return !told.insert(format(diagnostic)).second; });
  print_diagnostics(news);
  return find_need(inputs);
}

void add_rows(const std::string& name, const Need& need, Table& table) {
  const auto row = [&](const std::string& first, const Evaluation& evaluation) {
    const Ledger& ledger = evaluation.ledger;
    table.row({first, fmt::format("{}", evaluation.scenario.plan.world_size),
               paint(name_of(ledger.verdict), colour_of(ledger.verdict)), gibibytes(ledger.margin),
               scenario_in_words(evaluation.scenario)});
  };
  row(name, need.fewest);
  const auto world = [](const std::optional<Evaluation>& one) { return one ? one->scenario.plan.world_size : 0; };
  if (need.with_room && world(need.with_room) != world(need.in_whole_nodes)) row("  with room", *need.with_room);
  if (need.in_whole_nodes) row("  in whole nodes", *need.in_whole_nodes);
}

/// What to rent, where the fewest GPUs are not all of their nodes.
std::string rented(const std::string& device, const char* how, const std::optional<Need>& need) {
  if (!need || !need->in_whole_nodes) return "";
  const Scenario& whole = need->in_whole_nodes->scenario;
  return fmt::format("{} {} hold it{}; where nodes of {} are rented whole, {} of them do, {} GPUs.\n",
                     need->fewest.scenario.plan.world_size, device, how, whole.cluster.devices_per_node,
                     whole.plan.world_size / whole.cluster.devices_per_node, whole.plan.world_size);
}

/// What was tried where a global batch is stated.
std::string of_a_batch(const NeedAnswer& answer) {
  if (answer.global_batch == 0) return "";
  return wrap(fmt::format(
                  "The global batch of {} stays, by accumulation: only numbers of GPUs that divide it were tried: {}.",
                  format_count(answer.global_batch), fmt::join(answer.divisors, ", ")),
              118, 2) +
         "\n";
}

bool is_tight(const std::optional<Need>& need) { return need && need->fewest.ledger.verdict == Verdict::tight; }

void print_answers(const std::vector<NeedAnswer>& answers) {
  Table table({{"device"}, {"GPUs", Align::right}, {"verdict"}, {"margin, GiB", Align::right}, {"plan"}});
  std::string to_rent;
  bool tight = false;
  for (const NeedAnswer& answer : answers) {
    tight = tight || is_tight(answer.smallest) || is_tight(answer.without_offload);
    if (!answer.smallest) {
      table.row({answer.device, "-", paint("none", Colour::red), "", "no number of GPUs that was tried runs it"});
      continue;
    }
    add_rows(answer.device, *answer.smallest, table);
    if (answer.without_offload) add_rows("  without offload", *answer.without_offload, table);
    to_rent +=
        rented(answer.device, "", answer.smallest) + rented(answer.device, " without offload", answer.without_offload);
  }
  if (tight)
    to_rent +=
        "Tight counts as running, near the end of the memory; with a margin below 0 the allocator must give back "
        "blocks "
        "that it keeps.\n";
  print(table.text() + to_rent + of_a_batch(answers.front()));
}

Diagnostics unknown(const std::vector<std::string>& devices) {
  Diagnostics wrong;
  for (const std::string& device : devices) {
    if (find_server(device) != nullptr) continue;
    const std::vector<std::string> meant = devices_like(device);
    wrong.push_back(make_error(
        "cli.device", fmt::format("the device {} is not known", device),
        fmt::format("{}known: {}", meant.empty() ? "" : fmt::format("did you mean {}? ", fmt::join(meant, " or ")),
                    fmt::join(device_names(), ", "))));
  }
  return wrong;
}

int need(const NeedOptions& options) {
  if (const Diagnostics wrong = unknown(options.devices); !wrong.empty()) return refuse(wrong, options.inputs.json);
  std::vector<NeedAnswer> answers;
  std::set<std::string> told;
  if (!options.inputs.cluster.empty()) {
    auto one = answer(options.inputs, told);
    if (!one) return exit_code::input;
    answers.push_back(std::move(*one));
  } else {
    for (const std::string& device : options.devices.empty() ? device_names() : options.devices) {
      InputOptions inputs = options.inputs;
      inputs.cluster = "1x" + device;
      auto one = answer(inputs, told);
      if (!one) return exit_code::input;
      answers.push_back(std::move(*one));
    }
  }
  if (options.inputs.json) {
    print(need_json(answers));
  } else {
    print_answers(answers);
  }
  const bool any =
      std::any_of(answers.begin(), answers.end(), [](const NeedAnswer& a) { return a.smallest.has_value(); });
  if (any) return exit_code::ok;
  finish_output();
  fmt::print(stderr, "plimsoll need: no number of GPUs that was tried runs it\n");
  return exit_code::no_plan;
}

}  // namespace

std::function<int()> declare_need(CLI::App& app) {
  auto options = std::make_shared<NeedOptions>();
  add_common_inputs(app, options->inputs, {.scenario = false});
  app.get_option("--model")->required();
  app.add_option("--device", options->devices,
                 "device types to answer for, e.g. h100,h200; default: all that are known")
      ->delimiter(',')
      ->excludes(app.get_option("--cluster"));
  return [options] { return need(*options); };
}

}  // namespace plimsoll
