// plimsoll compare: which tensor is in a real step and not in the program, or the other way round, and which kernels take
// how long?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "planner/base/format.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"
#include "planner/cli/kineto_comparison.hpp"
#include "planner/cli/run_log_comparison.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/cli/trace_comparison.hpp"

namespace plimsoll {
namespace {

struct CompareOptions {
  InputOptions inputs;
  std::string allocator_trace, snapshot, kineto, run_log;
  std::string threshold = "1 MiB";
  std::optional<double> within;
  int steps = 1;
  bool events = false;
};

/// Below this share of bytes in common, the record is of something else.
constexpr double least_shared = 0.25;

std::string size_in_words(const TensorGroup& group) {
  if (group.least == group.bytes) return format_count(group.bytes.count);
  return fmt::format("{} to {}", format_count(group.least.count), format_count(group.bytes.count));
}

std::string layers_in_words(const TensorGroup& group) {
  if (group.last_layer < 0) return "";
  if (group.first_layer == group.last_layer) return fmt::format("layer {}", group.first_layer);
  return fmt::format("layers {}-{}", std::max(0, group.first_layer), group.last_layer);
}

void print_groups(const std::string& title, const std::vector<TensorGroup>& groups) {
  if (groups.empty()) return;
  Bytes total;
  int count = 0;
  Table table({{""}, {"", Align::right}, {"bytes each", Align::right}, {""}, {""}, {""}});
  for (const TensorGroup& group : groups) {
    total += group.total;
    count += group.count;
    table.row({group.phase, fmt::format("{} x", group.count), size_in_words(group),
               group.name.empty() ? "(no label)" : group.name, group.formula, layers_in_words(group)});
  }
  print(fmt::format("\n{}: {} ({})\n{}", title, count, format(total), table.text(2)));
}

void print_lifetimes(const std::vector<TensorGroup>& groups) {
  if (groups.empty()) return;
  Table table({{""}, {"", Align::right}, {"bytes each", Align::right}, {""}, {""}, {""}});
  for (const TensorGroup& group : groups) {
    const int low = std::min(std::abs(group.shift_low), std::abs(group.shift_high));
    const int high = std::max(std::abs(group.shift_low), std::abs(group.shift_high));
    std::string shift = counted(high, "allocation");
    if (low != high) shift = fmt::format("{} to {}", low, shift);
    const char* when = group.shift_low > 0 ? "later" : group.shift_high < 0 ? "earlier" : "earlier or later";
    table.row({group.phase, fmt::format("{} x", group.count), size_in_words(group), group.name, layers_in_words(group),
               fmt::format("freed {} {}", shift, when)});
  }
  print(fmt::format("\nIn both, but in the measured step\n{}", table.text(2)));
}

void print_comparison(const TraceComparison& c) {
  Table table({{""}, {"program", Align::right}, {"measured", Align::right}, {"difference", Align::right}});
  const auto row = [&](const char* name, std::int64_t mine, std::int64_t measured) {
    table.row({name, format_count(mine), format_count(measured), format_count(mine - measured)});
  };
  row("allocations", c.program_count, c.trace_count);
  row("their bytes", c.program_bytes.count, c.trace_bytes.count);
  row("alive before the step", c.program_live.count, c.trace_live.count);
  row("peak of the step", c.program_peak.bytes.count, c.trace_peak.bytes.count);
  print(fmt::format("Allocations of at least {}: {} in both, {:.2f} % of the bytes\n\n{}", format(c.threshold),
                    c.matched, 100 * c.shared(), table.text(2)));
  print(
      "  (the program's tensors rounded to 512 bytes; what was alive before the measured step counts whole blocks)\n");
  print(fmt::format("\nPeak error {:+.3f} %\n  program:  {}, {}\n  measured: {}{}{}\n", 100 * c.peak_error(),
                    c.program_peak.phase, c.program_peak.tensor, c.trace_peak.phase,
                    c.trace_peak.phase.empty() ? "" : ", ", c.trace_peak.tensor));
  print_groups("Only in the program", c.only_in_program);
  print_groups("Only in the measured step", c.only_in_trace);
  print_lifetimes(c.lifetimes);
  print_groups("Alive at the program's peak only", c.only_at_program_peak);
  print_groups("Alive at the measured peak only", c.only_at_trace_peak);
}

Result<AllocatorRecord> load_record(const CompareOptions& options) {
  const bool is_trace = !options.allocator_trace.empty();
  const auto file = is_trace ? load_unpacked(options.allocator_trace, document_size_limit)
                             : load_unpacked(options.snapshot, unpacked_limit);
  if (!file) return file.diagnostics();
  return is_trace ? read_allocator_trace(*file) : read_snapshot(*file);
}

Diagnostic of_another_program(const AllocatorRecord& record, const TraceComparison& comparison,
                              const Scenario& scenario) {
  Diagnostic diagnostic;
  diagnostic.code = "compare.program";
  auto file = std::make_shared<SourceFile>();
  file->name = record.name;
  diagnostic.place.file = std::move(file);
  diagnostic.message =
      fmt::format("this is of another program: {:.1f} % of the bytes are allocated by both, {} and {} allocations",
                  100 * comparison.shared(), comparison.program_count, comparison.trace_count);
  diagnostic.help = fmt::format("compared with {}; does the record hold one steady step (--steps N for more)?",
                                scenario_in_words(scenario));
  return diagnostic;
}

int compare_records(const CompareOptions& options, Bytes threshold) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  const auto record = load_record(options);
  if (!record) return refuse(record.diagnostics(), options.inputs.json);
  print_diagnostics(record.diagnostics());
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  const ProgramRecord mine = record_of(evaluation.rank_program(), options.steps);
  const TraceComparison comparison = compare(evaluation.rank_program(), mine, *record, threshold);
  if (comparison.shared() < least_shared) {
    return refuse({of_another_program(*record, comparison, evaluation.scenario)}, options.inputs.json);
  }
  if (options.inputs.json) {
    print(comparison_json(comparison));
  } else if (options.events) {
    print(list_differences(mine, *record, threshold));
  } else {
    print_comparison(comparison);
  }
  if (options.within && std::abs(comparison.peak_error()) > *options.within / 100) return exit_code::beyond;
  return has_errors(record.diagnostics()) ? exit_code::input : exit_code::ok;
}

/// Errors of a trace that was read, but is not of this plan.
std::optional<Diagnostic> of_another_step(const ProfilerTrace& trace, const KinetoComparison& comparison,
                                          const Scenario& scenario) {
  Diagnostic diagnostic;
  auto file = std::make_shared<SourceFile>();
  file->name = trace.name;
  diagnostic.place.file = std::move(file);
  diagnostic.code = "compare.program";
  if (trace.world_size > 0 && trace.world_size != scenario.plan.world_size) {
    diagnostic.message = fmt::format("this is a trace of {}, and the plan has {}", counted(trace.world_size, "rank"),
                                     scenario.plan.world_size);
    return diagnostic;
  }
  if (comparison.likeness() >= least_shared) return std::nullopt;
  diagnostic.message = fmt::format("this is of another program: {:.1f} % of the kernels' time is in the same classes",
                                   100 * comparison.likeness());
  diagnostic.help = fmt::format("compared with {}; does the trace hold one steady step?", scenario_in_words(scenario));
  return diagnostic;
}

/// A traced step follows a pause, and power is capped over some tenths of a second: clocks sag by about half of what they do
/// in the loop of steps that a calibration is fitted to.
Calibration after_a_pause(Calibration calibration) {
  constexpr double share = 0.5;
  calibration.gemm.sag = 1 + share * (calibration.gemm.sag - 1);
  return calibration;
}

int compare_kineto(const CompareOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  const auto file = load_unpacked(options.kineto);
  if (!file) return refuse(file.diagnostics(), options.inputs.json);
  const auto trace = read_profiler_trace(*file);
  if (!trace) return refuse(trace.diagnostics(), options.inputs.json);
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  const auto calibration = inputs->prices();
  if (!calibration) return refuse(calibration.diagnostics(), options.inputs.json);
  SimulateOptions in_step;
  in_step.host_skew = 0;
  const Timeline timeline =
      simulate_step(evaluation.program, evaluation.scenario.cluster, after_a_pause(*calibration), in_step);
  const KinetoComparison comparison{use_of(timeline, evaluation.rank_program()), use_of(*trace)};
  if (const auto refusal = of_another_step(*trace, comparison, evaluation.scenario))
    return refuse({*refusal}, options.inputs.json);
  print(options.inputs.json ? kineto_json(comparison, evaluation.program.digest) : kineto_text(comparison));
  const bool beyond = options.within && std::abs(comparison.compute_error()) > *options.within / 100;
  return beyond ? exit_code::beyond : exit_code::ok;
}

int compare_log(const CompareOptions& options) {
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  const auto file = load_unpacked(options.run_log);
  if (!file) return refuse(file.diagnostics(), options.inputs.json);
  const Result<RunLog> log = read_run_log(*file);
  if (!log) return refuse(log.diagnostics(), options.inputs.json);
  print_diagnostics(log.diagnostics());
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  const auto calibration = inputs->prices();
  if (!calibration) return refuse(calibration.diagnostics(), options.inputs.json);
  const auto figures = compare_run(evaluation, *log, *calibration);
  if (!figures) return refuse(figures.diagnostics(), options.inputs.json);
  print(options.inputs.json ? run_comparison_json(*figures, *log) : run_comparison_text(*figures, *log));
  const double allowed = options.within.value_or(std::numeric_limits<double>::infinity()) / 100;
  const bool beyond = std::any_of(figures->begin(), figures->end(),
                                  [&](const RunFigure& figure) { return std::abs(figure.error()) > allowed; });
  return beyond ? exit_code::beyond : exit_code::ok;
}

int compare_with(const CompareOptions& options) {
  if (!options.kineto.empty()) return compare_kineto(options);
  if (!options.run_log.empty()) return compare_log(options);
  if (options.allocator_trace.empty() && options.snapshot.empty())
    return refuse_usage(
        "compare", "what was measured? Give --allocator-trace FILE, --snapshot FILE, --kineto FILE or --run-log FILE");
  const auto threshold = parse_bytes(options.threshold);
  if (!threshold || threshold->count < 0)
    return refuse_usage("compare", fmt::format("--threshold {} is no size, for example \"1 MiB\"", options.threshold));
  return compare_records(options, *threshold);
}

}  // namespace

std::function<int()> declare_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  options->inputs.rank = "0";
  add_common_inputs(app, options->inputs, {.rank = true});
  auto* trace = app.add_option("--allocator-trace", options->allocator_trace,
                               "allocations and frees of one steady step, JSON, also compressed by gzip");
  auto* snapshot =
      app.add_option(
             "--snapshot", options->snapshot,
             "PyTorch's memory snapshot of one steady step as JSON, also compressed; two lines of Python write it:\n"
             "  torch.cuda.memory._record_memory_history(context=\"alloc\", stacks=\"python\")  before the step\n"
             "  json.dump(torch.cuda.memory._snapshot(), open(\"snapshot.json\", \"w\"))  after it")
          ->excludes(trace);
  auto* kineto =
      app.add_option("--kineto", options->kineto,
                     "a trace of torch.profiler of one steady step (Chrome JSON, CUDA activities), also compressed")
          ->excludes(trace)
          ->excludes(snapshot);
  app.add_option("--run-log", options->run_log,
                 "what plimsoll-run --log wrote, also compressed: memory, volumes and step time beside it")
      ->excludes(trace)
      ->excludes(snapshot)
      ->excludes(kineto);
  app.add_option("--threshold", options->threshold, "smaller allocations are left out")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--steps", options->steps, "steady steps that the record holds")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--within", options->within,
                 "exit with 5 if the peak's error (of a profiler trace: that of compute time; of a run: any figure's) "
                 "is beyond this many percent")
      ->type_name("PERCENT")
      ->check(number_from(0, 1e9));
  app.add_flag("--events", options->events, "both lists of events where they differ, as diff shows files")
      ->excludes(app.get_option("--json"));
  return [options] { return compare_with(*options); };
}

}  // namespace plimsoll
