// What does a plan.json say?  Comments are allowed; single keys can be set over it from the command line (--set); what
// neither states takes the engine's own default.  Keys and their values: configs/README.md.
//
// The same for a ds_config.json: planner/spec/read_ds_config.hpp.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "planner/spec/document.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// What surrounds a plan.
struct PlanContext {
  std::vector<std::string> overrides;  ///< "zero.stage=3", in order; "--gpus N" is "world_size=N"
  int cluster_world = 0;               ///< GPUs of the cluster, the default of world_size; 0: no cluster is given
  const ModelSpec* model = nullptr;    ///< decides what follows from the model (sizes that are "auto", leaf modules)
  /// Of a ds_config.json: what it states of accumulation gives way to its train_batch_size, which stays.
  bool keep_batch = false;
  /// Opens a file that a plan names (routing.file).  @throws MachineError
  std::function<std::shared_ptr<const SourceFile>(const std::string& path)> open = load_source;
};

/// A plan as far as it could be read, and what was found on the way.
struct PlanReading {
  Plan plan;
  Diagnostics diagnostics;        ///< errors, warnings and notes; with an error the plan must not be used
  std::set<std::string> ignored;  ///< JSON pointers, in the file, of keys without effect
  std::optional<Document> document;
  /// Sequences of a step over all ranks, where the file states them and they hold with all that is set; 0: free.
  std::int64_t global_batch = 0;
};

/// Reads plan.json; rules that span files are not among what it checks (planner/spec/legality.hpp).
/// @param file null: there is none, everything comes from the overrides and the defaults
PlanReading read_plan_file(const std::shared_ptr<const SourceFile>& file, const PlanContext& context);

/// The same, as a value or the reasons why there is none.
Result<Plan> read_plan(const std::shared_ptr<const SourceFile>& file, const PlanContext& context = {});

}  // namespace plimsoll
