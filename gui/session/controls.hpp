// Which values can a control take, and why not the others?  The plan's keys that the desktop program offers, each with the
// values to try; whether one is legal is decided by the same rules as `plimsoll check`, for the scenario as it stands.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gui/session/scenario_text.hpp"

namespace plimsoll::gui {

struct Control {
  enum class Kind { choice, number };
  std::string key;    ///< "zero.stage"
  std::string label;  ///< with its mnemonic: "ZeRO &stage"
  std::string group;  ///< heading under which it stands
  std::string term;   ///< what the word means, for a tooltip
  Kind kind = Kind::choice;
  std::vector<std::string> values;  ///< to choose from; of numbers: the stops of its slider, ascending
  std::vector<std::string> words;   ///< how the values are shown, where that differs
  const std::string& shown(std::size_t index) const { return words.empty() ? values[index] : words[index]; }
};

/// In the order in which they are shown.
const std::vector<Control>& controls();
const Control* find_control(const std::string& key);

/// What is so now, and what could be.
struct ControlState {
  std::string value;                 ///< in effect: stated or the default
  bool stated = false;               ///< by the file or a setting
  std::vector<std::string> refused;  ///< for each of the control's values: why it is not legal; "" if it is
};
using ControlStates = std::map<std::string, ControlState>;  ///< by key

/// @param inputs without errors, else nothing can be said of what is legal and every `refused` is empty
/// @param want_reasons false: values only, which takes no time
ControlStates states_of(const Inputs& inputs, const ScenarioText& text, bool want_reasons);

}  // namespace plimsoll::gui
