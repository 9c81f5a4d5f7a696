// How is a plan put together?  A draft takes what a file states, then what the command line sets over it, then the engine's
// defaults for the rest (planner/spec/plan_defaults.cpp).  Internal to the readers of plan.json and ds_config.json.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/spec/read_plan.hpp"

namespace plimsoll {

struct PlanDraft {
  explicit PlanDraft(const PlanContext& surroundings) : context(surroundings) {}

  const PlanContext& context;
  PlanReading reading;
  Plan& plan = reading.plan;
  std::set<std::string> overridden;  ///< keys that the command line set
  bool reading_overrides = false;
  std::vector<Document> override_files;  ///< one document per override

  /// True if the command line sets that key ("precision"), also before the overrides are read.
  bool will_override(std::string_view key) const;
  /// Notes that a key of the plan's vocabulary was stated.
  void state(const std::string& pointer, const Node& value);
  void report(Severity severity, const char* code, Place place, std::string message, std::string help = {});
  /// Refuses what the contract has and nobody built yet.
  void unsupported(Place place, std::string message, std::string help);
};

/// Reads the members of a plan (also a part of one, from an override) into the draft.
void read_plan_object(const Node& root, PlanDraft& draft);

/// Reads zero_optimization, or the section "zero" of a plan; its keys are judged elsewhere (planner/spec/ds_lint.hpp).
void read_zero(const Node& section, PlanDraft& draft);

/// Keys of the section that the asked version of DeepSpeed did not have.
void check_zero_version(const Node& section, PlanDraft& draft);
/// True if DeepSpeed's key table is that of the version asked for.
bool asks_for_measured_version(const Plan& plan);

/// What adapters must state, wherever: in the file or by --set, in any order.
void check_adapters(PlanDraft& draft);

/// Reads --set KEY=VALUE, all of them, and checks what only all together can say.
void read_overrides(PlanDraft& draft);

/// Whatever is not stated takes the default of the engine and its version; also DeepSpeed's silent corrections.
void take_defaults(PlanDraft& draft);

}  // namespace plimsoll
