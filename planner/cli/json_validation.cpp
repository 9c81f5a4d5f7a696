// The JSON object of validate (planner/cli/validation.hpp).
#include <nlohmann/json.hpp>

#include "planner/cli/json_text.hpp"
#include "planner/cli/validation.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes are whole numbers, times are not.
Json value_of(double value, bool is_time) { return is_time ? Json(value) : Json(static_cast<std::int64_t>(value)); }

Json json_of(const Comparison& row) {
  Json json = {{"id", row.id},
               {"figure", row.figure},
               {"predicted", value_of(row.predicted, row.is_time())},
               {"measured", value_of(row.measured, row.is_time())},
               {"error", row.error}};
  if (row.interval) json["interval"] = {row.interval->low.count, row.interval->high.count};
  return json;
}

}  // namespace

std::string validation_json(const Validation& validation) {
  Json json;
  json["rows"] = Json::array();
  for (const Comparison& row : validation.rows) json["rows"].push_back(json_of(row));
  json["given_routing"] = Json::array();
  for (const Comparison& row : validation.apart) {
    Json one = json_of(row);
    if (const auto within = row.within()) one["within_interval"] = *within;
    json["given_routing"].push_back(std::move(one));
  }
  json["first_steps_left_out"] = validation.first_steps;
  json["unanswered"] = Json::array();
  for (const Unanswered& row : validation.unanswered)
    json["unanswered"].push_back({{"id", row.id}, {"reason", row.reason}});
  json["summary"] = Json::object();
  for (const FigureSummary& summary : summaries_by_figure(validation.rows)) {
    json["summary"][summary.figure] = {{"n", summary.n},
                                       {"mean", summary.mean},
                                       {"max", summary.max},
                                       {"bias", summary.bias},
                                       {"worst", summary.worst}};
  }
  return json_text<Json>(json);
}

}  // namespace plimsoll
