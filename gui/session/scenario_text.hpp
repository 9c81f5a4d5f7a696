// What does the user ask?  Model, cluster and plan as they would stand on the command line: the one thing that the desktop
// program edits, saves, and undoes.  No Qt here.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/cli/common_inputs.hpp"

namespace plimsoll::gui {

/// Keys of the plan ("zero.stage") and their values as --set takes them.
using Settings = std::map<std::string, std::string>;

struct ScenarioText {
  std::string model;      ///< preset, file, or sketch:...
  std::string cluster;    ///< preset or file
  int nodes = 0;          ///< 0: as the cluster says
  std::string plan_file;  ///< plan.json or ds_config.json; empty: none
  bool is_ds_config = false;
  Settings settings;  ///< over the file's

  bool operator==(const ScenarioText&) const = default;
};

/// As the command line's common inputs, for the hottest rank.
InputOptions options_of(const ScenarioText& text);

/// The command that answers the same: "plimsoll ledger --model ...", quoted for a shell.
std::string command_line_of(const ScenarioText& text, const std::string& command);

/// The settings that differ from `plan_file`'s own, from a plan that a search has found: every key that the search may choose.
Settings settings_of_plan(const Plan& plan);

/// The first that is set over the second.
Settings merged(const Settings& over, Settings under);

/// "zero.stage" of "/zero/stage".
std::string key_of_pointer(const std::string& pointer);

}  // namespace plimsoll::gui
