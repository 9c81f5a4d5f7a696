// Where do the files lie that come with the program?  In a directory `configs` that holds models/, clusters/ and so on:
// the one named by $PLIMSOLL_CONFIGS, that beside an installed program (../share/plimsoll/configs), or that of the source
// tree.  The first that holds the preset counts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// Those of the directories above that exist, in the order in which they are searched.
std::vector<std::filesystem::path> config_directories();

/// The file <directory>/<kind>/<name>.json; nothing if there is none or `name` is no plain word.
/// @param kind "models", "clusters", "calibrations"
std::optional<std::filesystem::path> find_preset(std::string_view kind, std::string_view name);

/// Names of all presets of a kind, sorted.
std::vector<std::string> preset_names(std::string_view kind);

}  // namespace plimsoll
