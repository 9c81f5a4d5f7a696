// Which keys does a ds_config.json have, and what does DeepSpeed do with each?  One table for the linter, for the reader of
// ds_config.json and for the section "zero" of plan.json.
//
// Read in the source of DeepSpeed 0.19.8 (runtime/config.py and the config classes it builds), and compared with what its
// DeepSpeedConfig takes and refuses, key by key.  Sizes of zero_optimization are elements, never bytes.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// What DeepSpeed does with a key that it does not know.
enum class UnknownKeys : std::uint8_t {
  ignored,     ///< the section is a dictionary in which known keys are looked up
  rejected,    ///< a pydantic model that forbids extra keys
  passed_on,   ///< arguments of a constructor, which raises TypeError
  not_judged,  ///< a section whose keys this table does not list
};

struct DsSection {
  std::string_view pointer;  ///< "" is the top level
  UnknownKeys unknown;
  std::string_view evidence;  ///< where DeepSpeed reads it
};

enum class KeyType : std::uint8_t { boolean, integer, number, text, section, list, any };

/// Stages of ZeRO in which a key has an effect, one bit each.
using Stages = std::uint8_t;
inline constexpr Stages every_stage = 0b1111, stages_1_to_3 = 0b1110, stages_1_2 = 0b0110, stage_3 = 0b1000;

/// What becomes of a known key.
enum class Effect : std::uint8_t {
  used,
  unused,      ///< read and never looked at again
  deprecated,  ///< still works, with a warning
  removed,     ///< gone in 0.19.8, which raises on the key whatever its value is
};

/// One key; the setters let a row of the table say only what is special about it.
struct DsKey {
  std::string_view section;
  std::string_view name;
  KeyType type = KeyType::any;
  std::string_view default_json;  ///< as JSON; empty: none
  std::string_view alias{};       ///< a second name that DeepSpeed takes
  std::int64_t min = 0;           ///< integers and numbers
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  Stages stages = every_stage;
  Effect effect = Effect::used;
  std::string_view choices{};  ///< of a text, separated by '|'
  bool any_case = false;       ///< the choices may be written in capitals
  bool nullable = false;       ///< null is a value of its own, where the section is a pydantic model
  std::string_view note{};     ///< what the key does, or why it does nothing

  constexpr DsKey also(std::string_view name_too) const {
    DsKey key = *this;
    key.alias = name_too;
    return key;
  }
  constexpr DsKey at_least(std::int64_t value) const {
    DsKey key = *this;
    key.min = value;
    return key;
  }
  constexpr DsKey at_most(std::int64_t value) const {
    DsKey key = *this;
    key.max = value;
    return key;
  }
  constexpr DsKey or_null() const {
    DsKey key = *this;
    key.nullable = true;
    return key;
  }
  constexpr DsKey in_any_case() const {
    DsKey key = *this;
    key.any_case = true;
    return key;
  }
  constexpr DsKey only(Stages when) const {
    DsKey key = *this;
    key.stages = when;
    return key;
  }
  constexpr DsKey one_of(std::string_view values) const {
    DsKey key = *this;
    key.choices = values;
    return key;
  }
  constexpr DsKey says(std::string_view words) const {
    DsKey key = *this;
    key.note = words;
    return key;
  }
  constexpr DsKey dead(std::string_view why) const {
    DsKey key = says(why);
    key.effect = Effect::unused;
    return key;
  }
  constexpr DsKey old(std::string_view instead) const {
    DsKey key = says(instead);
    key.effect = Effect::deprecated;
    return key;
  }
  constexpr DsKey gone(std::string_view what) const {
    DsKey key = says(what);
    key.effect = Effect::removed;
    return key;
  }
};

std::span<const DsSection> ds_sections();
std::span<const DsKey> ds_keys();

/// The section of that pointer; null if there is none.
const DsSection* find_section(std::string_view pointer);
/// The key of that name or alias; null if the section has none.
const DsKey* find_key(std::string_view section, std::string_view name);
/// All names, aliases included, of a section.
std::vector<std::string> key_names(std::string_view section);

/// What to write instead of a key that DeepSpeed does not know in that section: where the setting belongs, the key of
/// another section, or the nearest name.  Empty if nothing comes near.
std::string advice_on(std::string_view section, std::string_view name);

}  // namespace plimsoll
