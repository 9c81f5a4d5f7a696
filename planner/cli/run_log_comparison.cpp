// Reads a run's log and sets the prediction beside it (planner/cli/run_log_comparison.hpp).
#include "planner/cli/run_log_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "planner/account/arena.hpp"
#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/cli/simulated.hpp"
#include "planner/cli/table.hpp"
#include "planner/spec/limits.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Diagnostic wrong(const char* code, const std::shared_ptr<const SourceFile>& file, std::string message,
                 std::string help = {}) {
  Place whole;
  whole.file = file;
  return make_error(code, std::move(message), std::move(help), std::move(whole));
}

double number(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Beyond these no step was run; within them whole numbers are exact in a double or far beyond what is looked at by the byte.
constexpr double most_steps = 1e15, most_bytes = static_cast<double>(limits::bytes), least_time_s = 1e-9,
                 most_time_s = 1e9;

bool is_within(const Json& object, const char* key, double least, double most) {
  const double value = number(object, key);
  return value >= least && value <= most;
}

/// Why a line cannot be used; empty if it can.
std::string what_is_wrong(const Json& line) {
  if (!line.is_object() || !is_within(line, "step", 1, most_steps)) return "this is no step of a run";
  if (!is_within(line, "step_time_s", least_time_s, most_time_s))
    return fmt::format("step_time_s is no positive number from {:g} to {:g}", least_time_s, most_time_s);
  for (const char* key : {"high_water_bytes", "sent_bytes"}) {
    if (!is_within(line, key, 0, most_bytes)) return fmt::format("{} is no number from 0 to {:g}", key, most_bytes);
  }
  return {};
}

/// A loss that went beyond all bounds keeps its line short.
std::string loss_in_words(double loss) {
  return std::abs(loss) < 1e6 ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", loss);
}

/// Whole numbers of at most so many tokens, a list a layer; else nothing is known of the routing.
std::vector<std::vector<std::int64_t>> expert_tokens_of(const Json& line) {
  std::vector<std::vector<std::int64_t>> layers;
  const auto found = line.find("expert_tokens");
  if (found == line.end() || !found->is_array()) return {};
  for (const Json& layer : *found) {
    if (!layer.is_array()) return {};
    std::vector<std::int64_t>& experts = layers.emplace_back();
    for (const Json& count : layer) {
      if (!count.is_number_integer() || count.get<double>() < 0 || count.get<double>() > most_bytes) return {};
      experts.push_back(count.get<std::int64_t>());
    }
  }
  return layers;
}

/// `rows` in the proportion of `counts`, of which one is above zero: rounded down, and what is left to those that lose most by it.
std::vector<std::int64_t> in_proportion(const std::vector<std::int64_t>& counts, std::int64_t rows) {
  double sum = 0;
  for (const std::int64_t count : counts) sum += static_cast<double>(count);
  std::vector<std::int64_t> parts;
  std::vector<std::pair<double, std::size_t>> lost;
  std::int64_t left = rows;
  for (const std::int64_t count : counts) {
    const double exact = static_cast<double>(rows) * static_cast<double>(count) / sum;
    lost.emplace_back(std::floor(exact) - exact, parts.size());
    parts.push_back(static_cast<std::int64_t>(exact));
    left -= parts.back();
  }
  std::sort(lost.begin(), lost.end());
  for (std::size_t i = 0; left > 0 && i < lost.size(); ++i, --left) ++parts[lost[i].second];
  return parts;
}

/// Do the rows that arrive have room where the plan, with its own routing, gave it?  Else no run of it had this routing, the same
/// on every rank.
bool have_room(const Scenario& planned, const Scenario& routed) {
  for (int rank = 0; rank < planned.plan.expert_parallel; ++rank) {
    const std::vector<RoutedRows> room = route(planned, rank), rows = route(routed, rank);
    for (std::size_t layer = 0; layer < rows.size(); ++layer)
      if (rows[layer].received > room[layer].bound) return false;
  }
  return true;
}

/// The plan with the routing that a step had, the same on every rank; nothing if it does not fit the model or the plan's
/// capacity, or decides nothing.
std::optional<Scenario> with_routing_of(const Scenario& scenario, const RunStep& step) {
  const Plan& plan = scenario.plan;
  if (plan.expert_parallel == 1 || plan.moe.drop_tokens || step.expert_tokens.empty()) return std::nullopt;
  Scenario routed = scenario;
  Routing& routing = routed.plan.routing;
  routing = {};
  routing.kind = Routing::Kind::histogram;
  std::size_t layer = 0;
  for (std::size_t i = 0; i < scenario.model.layers.size(); ++i) {
    const std::optional<MoeSpec> moe = moe_of_layer(scenario, i);
    if (!moe) continue;
    if (layer == step.expert_tokens.size()) return std::nullopt;
    const std::vector<std::int64_t>& counts = step.expert_tokens[layer++];
    const bool any = std::any_of(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; });
    if (std::ssize(counts) != moe->experts || !any) return std::nullopt;
    routing.counts.push_back({in_proportion(counts, plan.tokens() * moe->top_k)});
  }
  if (layer != step.expert_tokens.size() || !have_room(scenario, routed)) return std::nullopt;
  return routed;
}

std::string shown(const RunFigure& figure, double value) {
  return figure.name.rfind("step time", 0) == 0 ? format(Seconds(value))
                                                : format_count(static_cast<std::int64_t>(value));
}

}  // namespace

const RunStep* RunLog::median_step() const {
  std::vector<const RunStep*> times;
  for (std::size_t i = 1; i < steps.size(); ++i) times.push_back(&steps[i]);
  if (times.empty()) return nullptr;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end(),
                   [](const RunStep* a, const RunStep* b) { return a->time_s < b->time_s; });
  return *middle;
}

double RunLog::step_time_s() const {
  const RunStep* median = median_step();
  return median == nullptr ? 0 : median->time_s;
}

bool is_run_log(const SourceFile& file) {
  const Json head = Json::parse(file.text.substr(0, file.text.find('\n')), nullptr, false);
  return head.is_object() && head.contains("digest") && head.contains("backend");
}

Result<RunLog> read_run_log(const std::shared_ptr<const SourceFile>& file) {
  constexpr const char* origin = "a log that plimsoll-run --log FILE wrote";
  RunLog log;
  Diagnostics left_out;
  const auto leave_out = [&](int line, std::string why) {
    left_out.push_back(wrong("compare.log", file, std::move(why), "the line is left out"));
    left_out.back().severity = Severity::warning;
    left_out.back().place.line = line;
    left_out.back().place.column = 1;
  };
  std::istringstream lines(file->text);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    ++count;
    const Json json = Json::parse(line, nullptr, false);
    if (log.digest.empty()) {
      log.digest = json.is_object() ? text(json, "digest") : "";
      if (log.digest.empty()) return wrong("compare.log", file, "the first line states no digest of a program", origin);
      log.backend = text(json, "backend");
      const std::size_t end = file->text.find('\n');
      log.head = place_in(file, 0, std::min(end, file->text.size()));
      continue;
    }
    const bool torn = lines.eof() && !json.is_object();
    if (torn) {
      leave_out(count, "the last line is cut short");
    } else if (std::string why = what_is_wrong(json); !why.empty()) {
      leave_out(count, std::move(why));
    } else {
      const auto skipped = json.find("skipped");
      log.steps.push_back({static_cast<std::int64_t>(number(json, "step")), number(json, "loss"),
                           number(json, "step_time_s"), number(json, "tokens_per_s_per_rank"),
                           skipped != json.end() && *skipped == true, expert_tokens_of(json)});
      log.high_water_bytes =
          std::max(log.high_water_bytes, static_cast<std::int64_t>(number(json, "high_water_bytes")));
      log.sent_bytes = static_cast<std::int64_t>(number(json, "sent_bytes"));
    }
  }
  if (log.digest.empty()) return wrong("compare.log", file, "the file is empty", origin);
  if (!log.steps.empty()) return {std::move(log), std::move(left_out)};
  left_out.push_back(wrong("compare.log", file, "the log holds no step", origin));
  return left_out;
}

Result<std::vector<RunFigure>> compare_run(const Evaluation& evaluation, const RunLog& log,
                                           const Calibration& calibration) {
  if (log.digest != evaluation.program.digest)
    return make_error(
        "compare.digest",
        fmt::format("the log is of program {}, these inputs make program {}", log.digest, evaluation.program.digest),
        "give the model, cluster and plan that were run", log.head);
  const RankProgram& rank = evaluation.rank_program();
  std::int64_t wire = 0;
  for (const VolumeRow& row : account_volume(evaluation.program, rank, evaluation.scenario.cluster).rows) {
    if (row.group != "host") wire += row.wire.count;
  }
  std::vector<RunFigure> figures;
  figures.push_back({"arena bytes", static_cast<double>(plan_arena(rank).size.count), {}});
  if (log.high_water_bytes > 0) figures.back().measured = static_cast<double>(log.high_water_bytes);
  figures.push_back({"bytes sent", static_cast<double>(wire), {}});
  if (log.sent_bytes > 0) figures.back().measured = static_cast<double>(log.sent_bytes);
  const SimulatedStep step = simulated(evaluation.program, evaluation.scenario.cluster, calibration);
  figures.push_back({"step time", step.step_time_s, {}});
  // The host backend is the numerical reference: its time says nothing about the cluster's.
  if (log.backend == "cuda" && log.steps.size() > 1) figures.back().measured = log.step_time_s();
  const RunStep* median = log.median_step();
  if (median == nullptr) return figures;
  if (std::optional<Scenario> routed = with_routing_of(evaluation.scenario, *median)) {
    const int hottest = hottest_rank(*routed);
    Evaluation as_routed = build_alone(std::move(*routed), hottest);
    add_other_ranks(as_routed.scenario, as_routed.program);
    const SimulatedStep routed_step = simulated(as_routed.program, as_routed.scenario.cluster, calibration);
    figures.push_back({"step time, as routed", routed_step.step_time_s, figures.back().measured});
  }
  return figures;
}

std::string run_comparison_text(const std::vector<RunFigure>& figures, const RunLog& log) {
  Table table({{"of a rank and step"}, {"predicted", Align::right}, {"run", Align::right}, {"error", Align::right}});
  for (const RunFigure& figure : figures) {
    table.row({figure.name, shown(figure, figure.predicted), figure.measured ? shown(figure, *figure.measured) : "-",
               figure.measured ? fmt::format("{:+.2f} %", 100 * figure.error()) : ""});
  }
  return fmt::format("{}\n  {} on the {} backend, loss {} to {}\n\ndigest {}\n", table.text(2),
                     counted(std::ssize(log.steps), "step"), log.backend, loss_in_words(log.steps.front().loss),
                     loss_in_words(log.steps.back().loss), log.digest);
}

std::string run_comparison_json(const std::vector<RunFigure>& figures, const RunLog& log) {
  Json json = {{"digest", log.digest}, {"backend", log.backend}, {"steps", log.steps.size()}};
  json["figures"] = Json::array();
  for (const RunFigure& figure : figures)
    json["figures"].push_back({{"figure", figure.name},
                               {"predicted", figure.predicted},
                               {"measured", figure.measured ? Json(*figure.measured) : Json(nullptr)},
                               {"error", figure.measured ? Json(figure.error()) : Json(nullptr)}});
  return json_text(json);
}

}  // namespace plimsoll
