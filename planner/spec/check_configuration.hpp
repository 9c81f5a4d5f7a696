// Is this configuration legal, and what does each key of it really do?  All that `plimsoll check` says, and the way in for
// every other command: a plan.json or ds_config.json with what stands around it becomes a checked Plan or diagnostics.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/spec/cluster.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/read_plan.hpp"

namespace plimsoll {

/// What becomes of a key of the file.
enum class Treatment : std::uint8_t { used, ignored, warned, rejected };
const char* name_of(Treatment treatment);

struct KeyVerdict {
  std::string pointer;  ///< in the file, in its order
  Treatment treatment;
};

struct ConfigurationInput {
  std::shared_ptr<const SourceFile> file;  ///< null: no file, overrides and defaults only
  bool is_ds_config = false;               ///< the file is a ds_config.json, else a plan.json
  std::vector<std::string> overrides;      ///< --set; --gpus N is "world_size=N"
  const ModelSpec* model = nullptr;
  const ClusterSpec* cluster = nullptr;
  bool keep_batch = false;  ///< as PlanContext has it
};

struct CheckReport {
  std::optional<Plan> plan;  ///< present exactly if there is no error
  Diagnostics diagnostics;   ///< in the order of the file; those without a place last
  std::vector<KeyVerdict> keys;
  std::map<std::string, std::string> defaults;  ///< key of the plan -> JSON of the default taken
  std::int64_t global_batch = 0;                ///< as PlanReading has it
};

/// True if all errors are such that another number of ranks may be without them.
bool hang_on_ranks(const Diagnostics& diagnostics);

/// Reads, judges each key, and applies every rule that spans plan, model and cluster.
/// @throws MachineError if a file that the plan names cannot be read
CheckReport check_configuration(const ConfigurationInput& input);

}  // namespace plimsoll
