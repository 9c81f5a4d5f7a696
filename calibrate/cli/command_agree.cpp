// plimsoll calibrate agree: two files of samples, point by point: does what a log says agree with what was measured here?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/fit/fit.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll::calibrate {
namespace {

struct AgreeOptions {
  std::string first, second;
  bool points = false;
};

/// The point without what differs between a log and a benchmark of the same thing.
std::string comparable_key(Point point) {
  for (const char* label : {"group", "place", "library", "tier"}) point.labels.erase(label);
  return key_of(point);
}

std::string row_name(const Point& point) {
  return point.kind == "collective"  ? "collective " + point.label("op")
         : point.kind == "attention" ? "attention " + point.label("direction")
                                     : point.kind;
}

int agree(const AgreeOptions& options) {
  const auto loaded = load_samples({options.first, options.second});
  if (!loaded) return exit_code::input;
  const std::vector<SampleFile> files = as_fitted(*loaded);
  std::map<std::string, const Sample*> first;
  for (const Sample& sample : files.at(0).samples) first.try_emplace(comparable_key(sample.point), &sample);
  std::map<std::string, std::vector<double>> ratios;
  Table each({{"point"}, {"first", Align::right}, {"second", Align::right}, {"second against first", Align::right}});
  std::size_t shared = 0;
  for (const Sample& sample : files.at(1).samples) {
    const std::string key = comparable_key(sample.point);
    const auto found = first.find(key);
    if (found == first.end() || sample.time_s <= 0 || found->second->time_s <= 0 || sample.point.kind == "host")
      continue;
    const double ratio = sample.time_s / found->second->time_s;
    ratios[row_name(sample.point)].push_back(ratio);
    each.row({key, format(Seconds(found->second->time_s)), format(Seconds(sample.time_s)),
              fmt::format("{:+.1f} %", 100 * (ratio - 1))});
    ++shared;
  }
  print(fmt::format("{} points stand in both files\n", shared));
  Table table({{"class"},
               {"points", Align::right},
               {"median", Align::right},
               {"mean of absolutes", Align::right},
               {"from", Align::right},
               {"to", Align::right}});
  for (auto& [name, values] : ratios) {
    std::sort(values.begin(), values.end());
    double absolute = 0;
    for (const double value : values) absolute += std::abs(value - 1);
    const auto percent = [](double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); };
    table.row({name, std::to_string(values.size()), percent(values[values.size() / 2]),
               fmt::format("{:.1f} %", 100 * absolute / static_cast<double>(values.size())), percent(values.front()),
               percent(values.back())});
  }
  if (shared > 0) print(table.text(2));
  if (options.points && shared > 0) print("\n" + each.text(2));
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_agree(CLI::App& app) {
  auto options = std::make_shared<AgreeOptions>();
  app.add_option("first", options->first, "a file of bench or import")->required();
  app.add_option("second", options->second, "another; its times are compared with those of the first")->required();
  app.add_flag("--points", options->points, "each point, not only the classes");
  return [options] { return agree(*options); };
}

}  // namespace plimsoll::calibrate
