// plimsoll calibrate bench: measure this machine, point by point, the most valuable first.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "calibrate/bench/measure.hpp"
#include "calibrate/cli/commands.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/step/build_step.hpp"

namespace plimsoll::calibrate {
namespace {

struct BenchOptions {
  InputOptions inputs;
  std::string backend = "cuda", output, budget, tier = "nvlink", timeout = "120 s";
  std::vector<std::string> only;
  double narrow = 1, point_s = 0.3;
  bool resume = false, list = false;
  std::vector<std::string> benchmark_flags;
};

/// "60s", "2 min", "90": seconds.
std::optional<double> seconds_of(const std::string& text) {
  if (const auto seconds = parse_seconds(text)) return seconds->count;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string_view rest(end);
  if (end == text.c_str() || !(value >= 0) || !std::isfinite(value)) return {};
  if (rest.empty() || rest == "s" || rest == " s") return value;
  if (rest == "min" || rest == " min" || rest == "m") return 60 * value;
  return {};
}

bool wanted(const Point& point, const std::vector<std::string>& only) {
  if (only.empty()) return true;
  const std::string key = key_of(point);
  return std::any_of(only.begin(), only.end(),
                     [&](const std::string& kind) { return key.find(kind) != std::string::npos; });
}

std::vector<Case> cases_of(const BenchOptions& options, int world, const std::optional<Scenario>& scenario) {
  std::vector<Case> cases = options.backend == "host" ? host_grid(world) : cuda_grid(world, options.tier);
  if (scenario) {
    // What the model uses comes first.
    std::vector<Case> used = program_cases(build_step(*scenario, 0), world, options.tier);
    used.insert(used.end(), std::make_move_iterator(cases.begin()), std::make_move_iterator(cases.end()));
    cases = std::move(used);
  }
  std::erase_if(cases, [&](const Case& c) { return !wanted(c.point, options.only); });
  return in_order(std::move(cases));
}

/// The first text of --only that no point's key holds.
std::optional<std::string> unknown_only(const std::vector<Case>& cases, const std::vector<std::string>& only) {
  for (const std::string& text : only) {
    if (std::none_of(cases.begin(), cases.end(), [&](const Case& c) { return wanted(c.point, {text}); })) return text;
  }
  return {};
}

int finish(const MeasureReport& report, const std::string& output) {
  fmt::print(stderr, "{} points measured in {:.0f} s, {} there before, {} failed, {} left\n", report.measured,
             report.seconds, report.already_there, report.failed, report.left);
  if (report.left > 0)
    fmt::print(stderr, "the budget is spent; plimsoll calibrate bench -o {} --resume goes on\n", output);
  return exit_code::ok;
}

int bench(const BenchOptions& options) {
  MeasureOptions how;  // here, since a budget holds the start of the devices and the meeting of the ranks, too
  const auto budget = options.budget.empty() ? std::optional<double>(0) : seconds_of(options.budget);
  const auto timeout = seconds_of(options.timeout);
  if (!budget || !timeout || *timeout <= 0) {
    fmt::print(stderr, "plimsoll-calibrate: {} is no time; \"60s\" or \"2 min\" would be\n",
               !budget ? options.budget : options.timeout);
    return exit_code::usage;
  }
  std::optional<Scenario> scenario;
  if (!options.inputs.model.empty() || !options.inputs.plan.empty()) {
    const std::optional<Inputs> inputs = load_scenario(options.inputs);
    if (!inputs) return exit_code::input;
    scenario = inputs->scenario();
  }
  const RankNames names = rank_names([](const char* name) -> const char* { return std::getenv(name); });
  const std::vector<Case> cases = cases_of(options, names.world, scenario);
  if (const auto text = unknown_only(cases, options.only)) {
    fmt::print(stderr, "plimsoll-calibrate: no point's key holds {}; bench --list shows them\n", *text);
    return exit_code::usage;
  }
  if (options.list) {
    for (const Case& c : cases) print(key_of(c.point) + "\n");
    return exit_code::ok;
  }
  Ranks ranks(names, *timeout);
  ranks.watch("starting the backend");
  const std::unique_ptr<Backend> backend =
      options.backend == "host" ? make_host_backend(ranks) : make_cuda_backend(ranks);
  ranks.unwatch();
  const std::string output = options.output.empty() ? backend->header().device + ".jsonl" : options.output;
  std::optional<SampleLog> log;
  std::string refused;
  if (ranks.rank() == 0) {
    auto opened = SampleLog::open(output, backend->header(), options.resume);
    print_diagnostics(opened.diagnostics());
    if (opened) {
      log.emplace(std::move(*opened));
    } else {
      refused = "samples";
    }
  }
  if (!ranks.broadcast(refused).empty()) return exit_code::input;
  how.budget_s = *budget;
  how.narrow = options.narrow / 100;
  how.point_s = options.point_s;
  how.benchmark_flags = options.benchmark_flags;
  const MeasureReport report = measure_all(cases, *backend, ranks, log ? &*log : nullptr, how);
  if (!report.any) return exit_code::usage;
  return ranks.rank() == 0 ? finish(report, output) : exit_code::ok;
}

}  // namespace

std::function<int()> declare_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  app.add_option("--backend", options->backend, "what is measured: cuda (default) or host, this machine's cores")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("-o,--output", options->output, "samples, one JSON object a line (default: DEVICE.jsonl)");
  app.add_flag("--resume", options->resume, "go on with that file: what it holds is not measured again");
  app.add_option("--budget", options->budget,
                 "begin no point this long after the start, e.g. 60s; the most valuable come first");
  app.add_option("--only", options->only,
                 "only points whose key holds this text: gemm, collective, op=all_gather; repeatable");
  app.add_option("--narrow", options->narrow, "repeat a point until its median is known to this percentage (default 1)")
      ->check(CLI::Range(0.01, 50.0));
  app.add_option("--point", options->point_s, "longest repetition of one point, in seconds (default 0.3)")
      ->check(CLI::Range(0.001, 60.0));
  app.add_option("--tier", options->tier, "the link between the ranks: nvlink (default), pcie or nic")
      ->check(CLI::IsMember({"nvlink", "pcie", "nic"}));
  app.add_option("--timeout", options->timeout,
                 "a rank or point that is silent for this long ends all (default 120 s)");
  app.add_flag("--list", options->list, "print the points in their order and measure nothing");
  add_common_inputs(app, options->inputs, {.scenario = false});
  app.allow_extras();
  return [options, &app] {
    for (const std::string& extra : app.remaining()) {
      if (!extra.starts_with("--benchmark_")) {
        fmt::print(stderr, "plimsoll-calibrate: there is no option {}\nTry: plimsoll calibrate bench --help\n", extra);
        return exit_code::usage;
      }
      options->benchmark_flags.push_back(extra);
    }
    return bench(*options);
  };
}

}  // namespace plimsoll::calibrate
