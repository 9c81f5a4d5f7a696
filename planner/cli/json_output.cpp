// The JSON objects of check, ledger and volumes (planner/cli/json_output.hpp); those of the searches: json_searches.cpp.
#include "planner/cli/json_output.hpp"

#include <nlohmann/json.hpp>

#include "planner/cli/in_words.hpp"
#include "planner/cli/json_text.hpp"
#include "planner/step/checkpoint_files.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

Json pair_of(Interval interval) { return {interval.low.count, interval.high.count}; }

Json diagnostic_json(const Diagnostic& diagnostic) {
  Json json = {{"code", diagnostic.code}, {"severity", name_of(diagnostic.severity)}};
  const Place& place = diagnostic.place;
  const bool in_file = place.file != nullptr;
  const bool located = in_file && place.line > 0;
  json["file"] = in_file ? Json(place.file->name) : Json();
  json["pointer"] = located ? Json(place.pointer) : Json();
  json["line"] = located ? Json(place.line) : Json();
  json["column"] = located ? Json(place.column) : Json();
  json["message"] = diagnostic.message;
  json["help"] = diagnostic.help;
  return json;
}

Json phases_json(const Ledger& ledger) {
  Json phases = Json::array();
  for (std::size_t i = 0; i < ledger.replay.phases.size(); ++i) {
    const PhaseMemory& phase = ledger.replay.phases[i];
    const HostPhase& host = ledger.host[i];
    phases.push_back({{"name", phase.name},
                      {"allocated_end_bytes", phase.allocated_end.count},
                      {"allocated_peak_bytes", phase.allocated_peak.count},
                      {"reserved_end_bytes", phase.reserved_end.count},
                      {"reserved_peak_bytes", phase.reserved_peak.count},
                      {"host_resident_end_bytes", host.resident_end.count},
                      {"host_resident_peak_bytes", host.resident_peak.count},
                      {"host_pinned_bytes", host.pinned.count}});
  }
  return phases;
}

Json categories_json(const Replay& replay) {
  Json categories;
  for (int i = 0; i < category_count; ++i)
    categories[name_of(static_cast<Category>(i))] = replay.categories_at_peak[static_cast<std::size_t>(i)].count;
  categories["allocator_slack"] = replay.slack_at_peak.count;
  return categories;
}

Json gpu_json(const Evaluation& evaluation) {
  const Ledger& ledger = evaluation.ledger;
  Json gpu = {{"allocated_peak_bytes", ledger.allocated_peak.value.count},
              {"reserved_peak_bytes", ledger.reserved_peak.value.count},
              {"device_peak_bytes", ledger.device_peak.value.count}};
  gpu["interval_bytes"] = {{"allocated", pair_of(ledger.allocated_peak.interval)},
                           {"reserved", pair_of(ledger.reserved_peak.interval)},
                           {"device", pair_of(ledger.device_peak.interval)}};
  gpu["evidence"] = {{"allocated", name_of(ledger.allocated_peak.evidence)},
                     {"reserved", name_of(ledger.reserved_peak.evidence)},
                     {"device", name_of(ledger.device_peak.evidence)}};
  gpu["job_device_peak_bytes"] = ledger.job_device_peak.value.count;
  gpu["job_device_interval_bytes"] = pair_of(ledger.job_device_peak.interval);
  gpu["job_peak_phase"] = ledger.job_peak_phase;
  gpu["peak_phase"] = ledger.peak_phase;
  gpu["peak_op"] = peak_op_in_words(evaluation);
  gpu["categories_at_peak"] = categories_json(ledger.replay);
  gpu["outside_framework"] = {{"context", ledger.outside.context.count},
                              {"nccl", ledger.outside.nccl.count},
                              {"libraries", ledger.outside.libraries.count}};
  gpu["resident_bytes"] = ledger.replay.resident.count;
  return gpu;
}

Json host_json(const Ledger& ledger) {
  Json categories = Json::object();
  for (const auto& [name, bytes] : ledger.host_categories) categories[name] = bytes.count;
  return {{"per_node_bytes", ledger.host_per_node.count},
          {"capacity_bytes", ledger.host_capacity.count},
          {"verdict", name_of(ledger.host_verdict)},
          {"categories", categories}};
}

Json parameters_json(const ParameterCounts& counts) {
  return {{"total", counts.total},
          {"active", counts.active},
          {"active_without_embedding", counts.active_without_embedding},
          {"active_without_embedding_and_head", counts.active_without_embedding_and_head},
          {"dense", counts.dense},
          {"expert", counts.expert}};
}

Json checkpoint_json(const Scenario& scenario) {
  Json list = Json::array();
  Bytes total;
  for (const CheckpointFile& file : checkpoint_files(scenario)) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes.count}});
    total += file.bytes;
  }
  return {{"files", list}, {"total_bytes", total.count}};
}

}  // namespace

std::string diagnostics_json(const Diagnostics& diagnostics) {
  Json list = Json::array();
  for (const Diagnostic& diagnostic : diagnostics) list.push_back(diagnostic_json(diagnostic));
  return json_text<Json>({{"diagnostics", list}});
}

std::string check_json(const Inputs& inputs) {
  Json json;
  json["diagnostics"] = Json::array();
  for (const Diagnostic& diagnostic : inputs.diagnostics()) json["diagnostics"].push_back(diagnostic_json(diagnostic));
  json["keys"] = Json::array();
  for (const KeyVerdict& key : inputs.report().keys)
    json["keys"].push_back({{"pointer", key.pointer}, {"treatment", name_of(key.treatment)}});
  json["defaults"] = Json::object();
  for (const auto& [key, value] : inputs.report().defaults) json["defaults"][key] = json_value<Json>(value);
  const std::optional<Plan>& plan = inputs.report().plan;
  if (inputs.model() && plan) json["parameters"] = parameters_json(parameters_of({*inputs.model(), {}, *plan}));
  if (inputs.model() && !plan) json["parameters"] = parameters_json(count_parameters(*inputs.model()));
  return json_text<Json>(json);
}

std::string ledger_json(const Evaluation& evaluation, const SmallestChange& change) {
  const Ledger& ledger = evaluation.ledger;
  Json json = {{"digest", evaluation.program.digest},
               {"verdict", name_of(ledger.verdict)},
               {"capacity_bytes", ledger.capacity.count},
               {"margin_bytes", ledger.margin.count}};
  if (ledger.verdict != Verdict::fits) {
    json["breaks"] = {{"resource", ledger.breaks_on_host ? "host" : "gpu"},
                      {"phase", ledger.breaks_phase},
                      {"tensor", ledger.breaks_tensor}};
    json["smallest_change"] = json_of_change<Json>(change.found);
    json["all_changes_tried"] = change.all_tried;
  }
  json["gpu"] = gpu_json(evaluation);
  json["phases"] = phases_json(ledger);
  json["host"] = host_json(ledger);
  json["checkpoint"] = checkpoint_json(evaluation.scenario);
  json["parameters"] = parameters_json(parameters_of(evaluation.scenario));
  json["rank"] = evaluation.rank;
  json["assumptions"] = Json::array();
  for (const Assumption& assumption : assumptions_of(evaluation.scenario, evaluation.context))
    json["assumptions"].push_back({{"what", assumption.what}, {"evidence", name_of(assumption.evidence)}});
  return json_text<Json>(json);
}

std::string volumes_json(const Evaluation& evaluation, const CommVolume& volume) {
  Json rows = Json::array();
  for (const VolumeRow& row : volume.rows)
    rows.push_back({{"kind", row.kind},
                    {"group", row.group},
                    {"phase", row.phase},
                    {"tier", name_of(row.tier)},
                    {"dtype", name_of(row.dtype)},
                    {"calls", row.calls},
                    {"full_size_bytes", row.full_size.count},
                    {"wire_bytes", row.wire.count}});
  return json_text<Json>(
      {{"digest", evaluation.program.digest}, {"per_gpu_bytes_per_step", volume.per_gpu.count}, {"rows", rows}});
}

}  // namespace plimsoll
