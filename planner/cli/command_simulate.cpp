// plimsoll simulate: how long does a step take, what bounds it, and what does a token budget cost?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/cli/commands.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/cli/simulated.hpp"
#include "planner/cli/table.hpp"
#include "planner/cli/terminal.hpp"
#include "simulator/chrome_trace.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t path_lines = 12;
const std::vector<std::string> exposures{"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                         "host",       "offload",        "bubble"};

struct Options {
  InputOptions inputs;
  std::string trace;
  std::vector<std::string> stragglers;
  std::string tokens;
  std::optional<double> price;
};

struct Budget {
  double days = 0, gpu_hours = 0;
  std::optional<double> cost;
};

std::optional<Budget> budget_of(const Options& options, const Evaluation& evaluation, const SimulatedStep& step) {
  const std::optional<double> tokens = parse_count(options.tokens);
  if (!tokens) return std::nullopt;
  const int gpus = evaluation.scenario.plan.world_size;
  const double seconds = *tokens / (step.tokens_per_s_per_gpu * gpus);
  Budget budget{seconds / 86400, seconds / 3600 * gpus, {}};
  if (options.price) budget.cost = budget.gpu_hours * *options.price;
  return budget;
}

double exposed_seconds(const Timeline& timeline, const std::string& cause) {
  const auto found = timeline.exposed.find(cause);
  return found == timeline.exposed.end() ? 0 : to_seconds(found->second);
}

Json path_json(const Evaluation& evaluation, const Timeline& timeline) {
  Json path = Json::array();
  for (const std::uint32_t index : timeline.critical_path) {
    const TimedOp& op = timeline.ops[index];
    const RankProgram& rank = program_of(evaluation.program, timeline, op);
    path.push_back({{"op", op.op},
                    {"rank", timeline.classes[op.class_index].name},
                    {"role", rank.ops[op.op].role},
                    {"lane", name_of(op.lane)},
                    {"layer", rank.ops[op.op].layer},
                    {"start_s", to_seconds(op.start)},
                    {"end_s", to_seconds(op.end)}});
  }
  return path;
}

std::string simulate_json(const Evaluation& evaluation, const SimulatedStep& step,
                          const std::optional<Budget>& budget) {
  const Timeline& timeline = step.timeline;
  Json json = {{"digest", evaluation.program.digest},
               {"step_time_s", step.step_time_s},
               {"interval_s", {step.low_s, step.high_s}},
               {"bound_by", timeline.bound_by},
               {"tokens_per_s_per_gpu", step.tokens_per_s_per_gpu},
               {"model_tflops_per_gpu", step.model_tflops_per_gpu},
               {"mfu", step.mfu}};
  for (const std::string& cause : exposures) json["exposed_s"][cause] = exposed_seconds(timeline, cause);
  json["idle_share"] = step.idle_share;
  if (budget) {
    json["budget"] = {{"days", budget->days}, {"gpu_hours", budget->gpu_hours}};
    if (budget->cost) json["budget"]["cost"] = *budget->cost;
  } else {
    json["budget"] = nullptr;
  }
  json["critical_path"] = path_json(evaluation, timeline);
  json["lanes"] = Json::array();
  for (const LaneUse& lane : timeline.lanes)
    json["lanes"].push_back({{"name", lane.name}, {"busy_s", to_seconds(lane.busy)}, {"share", lane.share}});
  json["kernels"] = Json::object();
  for (const auto& [kind, use] : step.kernels)
    json["kernels"][kind] = {{"count", use.count}, {"seconds", to_seconds(use.busy)}};
  json["evidence"] = name_of(timeline.evidence);
  return json_text(json);
}

/// Runs of ops of one lane are a part, since the path has thousands of kernels; parts alike, as those of layers are, one line.
/// An op counts from where the one before it on the path has ended: a host that waits for a kernel is not counted twice.  What
/// passes until the host issues the next op is the host's.  All of them sum to the step.
void print_path(const Evaluation& evaluation, const Timeline& timeline) {
  struct Part {
    Lane lane;
    std::string first;  ///< its first op
    std::size_t ops = 0, times = 1;
    SimTime time = 0;
  };
  std::vector<Part> parts;
  Part issuing{Lane::host, "until it issues what follows", 1, 0};
  SimTime before = 0;
  const auto issue_until = [&](SimTime start) {
    if (start <= before) return;
    ++issuing.times;
    issuing.time += start - before;
    before = start;
  };
  for (const std::uint32_t index : timeline.critical_path) {
    const TimedOp& op = timeline.ops[index];
    if (op.cause == Cause::host || op.cause == Cause::peer_host || op.cause == Cause::start) issue_until(op.start);
    if (parts.empty() || parts.back().lane != op.lane)
      parts.push_back({op.lane, program_of(evaluation.program, timeline, op).ops[op.op].role});
    parts.back().time += std::max<SimTime>(op.end - before, 0);
    ++parts.back().ops;
    before = std::max(before, op.end);
  }
  issue_until(timeline.step_time);
  std::map<std::tuple<Lane, std::string, std::size_t>, Part> alike;
  if (issuing.times > 0) parts.push_back(issuing);
  for (const Part& part : parts) {
    const auto [found, is_new] = alike.try_emplace({part.lane, part.first, part.ops}, part);
    if (is_new) continue;
    ++found->second.times;
    found->second.time += part.time;
  }
  std::vector<Part> lines;
  lines.reserve(alike.size());
  for (auto& [key, part] : alike) lines.push_back(std::move(part));
  std::stable_sort(lines.begin(), lines.end(), [](const Part& a, const Part& b) { return a.time > b.time; });
  Table table({{"longest parts of the critical path"},
               {"times", Align::right},
               {"ops each", Align::right},
               {"from"},
               {"time in all", Align::right}});
  for (std::size_t i = 0; i < std::min(path_lines, lines.size()); ++i) {
    const Part& part = lines[i];
    table.row({name_of(part.lane), format_count(static_cast<std::int64_t>(part.times)),
               format_count(static_cast<std::int64_t>(part.ops)), part.first, format(Seconds(to_seconds(part.time)))});
  }
  print(fmt::format("\n{}", table.text(2)));
}

void print_simulation(const Evaluation& evaluation, const SimulatedStep& step, const std::optional<Budget>& budget) {
  const Timeline& timeline = step.timeline;
  print(fmt::format("{} a step, bound by {} ({} to {}, {})\n{}\n",
                    paint(format(Seconds(step.step_time_s)), Colour::bold), timeline.bound_by,
                    format(Seconds(step.low_s)), format(Seconds(step.high_s)), name_of(timeline.evidence),
                    scenario_in_words(evaluation.scenario)));
  print(fmt::format("\n  {:.0f} tokens/s per GPU   {:.1f} TFLOP/s per GPU   MFU {:.1f} %   device idle {:.1f} %\n",
                    step.tokens_per_s_per_gpu, step.model_tflops_per_gpu, 100 * step.mfu, 100 * step.idle_share));
  if (budget) {
    const auto whole = [](double number) {  // beyond this a double's digits say nothing
      return number < 1e15 ? format_count(std::llround(number)) : fmt::format("{:.3g}", number);
    };
    print(fmt::format("  {:.1f} days, {} GPU-hours{}\n", budget->days, whole(budget->gpu_hours),
                      budget->cost ? fmt::format(", {} in all", whole(*budget->cost)) : ""));
  }
  Table exposed({{"compute waits for"}, {"time", Align::right}, {"of the step", Align::right}, {""}});
  for (const std::string& cause : exposures) {
    const double seconds = exposed_seconds(timeline, cause);
    if (seconds <= 0) continue;
    const double share = seconds / step.step_time_s;
    exposed.row({cause == "bubble" ? "slower ranks" : cause, format(Seconds(seconds)),
                 fmt::format("{:.1f} %", 100 * share), bar(share, 30)});
  }
  if (!exposed.empty()) print(fmt::format("\n{}", exposed.text(2)));
  Table lanes({{"lane"}, {"busy", Align::right}, {"of the step", Align::right}, {""}});
  for (const LaneUse& lane : timeline.lanes) {
    if (lane.busy == 0) continue;
    lanes.row({lane.name, format(Seconds(to_seconds(lane.busy))), fmt::format("{:.1f} %", 100 * lane.share),
               bar(lane.share, 30)});
  }
  print(fmt::format("\n{}", lanes.text(2)));
  print_path(evaluation, timeline);
  print(fmt::format("\ncalibration {}\ndigest {}\n", step.calibration, evaluation.program.digest));
}

/// "3=1.5": rank 3 computes 1.5 times as long.
std::optional<std::pair<int, double>> straggler_of(const std::string& text) {
  int rank = -1;
  double factor = 0;
  const char* const end = text.data() + text.size();
  const auto [after_rank, no_rank] = std::from_chars(text.data(), end, rank);
  if (no_rank != std::errc() || after_rank == end || *after_rank != '=') return std::nullopt;
  const auto [after_factor, no_factor] = std::from_chars(after_rank + 1, end, factor);
  if (no_factor != std::errc() || after_factor != end || rank < 0 || !(factor >= 1 && factor <= 1000))
    return std::nullopt;
  return std::pair(rank, factor);
}

/// Those of the options, which have been checked; nothing if one is stated twice.
std::optional<std::map<int, double>> stragglers_of(const Options& options) {
  std::map<int, double> stragglers;
  for (const std::string& text : options.stragglers)
    if (!stragglers.insert(*straggler_of(text)).second) return std::nullopt;
  return stragglers;
}

int simulate(const Options& options) {
  const auto stragglers = stragglers_of(options);
  if (!stragglers) return refuse_usage("simulate", "--straggler states a rank twice");
  const std::optional<Inputs> inputs = load_scenario(options.inputs);
  if (!inputs) return exit_code::input;
  const Evaluation evaluation = build(inputs->scenario(), inputs->rank());
  const int world = evaluation.scenario.plan.world_size;
  if (!stragglers->empty() && stragglers->rbegin()->first >= world)
    return refuse(
        {make_error("cli.straggler", fmt::format("there is no rank {} to straggle", stragglers->rbegin()->first),
                    fmt::format("0 to {}", world - 1))},
        options.inputs.json);
  const auto calibration = inputs->prices();
  if (!calibration) return refuse(calibration.diagnostics(), options.inputs.json);
  print_diagnostics(calibration.diagnostics());
  const int tell_of = inputs->rank().kind == RankChoice::Kind::hottest ? -1 : 0;
  const SimulatedStep step =
      simulated(evaluation.program, evaluation.scenario.cluster, *calibration, *stragglers, tell_of);
  if (!step.timeline.unfinished.empty()) {
    for (const std::string& line : step.timeline.unfinished) fmt::print(stderr, "never ends: {}\n", line);
    return exit_code::machine;
  }
  if (!options.trace.empty()) {
    std::ofstream file(options.trace);
    file << chrome_trace(evaluation.program, step.timeline);
    if (!file.flush()) throw MachineError(fmt::format("cannot write {}", options.trace));
  }
  const auto budget = budget_of(options, evaluation, step);
  if (options.inputs.json) {
    print(simulate_json(evaluation, step, budget));
  } else {
    print_simulation(evaluation, step, budget);
  }
  return exit_code::ok;
}

}  // namespace

std::function<int()> declare_simulate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_common_inputs(app, options->inputs, {.rank = true});
  app.add_option("--trace", options->trace, "write the timeline as a Chrome/Perfetto trace")->type_name("FILE");
  app.add_option("--straggler", options->stragglers, "a rank whose kernels take FACTOR times as long")
      ->type_name("RANK=FACTOR")
      ->check([](const std::string& text) {
        return straggler_of(text) ? std::string() : text + " is no rank with a factor from 1 to 1000, such as 3=1.5";
      });
  auto* tokens = app.add_option("--tokens", options->tokens, "tokens to train on, e.g. 15T: adds days and GPU-hours")
                     ->type_name("N")
                     ->check([](const std::string& text) {
                       const std::optional<double> number = parse_count(text);
                       const bool good = number && *number >= 1 && *number <= 1e18;
                       return good ? std::string() : text + " is no number from 1 to 1e18, such as 300B or 15T";
                     });
  app.add_option("--price", options->price, "price of a GPU-hour: adds the cost of the tokens")
      ->check(number_from(0, 1e9))
      ->needs(tokens);
  return [options] { return simulate(*options); };
}

}  // namespace plimsoll
