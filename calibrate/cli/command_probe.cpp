// plimsoll calibrate probe: what is here?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "calibrate/cli/commands.hpp"
#include "calibrate/cli/files.hpp"
#include "calibrate/probe/probe.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll::calibrate {
namespace {

struct ProbeOptions {
  std::string output;
  int nodes = 1;
};

int probe(const ProbeOptions& options) {
  const std::string text = cluster_json(probe_host(), probe_devices(), options.nodes);
  if (options.output.empty()) {
    print(text);
  } else {
    write_text(options.output, text);
    print(options.output + " written\n");
  }
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_probe(CLI::App& app) {
  auto options = std::make_shared<ProbeOptions>();
  app.add_option("-o,--output", options->output, "the cluster.json (default: standard output)");
  app.add_option("--nodes", options->nodes, "nodes of this kind (default 1)")->check(CLI::Range(1, 100000));
  return [options] { return probe(*options); };
}

}  // namespace plimsoll::calibrate
