// The JSON object of oom (planner/cli/oom_decode.hpp).
#include <nlohmann/json.hpp>

#include "planner/cli/json_text.hpp"
#include "planner/cli/oom_decode.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Json bytes_of(const std::optional<PrintedSize>& size) {
  return size ? Json(static_cast<std::int64_t>(size->bytes)) : Json();
}

}  // namespace

std::string oom_json(const OomMessage& message, const std::vector<OomCandidate>& candidates,
                     const std::optional<SmallestChange>& change) {
  Json json = {
      {"requested", message.requested.text},          {"requested_bytes", bytes_of(message.requested)},
      {"capacity_bytes", bytes_of(message.capacity)}, {"allocated_bytes", bytes_of(message.allocated)},
      {"reserved_bytes", bytes_of(message.reserved)}, {"reserved_unused_bytes", bytes_of(message.reserved_unused)},
      {"free_bytes", bytes_of(message.free)},         {"on_host", message.on_host}};
  json["candidates"] = Json::array();
  for (const OomCandidate& candidate : candidates) {
    json["candidates"].push_back({{"tensor", candidate.tensor},
                                  {"formula", candidate.formula},
                                  {"bytes", candidate.bytes.count},
                                  {"relative_error", candidate.relative_error},
                                  {"remedy", candidate.remedy},
                                  {"assumed", candidate.assumed},
                                  {"in_program", candidate.in_program}});
  }
  json["smallest_change"] = json_of_change<Json>(change ? change->found : std::nullopt);
  if (change) json["all_changes_tried"] = change->all_tried;
  return json_text<Json>(json);
}

}  // namespace plimsoll
