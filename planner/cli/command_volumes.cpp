// plimsoll volumes: what crosses which link in one optimizer step?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/cli/volume_sums.hpp"

namespace plimsoll {
namespace {

constexpr int bar_cells = 30;

void print_tiers(const CommVolume& volume, const ClusterSpec& cluster) {
  Table table({{"tier"}, {"GiB a step", Align::right}, {"alone", Align::right}, {""}});
  for (const TierLoad& load : loads_of(volume, cluster)) {
    table.row({name_of(load.tier), gibibytes(load.wire), load.alone.count > 0 ? format(load.alone) : std::string(),
               bar(load.wire / volume.per_gpu, bar_cells)});
  }
  print(fmt::format("\n{}", table.text(2)));
}

void print_volumes(const Evaluation& evaluation, const CommVolume& volume) {
  Bytes host;
  for (const VolumeRow& row : volume.rows)
    if (row.tier == Tier::host) host += row.wire;
  print(fmt::format("{} GiB sent by one GPU in an optimizer step{}\n{}\n",
                    paint(gibibytes(volume.per_gpu), Colour::bold),
                    host.count > 0 ? fmt::format(", {} of them to and from its host", gibibytes(host)) : "",
                    scenario_in_words(evaluation.scenario)));
  if (volume.rows.empty()) return;
  print_tiers(volume, evaluation.scenario.cluster);
  Table table({{"collective"},
               {"group"},
               {"phase"},
               {"tier"},
               {"dtype"},
               {"calls", Align::right},
               {"size of one", Align::right},
               {"GiB sent", Align::right}});
  for (const VolumeSum& sum : sums_of(volume)) {
    const std::string size =
        sum.least == sum.most ? format(sum.most) : fmt::format("{} to {}", format(sum.least), format(sum.most));
    table.row({sum.row.kind, sum.row.group, sum.row.phase, name_of(sum.row.tier), name_of(sum.row.dtype),
               format_count(sum.row.calls), size, gibibytes(sum.row.wire)});
  }
  print(fmt::format("\n{}\ndigest {}\n", table.text(2), evaluation.program.digest));
}

int volumes(const InputOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options);
  if (!inputs) return exit_code::input;
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  const CommVolume volume = account_volume(evaluation.program, evaluation.rank_program(), evaluation.scenario.cluster);
  if (options.json) {
    print(volumes_json(evaluation, volume));
  } else {
    print_volumes(evaluation, volume);
  }
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_volumes(CLI::App& app) {
  auto options = std::make_shared<InputOptions>();
  add_common_inputs(app, *options, {.rank = true});
  return [options] { return volumes(*options); };
}

}  // namespace plimsoll
