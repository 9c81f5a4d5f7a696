// plimsoll ledger: does it fit, by how much, what is every byte, and what would have to change?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/remedy.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/step/checkpoint_files.hpp"

namespace plimsoll {
namespace {

constexpr int bar_cells = 40;

std::string share_of(Bytes part, Bytes whole) {
  return whole.count > 0 ? fmt::format("{:.1f} %", 100 * (part / whole)) : std::string();
}

void print_verdict(const Evaluation& evaluation, const std::optional<Remedy>& remedy) {
  const Ledger& ledger = evaluation.ledger;
  const bool host = ledger.breaks_on_host;
  print(fmt::format("{}: {} of {} GiB on the device, margin {} GiB ({})\n",
                    paint(name_of(ledger.verdict), colour_of(ledger.verdict)), gibibytes(ledger.job_device_peak.value),
                    gibibytes(ledger.capacity), gibibytes(ledger.margin), share_of(ledger.margin, ledger.capacity)));
  print(fmt::format("{}\n", scenario_in_words(evaluation.scenario)));
  if (ledger.verdict == Verdict::fits) return;
  print(fmt::format("{} in {}: {}\n", host ? "The host's memory is short" : "The device's memory is short",
                    ledger.breaks_phase, ledger.breaks_tensor));
  if (!remedy) {
    print("No single change of micro-batch, recompute, stage, ep, offload or GPUs makes it fit.\n");
    return;
  }
  std::string sets;
  for (const std::string& set : remedy->sets) sets += " --set " + set;
  print(fmt::format("Smallest change with which it {}:{} (margin {} GiB)\n",
                    remedy->verdict == Verdict::fits ? "fits" : "is tight", paint(sets, Colour::bold),
                    gibibytes(remedy->margin)));
}

void print_categories(const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  Table table({{""}, {"GiB", Align::right}, {"of card", Align::right}, {""}});
  const auto row = [&](const std::string& name, Bytes bytes, Colour colour) {
    table.row({name, gibibytes(bytes), share_of(bytes, ledger.capacity),
               paint(bar(bytes / ledger.capacity, bar_cells), colour)});
  };
  Bytes sum;
  for (int i = 0; i < category_count; ++i) {
    const Bytes bytes = ledger.replay.categories_at_peak[static_cast<std::size_t>(i)];
    sum += bytes;
    if (bytes.count > 0) row(name_of(static_cast<Category>(i)), bytes, Colour::none);
  }
  row("allocator_slack", ledger.replay.slack_at_peak, Colour::dim);
  row("allocated at the peak", ledger.allocated_peak.value, Colour::bold);
  row("reserved but not in use then", ledger.reserved_peak.value - ledger.allocated_peak.value, Colour::dim);
  row("CUDA context and kernels", ledger.outside.context, Colour::none);
  row("NCCL", ledger.outside.nccl, Colour::none);
  row("engine's libraries", ledger.outside.libraries, Colour::none);
  row("device peak", ledger.device_peak.value, colour_of(ledger.gpu_verdict));
  print(fmt::format("\nRank {} at the peak of a steady step: {}, {}\n{}", evaluation.rank, ledger.peak_phase,
                    peak_op_in_words(evaluation), table.text(2)));
}

void print_figures(const Ledger& ledger) {
  Table table({{"figure"}, {"GiB", Align::right}, {"between"}, {"evidence"}});
  const auto row = [&](const std::string& name, const Figure& figure) {
    table.row({name, gibibytes(figure.value),
               fmt::format("{} and {}", gibibytes(figure.interval.low), gibibytes(figure.interval.high)),
               name_of(figure.evidence)});
  };
  row("allocated peak", ledger.allocated_peak);
  row("reserved peak", ledger.reserved_peak);
  row("device peak", ledger.device_peak);
  row(fmt::format("device peak of the job ({})", ledger.job_peak_phase), ledger.job_device_peak);
  table.row({"resident between steps", gibibytes(ledger.replay.resident)});
  print(fmt::format("\n{}", table.text(2)));
}

void print_phases(const Ledger& ledger) {
  Table table({{"phase"},
               {"allocated end", Align::right},
               {"peak", Align::right},
               {"reserved end", Align::right},
               {"host end", Align::right},
               {"peak", Align::right},
               {"pinned", Align::right}});
  for (std::size_t i = 0; i < ledger.replay.phases.size(); ++i) {
    const PhaseMemory& phase = ledger.replay.phases[i];
    const HostPhase& host = ledger.host[i];
    table.row({phase.name, gibibytes(phase.allocated_end), gibibytes(phase.allocated_peak),
               gibibytes(phase.reserved_end), gibibytes(host.resident_end), gibibytes(host.resident_peak),
               gibibytes(host.pinned)});
  }
  print(fmt::format("\nPhases, GiB a rank\n{}", table.text(2)));
}

void print_rest(const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  print(fmt::format("\nHost memory of a node: {} of {} GiB, {} ranks: {}\n", gibibytes(ledger.host_per_node),
                    gibibytes(ledger.host_capacity), evaluation.context.ranks_per_node,
                    paint(name_of(ledger.host_verdict), colour_of(ledger.host_verdict))));
  const std::vector<CheckpointFile> files = checkpoint_files(evaluation.scenario);
  Bytes total;
  for (const CheckpointFile& file : files) total += file.bytes;
  if (!files.empty()) print(fmt::format("Saving writes {} files, {} GiB\n", files.size(), gibibytes(total)));
  const ParameterCounts counts = parameters_of(evaluation.scenario);
  print(fmt::format("Parameters: {}, {} of them active a token; dense {}, experts {}\n", format_count(counts.total),
                    format_count(counts.active), format_count(counts.dense), format_count(counts.expert)));
  for (const std::string& note : notes_on(evaluation.scenario)) print(fmt::format("{}\n", wrap(note, 118, 2)));
  print("\nRests on\n");
  Table table({{""}, {""}});
  for (const Assumption& assumption : assumptions_of(evaluation.scenario, evaluation.context))
    table.row({name_of(assumption.evidence), assumption.what});
  print(table.text(2));
  print(fmt::format("\ndigest {}\n", evaluation.program.digest));
}

int ledger(const InputOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options);
  if (!inputs) return exit_code::input;
  const Evaluation evaluation = evaluate(inputs->scenario(), inputs->rank());
  std::optional<Remedy> remedy;
  if (evaluation.ledger.verdict != Verdict::fits) remedy = smallest_change(*inputs, evaluation);
  if (options.json) {
    print(ledger_json(evaluation, remedy));
    return exit_code::ok;
  }
  print_verdict(evaluation, remedy);
  print_categories(evaluation);
  print_figures(evaluation.ledger);
  print_phases(evaluation.ledger);
  print_rest(evaluation);
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_ledger(CLI::App& app) {
  auto options = std::make_shared<InputOptions>();
  add_common_inputs(app, *options, {.rank = true});
  return [options] { return ledger(*options); };
}

}  // namespace plimsoll
