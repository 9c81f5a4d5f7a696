// How is a plan put together?  Statements with their places, and the command line's overrides: each becomes a small
// document {"zero": {"stage": 3}}, so that one reader serves files and overrides and errors of both are located.
#include "planner/spec/plan_draft.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace plimsoll {
namespace {

/// The value as JSON: as it is if it reads as JSON, else as a string.
std::string json_of(const std::string& value) {
  const char first = value.empty() ? ' ' : value.front();
  if (first == '{' || first == '[' || first == '"' || nlohmann::json::accept(value)) return value;
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// {"zero": {"stage": 3}} for "zero.stage=3"; nothing if it is no assignment.
std::optional<std::string> document_of(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  std::string text, closing;
  for (std::size_t begin = 0; begin <= equals;) {
    const std::size_t end = std::min(assignment.find('.', begin), equals);
    const std::string key = assignment.substr(begin, end - begin);
    if (key.empty()) return std::nullopt;
    text += "{" + nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ": ";
    closing += "}";
    begin = end + 1;
  }
  return text + json_of(assignment.substr(equals + 1)) + closing;
}

}  // namespace

bool PlanDraft::will_override(std::string_view key) const {
  return std::any_of(context.overrides.begin(), context.overrides.end(), [&](const std::string& assignment) {
    return assignment.size() > key.size() && assignment[key.size()] == '=' && assignment.starts_with(key);
  });
}

void PlanDraft::state(const std::string& pointer, const Node& value) {
  plan.places[pointer] = value.place();
  if (reading_overrides) overridden.insert(pointer);
}

void PlanDraft::report(Severity severity, const char* code, Place place, std::string message, std::string help) {
  reading.diagnostics.push_back({severity, code, std::move(place), std::move(message), {}, std::move(help)});
}

void PlanDraft::unsupported(Place place, std::string message, std::string help) {
  report(Severity::error, "plan.unsupported", std::move(place), std::move(message), std::move(help));
}

void read_overrides(PlanDraft& draft) {
  draft.reading_overrides = true;
  for (const std::string& assignment : draft.context.overrides) {
    const std::optional<std::string> text = document_of(assignment);
    auto file = std::make_shared<SourceFile>(SourceFile{"--set " + assignment, text.value_or(assignment)});
    if (!text) {
      draft.report(Severity::error, "plan.set", place_in(file, 0, assignment.size()),
                   fmt::format("--set {}: must be KEY=VALUE", assignment), "as in --set zero.stage=3");
      continue;
    }
    const Result<Document> document = parse_document(file);
    draft.reading.diagnostics.insert(draft.reading.diagnostics.end(), document.diagnostics().begin(),
                                     document.diagnostics().end());
    if (!document) continue;
    draft.override_files.push_back(*document);
    read_plan_object(document->root(), draft);
  }
  draft.reading_overrides = false;
  check_adapters(draft);
}

}  // namespace plimsoll
