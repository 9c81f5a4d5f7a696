// Is this configuration legal, and what does each key of it really do?  The reader's findings, then the rules that span
// plan, model and cluster; from all of them the verdict on every key of the file.
#include "planner/spec/check_configuration.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "planner/spec/legality.hpp"
#include "planner/spec/read_ds_config.hpp"

namespace plimsoll {
namespace {

/// An error that leaves the other values of the plan as they are; after any other one, rules that span files would only
/// repeat it in other words.
bool leaves_plan_readable(const Diagnostic& diagnostic) {
  static constexpr std::array<std::string_view, 7> codes = {
      "plan.unknown", "plan.unsupported", "ds.unknown", "ds.optimizer", "ds.precision", "ds.reduction", "plan.version"};
  return diagnostic.severity != Severity::error ||
         std::find(codes.begin(), codes.end(), diagnostic.code) != codes.end();
}

/// Sections and keys that the plan's engine or experts never look at.
void ignore_foreign_keys(const Plan& plan, std::set<std::string>& ignored) {
  std::vector<const char*> keys;
  if (plan.engine != Engine::fsdp2) keys.push_back("/fsdp");
  if (plan.engine == Engine::fsdp2 || plan.engine == Engine::ddp) keys.push_back("/zero");
  if (plan.moe.implementation != MoeImplementation::native && plan.moe.implementation != MoeImplementation::fused)
    for (const char* key : {"/moe/capacity_factor", "/moe/min_capacity", "/moe/drop_tokens", "/moe/use_residual"})
      keys.push_back(key);
  for (const char* key : keys) {
    const auto place = plan.places.find(key);
    if (place != plan.places.end()) ignored.insert(place->second.pointer);
  }
}

class KeyJudge {
 public:
  KeyJudge(const SourceFile* file, const Diagnostics& diagnostics, const std::set<std::string>& ignored)
      : ignored_(ignored) {
    for (const Diagnostic& diagnostic : diagnostics) {
      if (diagnostic.place.file.get() != file) continue;
      if (diagnostic.severity == Severity::error && diagnostic.code != "plan.unsupported")
        rejected_.insert(diagnostic.place.pointer);
      if (diagnostic.severity == Severity::warning) warned_.insert(diagnostic.place.pointer);
    }
  }

  std::vector<KeyVerdict> verdicts(const Node& root) {
    if (root.is_object()) walk(root, false);
    return std::move(verdicts_);
  }

 private:
  void walk(const Node& object, bool inside_ignored) {
    for (const Node::Member& member : object.members()) {
      const std::string pointer = member.value->pointer();
      const bool ignored = inside_ignored || ignored_.count(pointer) != 0;
      const Treatment treatment = rejected_.count(pointer) != 0 ? Treatment::rejected
                                  : ignored                     ? Treatment::ignored
                                  : warned_.count(pointer) != 0 ? Treatment::warned
                                                                : Treatment::used;
      verdicts_.push_back({pointer, treatment});
      if (member.value->is_object()) walk(*member.value, ignored);
    }
  }

  const std::set<std::string>& ignored_;
  std::set<std::string> rejected_, warned_;
  std::vector<KeyVerdict> verdicts_;
};

void sort_by_place(Diagnostics& diagnostics, const SourceFile* file) {
  const auto position = [&](const Diagnostic& diagnostic) {
    const bool in_file = diagnostic.place.file != nullptr && diagnostic.place.file.get() == file;
    return std::tuple(!in_file, diagnostic.place.file == nullptr, diagnostic.place.line, diagnostic.place.column);
  };
  std::stable_sort(diagnostics.begin(), diagnostics.end(),
                   [&](const Diagnostic& a, const Diagnostic& b) { return position(a) < position(b); });
}

}  // namespace

const char* name_of(Treatment treatment) {
  switch (treatment) {
    case Treatment::used: return "used";
    case Treatment::ignored: return "ignored";
    case Treatment::warned: return "warned";
    case Treatment::rejected: return "rejected";
  }
  return "";
}

bool hang_on_ranks(const Diagnostics& diagnostics) {
  static constexpr std::array<std::string_view, 5> codes = {"ds.batch", "plan.expert.world", "plan.fsdp.replicate",
                                                            "plan.too_large", "plan.world.cluster"};
  return std::all_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& diagnostic) {
    return diagnostic.severity != Severity::error ||
           std::find(codes.begin(), codes.end(), diagnostic.code) != codes.end();
  });
}

CheckReport check_configuration(const ConfigurationInput& input) {
  PlanContext context;
  context.overrides = input.overrides;
  context.cluster_world = input.cluster == nullptr ? 0 : input.cluster->world();
  context.model = input.model;
  context.keep_batch = input.keep_batch;
  PlanReading reading =
      input.is_ds_config ? read_ds_config_file(input.file, context) : read_plan_file(input.file, context);

  CheckReport report;
  report.diagnostics = std::move(reading.diagnostics);
  if (std::all_of(report.diagnostics.begin(), report.diagnostics.end(), leaves_plan_readable)) {
    const RuleInput rules{reading.plan, input.model, input.cluster};
    for (Diagnostics& found : std::array{check_legality(rules), find_traps(rules)})
      std::move(found.begin(), found.end(), std::back_inserter(report.diagnostics));
    ignore_foreign_keys(reading.plan, reading.ignored);
  }
  sort_by_place(report.diagnostics, input.file.get());
  if (reading.document)
    report.keys =
        KeyJudge(&reading.document->file(), report.diagnostics, reading.ignored).verdicts(reading.document->root());
  report.defaults = reading.plan.defaults_taken;
  report.global_batch = reading.global_batch;
  if (!has_errors(report.diagnostics)) report.plan = std::move(reading.plan);
  return report;
}

}  // namespace plimsoll
