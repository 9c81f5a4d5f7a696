// plimsoll volumes: what crosses which link in one optimizer step?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>

#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {
namespace {

constexpr int bar_cells = 30;

/// Rows that differ in size only, summed.
struct Sum {
  VolumeRow row;
  Bytes least, most;
};

std::vector<Sum> sums_of(const CommVolume& volume) {
  std::vector<Sum> sums;
  for (const VolumeRow& row : volume.rows) {
    const auto same = [&](const Sum& sum) {
      return sum.row.kind == row.kind && sum.row.group == row.group && sum.row.phase == row.phase &&
             sum.row.tier == row.tier && sum.row.dtype == row.dtype;
    };
    const auto found = std::find_if(sums.begin(), sums.end(), same);
    if (found == sums.end()) {
      sums.push_back({row, row.full_size, row.full_size});
      continue;
    }
    found->row.calls += row.calls;
    found->row.wire += row.wire;
    found->least = std::min(found->least, row.full_size);
    found->most = std::max(found->most, row.full_size);
  }
  return sums;
}

void print_tiers(const CommVolume& volume, const ClusterSpec& cluster) {
  std::array<Bytes, tier_count> by_tier{};
  for (const VolumeRow& row : volume.rows) by_tier[static_cast<std::size_t>(row.tier)] += row.wire;
  Table table({{"tier"}, {"GiB a step", Align::right}, {"alone", Align::right}, {""}});
  for (int i = 0; i < tier_count; ++i) {
    const Bytes bytes = by_tier[static_cast<std::size_t>(i)];
    if (bytes.count == 0) continue;
    const auto tier = static_cast<Tier>(i);
    const double rate = bandwidth_per_gpu(cluster, tier).count;
    table.row({name_of(tier), gibibytes(bytes),
               rate > 0 ? format(Seconds(static_cast<double>(bytes.count) / rate)) : std::string(),
               bar(bytes / volume.per_gpu, bar_cells)});
  }
  print(fmt::format("\n{}", table.text(2)));
}

void print_volumes(const Evaluation& evaluation, const CommVolume& volume) {
  print(fmt::format("{} GiB sent by one GPU in an optimizer step\n{}\n", paint(gibibytes(volume.per_gpu), Colour::bold),
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
  for (const Sum& sum : sums_of(volume)) {
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
