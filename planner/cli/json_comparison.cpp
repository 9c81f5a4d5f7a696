// The JSON object of compare (planner/cli/trace_comparison.hpp).
#include <nlohmann/json.hpp>

#include "planner/cli/json_text.hpp"
#include "planner/cli/trace_comparison.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::vector<TensorGroup>& groups, bool with_shift = false) {
  Json list = Json::array();
  for (const TensorGroup& group : groups) {
    Json json = {{"tensor", group.name},          {"formula", group.formula}, {"bytes", group.bytes.count},
                 {"count", group.count},          {"phase", group.phase},     {"first_layer", group.first_layer},
                 {"last_layer", group.last_layer}};
    if (with_shift) json["freed_later_by"] = {group.shift_low, group.shift_high};
    list.push_back(std::move(json));
  }
  return list;
}

Json json_of(const PeakOfRecord& peak) {
  return {{"bytes", peak.bytes.count}, {"tensor", peak.tensor}, {"phase", peak.phase}};
}

Json side(int count, Bytes bytes, Bytes live, const PeakOfRecord& peak) {
  return {{"allocations", count},
          {"allocated_bytes", bytes.count},
          {"live_before_bytes", live.count},
          {"peak", json_of(peak)}};
}

}  // namespace

std::string comparison_json(const TraceComparison& comparison) {
  const TraceComparison& c = comparison;
  Json json = {{"threshold_bytes", c.threshold.count},
               {"program", side(c.program_count, c.program_bytes, c.program_live, c.program_peak)},
               {"measured", side(c.trace_count, c.trace_bytes, c.trace_live, c.trace_peak)},
               {"in_both", {{"allocations", c.matched}, {"allocated_bytes", c.matched_bytes.count}}},
               {"peak_error", c.peak_error()}};
  json["only_in_program"] = json_of(c.only_in_program);
  json["only_in_measured"] = json_of(c.only_in_trace);
  json["lifetimes"] = json_of(c.lifetimes, true);
  json["only_at_program_peak"] = json_of(c.only_at_program_peak);
  json["only_at_measured_peak"] = json_of(c.only_at_trace_peak);
  return json_text<Json>(json);
}

}  // namespace plimsoll
