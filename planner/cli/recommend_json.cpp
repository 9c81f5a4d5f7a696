// The JSON object of `recommend` (planner/cli/recommendation.hpp).
#include <nlohmann/json.hpp>

#include "planner/cli/json_text.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/spec/write_plan.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Json found_json(const Found& found) {
  const Evaluated& evaluated = found.evaluated;
  return {{"plan", Json::parse(write_plan_json(found.plan))},
          {"step_time_s", evaluated.step_time_s},
          {"tokens_per_s", 1 / found.seconds_per_token},
          {"gpus", found.choice.world},
          {"allocated_peak_bytes", evaluated.allocated_peak.count},
          {"device_peak_bytes", evaluated.device_peak.count},
          {"job_device_peak_bytes", evaluated.job_device_peak.count},
          {"host_per_node_bytes", evaluated.host_per_node.count},
          {"margin_bytes", evaluated.margin.count},
          {"verdict", name_of(evaluated.verdict)},
          {"bound_by", evaluated.bound_by},
          {"time_evidence", name_of(evaluated.evidence)}};
}

Json listed_json(const Listed& listed, std::size_t rank) {
  Json json = {{"rank", rank}};
  json.update(found_json(listed.found));
  json["why"] = listed.why;
  return json;
}

/// The nearest plan to fitting, with what it lacks; its step was never timed.
Json nearest_json(const Recommendation& recommendation) {
  if (!recommendation.search.nearest || !recommendation.best) return nullptr;
  const Ledger& ledger = recommendation.best->ledger;
  return {{"plan", Json::parse(write_plan_json(recommendation.best->scenario.plan))},
          {"allocated_peak_bytes", ledger.allocated_peak.value.count},
          {"job_device_peak_bytes", ledger.job_device_peak.value.count},
          {"margin_bytes", ledger.margin.count},
          {"verdict", name_of(ledger.verdict)},
          {"proven", recommendation.search.nearest_proven},
          {"what_helps", recommendation.what_helps},
          {"breaks",
           {{"resource", ledger.breaks_on_host ? "host" : "gpu"},
            {"phase", ledger.breaks_phase},
            {"tensor", ledger.breaks_tensor}}}};
}

}  // namespace

std::string recommend_json(const Recommendation& recommendation) {
  const SearchResult& search = recommendation.search;
  Json json = {{"plans", Json::array()}, {"pareto", Json::array()}, {"excluded", Json::array()}};
  for (const Listed& plan : recommendation.plans) json["plans"].push_back(listed_json(plan, json["plans"].size() + 1));
  for (const Listed& plan : recommendation.front)
    json["pareto"].push_back(listed_json(plan, json["pareto"].size() + 1));
  for (const Exclusion& exclusion : search.excluded)
    json["excluded"].push_back({{"reason", exclusion.reason}, {"count", exclusion.count}});
  json["considered"] = search.considered;
  json["evaluated"] = search.evaluated;
  json["seconds"] = search.seconds;
  json["proven"] = search.proven;
  json["gap"] = search.gap;
  json["expected_gap"] = search.expected_gap;
  json["estimated"] = search.estimated;
  json["time_source"] = recommendation.time_source;
  if (recommendation.step && search.best) {
    json["interval_s"] = {recommendation.step->low_s, recommendation.step->high_s};
    json["mfu"] = recommendation.step->mfu;
  }
  json["deciding"] = recommendation.deciding;
  json["nearest"] = nearest_json(recommendation);
  return json_text(json);
}

}  // namespace plimsoll
