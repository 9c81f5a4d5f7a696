// plimsoll ledger: does it fit, by how much, what is every byte, and what would have to change?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/ledger_rows.hpp"
#include "planner/cli/remedy.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/step/checkpoint_files.hpp"

namespace plimsoll {
namespace {

constexpr int bar_cells = 40;

void print_verdict(const Inputs& inputs, const Evaluation& evaluation, const SmallestChange& change) {
  const Ledger& ledger = evaluation.ledger;
  if (ledger.breaks_on_host) {
    print(fmt::format("{}: {} of a node's host memory\n", paint(name_of(ledger.verdict), colour_of(ledger.verdict)),
                      of_in_words(ledger.host_per_node, ledger.host_capacity)));
  }
  print(fmt::format("{}: {}\n", paint(name_of(ledger.gpu_verdict), colour_of(ledger.gpu_verdict)),
                    room_in_words(ledger)));
  print(fmt::format("{}\n", scenario_in_words(evaluation.scenario)));
  if (ledger.verdict == Verdict::fits) return;
  print(fmt::format("{}\n", break_in_words(ledger)));
  print(change_in_words(inputs, ledger, change));
}

Colour colour_of_row(const LedgerRow& row, const Ledger& ledger) {
  switch (row.kind) {
    case LedgerRow::Kind::unused: return Colour::dim;
    case LedgerRow::Kind::allocated: return Colour::bold;
    case LedgerRow::Kind::device: return colour_of(ledger.gpu_verdict);
    case LedgerRow::Kind::category:
    case LedgerRow::Kind::outside: break;
  }
  return Colour::none;
}

void print_categories(const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  Table table({{""}, {"GiB", Align::right}, {"of card", Align::right}, {""}});
  for (const LedgerRow& row : rows_at_peak(ledger)) {
    if (row.kind == LedgerRow::Kind::category && row.bytes.count == 0) continue;
    table.row({row.name, gibibytes(row.bytes), share_in_words(row.bytes, ledger.capacity),
               paint(bar(row.bytes / ledger.capacity, bar_cells), colour_of_row(row, ledger))});
  }
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
  const std::optional<Bytes> alive = ledger.replay.alive_in_arena;
  if (alive && *alive < ledger.reserved_peak.value)
    print(fmt::format("  arena {} GiB, of which {} are alive at the peak\n", gibibytes(ledger.reserved_peak.value),
                      gibibytes(*alive)));
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
  print(fmt::format("\nHost memory of a node: {}, {}: {}\n", of_in_words(ledger.host_per_node, ledger.host_capacity),
                    counted(evaluation.context.ranks_per_node, "rank"),
                    paint(name_of(ledger.host_verdict), colour_of(ledger.host_verdict))));
  const std::vector<CheckpointFile> files = checkpoint_files(evaluation.scenario);
  Bytes total;
  for (const CheckpointFile& file : files) total += file.bytes;
  if (!files.empty())
    print(fmt::format("Saving writes {}, {} GiB\n", counted(std::ssize(files), "file"), gibibytes(total)));
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
  SmallestChange change;
  if (evaluation.ledger.verdict != Verdict::fits) change = smallest_change(*inputs, evaluation);
  if (options.json) {
    print(ledger_json(evaluation, change));
    return exit_code::ok;
  }
  print_verdict(*inputs, evaluation, change);
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
