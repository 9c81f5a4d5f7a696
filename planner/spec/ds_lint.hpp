// What does DeepSpeed do with every key of a ds_config.json (or of the section "zero" of plan.json)?  Key by key, against
// the table of planner/spec/ds_keys.hpp: accepted, accepted under a second name, deprecated, without effect at this stage,
// ignored, rejected, of the wrong type.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "planner/spec/document.hpp"

namespace plimsoll {

struct DsLint {
  int stage;                       ///< of ZeRO, as it takes effect
  Diagnostics& diagnostics;        ///< codes "ds.…"
  std::set<std::string>& ignored;  ///< JSON pointers of the values that DeepSpeed never looks at
  bool measured = true;            ///< the version asked for is that of the table, or newer
};

/// Judges the members of one section, and of the sections in it.
/// @param section pointer of the section in a ds_config.json; the node may stand elsewhere in its file
void lint_section(const Node& object, std::string_view section, DsLint& lint);

/// True if Hugging Face's Trainer replaces "auto" there.
/// @param pointer in a ds_config.json
bool trainer_resolves(std::string_view pointer);

}  // namespace plimsoll
