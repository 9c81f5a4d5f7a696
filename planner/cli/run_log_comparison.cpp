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
constexpr double most_steps = 1e15, most_bytes = limits::bytes, least_time_s = 1e-9, most_time_s = 1e9;

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

std::string shown(const RunFigure& figure, double value) {
  return figure.name == "step time" ? format(Seconds(value)) : format_count(static_cast<std::int64_t>(value));
}

}  // namespace

double RunLog::step_time_s() const {
  std::vector<double> times;
  for (std::size_t i = 1; i < steps.size(); ++i) times.push_back(steps[i].time_s);
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
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
                           skipped != json.end() && *skipped == true});
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
  return figures;
}

std::string run_comparison_text(const std::vector<RunFigure>& figures, const RunLog& log) {
  Table table({{"of a rank and step"}, {"predicted", Align::right}, {"run", Align::right}, {"error", Align::right}});
  for (const RunFigure& figure : figures) {
    table.row({figure.name, shown(figure, figure.predicted), figure.measured ? shown(figure, *figure.measured) : "-",
               figure.measured ? fmt::format("{:+.2f} %", 100 * figure.error()) : ""});
  }
  return fmt::format("{}\n  {} on the {} backend, loss {} to {}\n\ndigest {}\n", table.text(2),
                     log.steps.size() == 1 ? "1 step" : fmt::format("{} steps", log.steps.size()), log.backend,
                     loss_in_words(log.steps.front().loss), loss_in_words(log.steps.back().loss), log.digest);
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
