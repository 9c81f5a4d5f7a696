// Reads a run's log and sets the prediction beside it (planner/cli/run_log_comparison.hpp).
#include "planner/cli/run_log_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "planner/account/arena.hpp"
#include "planner/account/volume.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/cli/simulated.hpp"
#include "planner/cli/table.hpp"

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

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string shown(const RunFigure& figure, double value) {
  return figure.name == "step time" ? format(Seconds(value)) : format_count(static_cast<std::int64_t>(value));
}

}  // namespace

Result<RunLog> read_run_log(const std::shared_ptr<const SourceFile>& file) {
  RunLog log;
  std::istringstream lines(file->text);
  std::string line;
  std::size_t count = 0;
  bool stepped = false;
  while (std::getline(lines, line)) {
    ++count;
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object())
      return wrong("compare.log", file, fmt::format("line {} is no JSON object", count),
                   "a log that plimsoll-run --log FILE wrote");
    if (count == 1) {
      log.digest = text(json, "digest");
      log.backend = text(json, "backend");
      if (log.digest.empty()) return wrong("compare.log", file, "the first line states no digest");
      continue;
    }
    if (stepped) log.step_times_s.push_back(number(json, "step_time_s"));
    if (!stepped) log.first_loss = number(json, "loss");
    log.last_loss = number(json, "loss");
    stepped = true;
    log.high_water_bytes = std::max(log.high_water_bytes, static_cast<std::int64_t>(number(json, "high_water_bytes")));
    log.sent_bytes = static_cast<std::int64_t>(number(json, "sent_bytes"));
  }
  if (!stepped) return wrong("compare.log", file, "the log holds no step");
  return log;
}

Result<std::vector<RunFigure>> compare_run(const Evaluation& evaluation, const RunLog& log,
                                           const Calibration& calibration) {
  if (log.digest != evaluation.program.digest)
    return wrong(
        "compare.digest", nullptr,
        fmt::format("the log is of program {}, these inputs make program {}", log.digest, evaluation.program.digest),
        "give the model, cluster and plan that were run");
  const RankProgram& rank = evaluation.rank_program();
  std::int64_t wire = 0;
  for (const VolumeRow& row : account_volume(evaluation.program, rank, evaluation.scenario.cluster).rows) {
    if (row.group != "host") wire += row.wire.count;
  }
  std::vector<RunFigure> figures;
  figures.push_back(
      {"arena bytes", static_cast<double>(plan_arena(rank).size.count), static_cast<double>(log.high_water_bytes)});
  figures.push_back({"bytes sent", static_cast<double>(wire), {}});
  if (log.sent_bytes > 0) figures.back().measured = static_cast<double>(log.sent_bytes);
  const SimulatedStep step = simulated(evaluation.program, evaluation.scenario.cluster, calibration);
  figures.push_back({"step time", step.step_time_s, {}});
  // The host backend is the numerical reference: its time says nothing about the cluster's.
  if (log.backend == "cuda" && !log.step_times_s.empty()) figures.back().measured = median(log.step_times_s);
  return figures;
}

std::string run_comparison_text(const std::vector<RunFigure>& figures, const RunLog& log) {
  Table table({{"of a rank and step"}, {"predicted", Align::right}, {"run", Align::right}, {"error", Align::right}});
  for (const RunFigure& figure : figures) {
    table.row({figure.name, shown(figure, figure.predicted), figure.measured ? shown(figure, *figure.measured) : "-",
               figure.measured ? fmt::format("{:+.2f} %", 100 * figure.error()) : ""});
  }
  return fmt::format("{}\n  {} steps on the {} backend, loss {:.4f} to {:.4f}\n\ndigest {}\n", table.text(2),
                     log.step_times_s.size() + 1, log.backend, log.first_loss, log.last_loss, log.digest);
}

std::string run_comparison_json(const std::vector<RunFigure>& figures, const RunLog& log) {
  Json json = {{"digest", log.digest}, {"backend", log.backend}, {"steps", log.step_times_s.size() + 1}};
  json["figures"] = Json::array();
  for (const RunFigure& figure : figures)
    json["figures"].push_back({{"figure", figure.name},
                               {"predicted", figure.predicted},
                               {"measured", figure.measured ? Json(*figure.measured) : Json(nullptr)},
                               {"error", figure.measured ? Json(figure.error()) : Json(nullptr)}});
  return json_text(json);
}

}  // namespace plimsoll
