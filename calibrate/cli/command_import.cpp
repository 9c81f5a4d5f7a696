// plimsoll calibrate import: logs that there are, as samples.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "calibrate/bench/machine_name.hpp"
#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/import/import.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/devices.hpp"

namespace plimsoll::calibrate {
namespace {

struct Options {
  std::vector<std::string> logs;
  std::string output;
  ImportOptions import;
};

Result<Imported> import_one(const std::string& path, const ImportOptions& options) {
  switch (kind_of_log(path)) {
    case LogKind::nccl_tests: return import_nccl_tests(path, options);
    case LogKind::kineto: return import_kineto(path, options);
    case LogKind::google_benchmark: return import_google_benchmark(path, options);
    case LogKind::unknown: break;
  }
  return Diagnostic{
      Severity::error,
      "import.kind",
      {std::make_shared<SourceFile>(SourceFile{path, {}}), 0, 0, 1, {}},
      "this is no log that can be read",
      {},
      "nccl-tests' text, a Chrome trace of PyTorch's profiler, or Google Benchmark's JSON; each also gzipped"};
}

void print_found(const std::string& path, const Imported& found) {
  print(fmt::format("{}: {}, {}\n", path, name_of(found.kind), counted(std::ssize(found.samples), "sample")));
  std::map<std::string, int> kinds;
  for (const Sample& sample : found.samples) {
    const Point& p = sample.point;
    ++kinds[p.label("op").empty() ? p.kind : p.kind + " " + p.label("op")];
  }
  Table table({{""}, {"", Align::right}});
  for (const auto& [kind, count] : kinds) table.row({kind, format_count(count)});
  print(table.text(2));
  for (const std::string& fact : found.facts) print(fmt::format("  {}\n", fact));
  if (found.leftovers.empty()) return;
  print("  not used\n");
  Table left({{""}, {"", Align::right}});
  for (const auto& [reason, count] : found.leftovers) left.row({reason, format_count(count)});
  print(left.text(4));
}

int import_logs(const Options& options) {
  if (would_overwrite({options.output}, options.logs)) return exit_code::usage;
  std::vector<Imported> all;
  std::set<std::string> seen;
  bool good = true;
  for (const std::string& path : options.logs) {
    auto found = import_one(path, options.import);
    print_diagnostics(found.diagnostics());
    good = good && static_cast<bool>(found);
    if (!found) continue;
    if (!options.import.device.empty()) found->header.device = options.import.device;
    if (found->header.device.empty()) {
      fmt::print(stderr, "plimsoll-calibrate: {} does not say which device it is of; --device h100 would\n", path);
      return exit_code::usage;
    }
    if (!all.empty() && found->header.device != all.front().header.device) {
      fmt::print(stderr, "plimsoll-calibrate: {} is of a {}, {} of a {}: import each device by itself\n", path,
                 found->header.device, options.logs.front(), all.front().header.device);
      return exit_code::input;
    }
    // Of a point that several logs hold, the first counts.
    const auto repeated =
        std::erase_if(found->samples, [&](const Sample& s) { return !seen.insert(key_of(s.point)).second; });
    if (repeated > 0) found->leftovers["points that an earlier log has"] += static_cast<std::int64_t>(repeated);
    print_found(path, *found);
    all.push_back(std::move(*found));
  }
  if (!good) return exit_code::input;
  if (seen.empty()) {
    fmt::print(stderr, "plimsoll-calibrate: there is nothing in these logs that is a sample; {} is not written\n",
               options.output);
    return exit_code::input;
  }
  Header header = all.front().header;
  header.backend = "import";
  header.machine = "import";
  header.date = today();
  if (const Server* server = find_server(header.device); server && header.multiprocessors == 0)
    header.multiprocessors = server->device.multiprocessors;
  std::string text = line_of(header);
  for (const Imported& one : all) {
    for (const Sample& sample : one.samples) text += line_of(sample);
  }
  write_text(options.output, text);
  print(options.output + " written\n");
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_import(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("logs", options->logs, "logs of one device; of a point that several hold, the first counts in a fit")
      ->required();
  app.add_option("-o,--output", options->output, "the samples")->required();
  app.add_option("--device", options->import.device, "the device, where the log does not say (h100, a100-80)");
  app.add_option("--op", options->import.op, "nccl-tests: the collective, where the log does not say");
  app.add_option("--tier", options->import.tier, "of collectives: nvlink, pcie, nic (default: by the hosts in the log)")
      ->check(CLI::IsMember({"nvlink", "pcie", "nic", "spine"}));
  return [options] { return import_logs(*options); };
}

}  // namespace plimsoll::calibrate
