// The JSON objects of max, need, sweep, diff and explain (planner/cli/json_output.hpp).
#include <nlohmann/json.hpp>

#include "planner/cli/json_output.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/spec/write_plan.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Json plan_json(const Evaluation& evaluation) { return Json::parse(write_plan_json(evaluation.scenario.plan)); }

Json fit_json(const Evaluation& evaluation) {
  return {{"gpus", evaluation.scenario.plan.world_size},
          {"plan", plan_json(evaluation)},
          {"margin_bytes", evaluation.ledger.margin.count},
          {"verdict", name_of(evaluation.ledger.verdict)}};
}

/// Where it is tight, also the smallest that fits; beyond one node, where the last one has GPUs to spare, what all of its GPUs
/// make of it.
Json need_json(const Need& need) {
  Json json = fit_json(need.fewest);
  if (need.with_room) json["with_room"] = fit_json(*need.with_room);
  if (!need.in_whole_nodes) return json;
  Json whole = fit_json(*need.in_whole_nodes);
  whole["nodes"] =
      need.in_whole_nodes->scenario.plan.world_size / need.in_whole_nodes->scenario.cluster.devices_per_node;
  json["whole_nodes"] = whole;
  return json;
}

Json terms_json(const std::vector<DiffTerm>& terms) {
  Json json = Json::array();
  for (const DiffTerm& term : terms)
    json.push_back({{"name", term.name}, {"a", term.a}, {"b", term.b}, {"difference", term.b - term.a}});
  return json;
}

/// Bytes are whole numbers.
Json byte_terms_json(const std::vector<DiffTerm>& terms) {
  Json json = Json::array();
  for (const DiffTerm& term : terms) {
    const auto a = static_cast<std::int64_t>(term.a), b = static_cast<std::int64_t>(term.b);
    json.push_back({{"name", term.name}, {"a_bytes", a}, {"b_bytes", b}, {"difference_bytes", b - a}});
  }
  return json;
}

Json side_json(const Evaluation& side) {
  return {{"digest", side.program.digest},
          {"verdict", name_of(side.ledger.verdict)},
          {"margin_bytes", side.ledger.margin.count},
          {"plan", plan_json(side)}};
}

}  // namespace

std::string max_json(const std::string& key, std::int64_t value, const Evaluation& evaluation) {
  return json_text<Json>({{"key", key},
                          {"value", value},
                          {"plan", value > 0 ? plan_json(evaluation) : Json()},
                          {"margin_bytes", evaluation.ledger.margin.count},
                          {"verdict", name_of(evaluation.ledger.verdict)}});
}

std::string need_json(const std::vector<NeedAnswer>& answers) {
  Json list = Json::array();
  for (const NeedAnswer& answer : answers) {
    Json json = {{"device", answer.device}, {"gpus", nullptr}, {"plan", nullptr}, {"margin_bytes", nullptr}};
    if (answer.smallest) json.update(need_json(*answer.smallest));
    if (answer.without_offload) json["without_offload"] = need_json(*answer.without_offload);
    if (!answer.divisors.empty()) json["tried"] = answer.divisors;
    list.push_back(json);
  }
  return json_text<Json>({{"answers", list}});
}

std::string sweep_json(const std::vector<std::string>& keys, const std::vector<SweepRow>& rows) {
  Json list = Json::array();
  for (const SweepRow& row : rows) {
    Json set = Json::object();
    for (std::size_t i = 0; i < keys.size(); ++i) set[keys[i]] = json_value<Json>(row.values[i]);
    Json json = {{"set", set}};
    if (row.ledger) {
      const Ledger& ledger = *row.ledger;
      json["verdict"] = name_of(ledger.verdict);
      json["allocated_peak_bytes"] = ledger.allocated_peak.value.count;
      json["reserved_peak_bytes"] = ledger.reserved_peak.value.count;
      json["device_peak_bytes"] = ledger.device_peak.value.count;
      json["margin_bytes"] = ledger.margin.count;
      json["host_per_node_bytes"] = ledger.host_per_node.count;
      json["wire_bytes_per_step"] = row.volume.count;
      json["step_time_s"] = row.step_time.count;
      json["tokens_per_s_per_gpu"] = row.tokens_per_s;
    } else {
      json["verdict"] = nullptr;
      json["refusal"] = row.refusal;
    }
    list.push_back(json);
  }
  return json_text<Json>({{"keys", keys}, {"rows", list}});
}

std::string diff_json(const Evaluation& a, const Evaluation& b, const std::vector<DiffTerm>& memory,
                      const std::vector<DiffTerm>& volumes, const std::vector<DiffTerm>& time) {
  return json_text<Json>({{"a", side_json(a)},
                          {"b", side_json(b)},
                          {"memory", byte_terms_json(memory)},
                          {"volumes", byte_terms_json(volumes)},
                          {"time", terms_json(time)}});
}

std::string listing_json(const Evaluation& evaluation, const std::string& listing) {
  Json lines = Json::array();
  for (std::size_t at = 0; at < listing.size();) {
    const std::size_t end = std::min(listing.find('\n', at), listing.size());
    lines.push_back(listing.substr(at, end - at));
    at = end + 1;
  }
  return json_text<Json>({{"digest", evaluation.program.digest}, {"lines", lines}});
}

std::string explain_json(const Evaluation& evaluation, const ExplainedNumber& number) {
  Json terms = Json::array();
  for (const Term& term : number.terms)
    terms.push_back({{"name", term.name},
                     {"value", term.value},
                     {"count", term.count},
                     {"formula", term.formula},
                     {"category", term.category},
                     {"first_layer", term.first_layer < 0 ? Json() : Json(term.first_layer)},
                     {"last_layer", term.last_layer < 0 ? Json() : Json(term.last_layer)}});
  return json_text<Json>({{"digest", evaluation.program.digest},
                          {"name", number.name},
                          {"value", number.value},
                          {"unit", number.unit},
                          {"formula", number.formula},
                          {"terms", terms}});
}

}  // namespace plimsoll
