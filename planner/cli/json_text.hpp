// How is a JSON object of --json written, and how do a plan's settings become JSON?  For the files that make such objects;
// they include the JSON library themselves, so that no header has to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/cli/remedy.hpp"

namespace plimsoll {

/// The text, ended by a newline; bytes that are no UTF-8 become U+FFFD.
template <class Json>
std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// The value that --set takes after its "=": JSON, else a string.
template <class Json>
Json json_value(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

/// {"micro_batch": 1} of {"micro_batch=1"}.
template <class Json>
Json json_of_sets(const std::vector<std::string>& sets) {
  Json json = Json::object();
  for (const std::string& set : sets) {
    const std::size_t equals = set.find('=');
    json[set.substr(0, equals)] = json_value<Json>(set.substr(equals + 1));
  }
  return json;
}

/// {"set": {...}, "verdict": "fits"}, or null.
template <class Json>
Json json_of_change(const std::optional<Remedy>& change) {
  if (!change) return Json();
  return {{"set", json_of_sets<Json>(change->sets)}, {"verdict", name_of(change->verdict)}};
}

}  // namespace plimsoll
