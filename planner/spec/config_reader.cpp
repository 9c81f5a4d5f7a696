// How is one dimension found under the several names it may have, and when do two of them contradict each other?
#include "planner/spec/config_reader.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "planner/base/format.hpp"

namespace plimsoll {
namespace {

/// The numbers of "list of 32, all 8", as summaries of configs write an array of equal entries.
struct Summary {
  std::int64_t length, entry;
};

std::optional<Summary> parse_summary(std::string_view text) {
  constexpr std::string_view start = "list of ", middle = ", all ";
  const std::size_t at = text.find(middle);
  if (text.substr(0, start.size()) != start || at == std::string_view::npos || at < start.size()) return std::nullopt;
  const auto number = [](std::string_view digits, std::int64_t& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  Summary summary{};
  if (!number(text.substr(start.size(), at - start.size()), summary.length)) return std::nullopt;
  if (!number(text.substr(at + middle.size()), summary.entry)) return std::nullopt;
  return summary;
}

}  // namespace

ConfigReader::ConfigReader(std::vector<ObjectReader> objects, std::map<std::string, Place>& places)
    : objects_(std::move(objects)), places_(places) {}

ConfigReader::Found ConfigReader::look_up(const Keys& keys) {
  Found found;
  for (const std::string_view key : keys) {
    for (ObjectReader& object : objects_) {
      const Node* value = object.find(key);
      if (value == nullptr || value->is_null()) continue;
      if (found.value == nullptr) {
        found = {&object, value};
      } else if (found.value->kind() == Node::Kind::integer && value->kind() == Node::Kind::integer &&
                 found.value->as_int() != value->as_int()) {
        error(value->place(), "contradiction",
              fmt::format("{} is {}, but {}, which means the same, is {}", value->pointer(), value->as_int(),
                          found.value->pointer(), found.value->as_int()));
        object.diagnostics().back().notes.push_back({found.value->place(), found.value->pointer() + " is here"});
      }
    }
  }
  return found;
}

const Node* ConfigReader::find(const Keys& keys) { return look_up(keys).value; }

bool ConfigReader::states(std::string_view key) {
  for (ObjectReader& object : objects_) {
    if (object.find(key) != nullptr) return true;
  }
  return false;
}

void ConfigReader::require(std::string_view key) {
  if (std::find(missing_.begin(), missing_.end(), key) == missing_.end()) missing_.emplace_back(key);
}

void ConfigReader::note(std::string_view place, const Node& value) {
  if (!place.empty()) places_.emplace(place, value.place());
}

std::optional<std::int64_t> ConfigReader::integer(const Keys& keys, std::int64_t min, std::int64_t max,
                                                  std::string_view place) {
  const Found found = look_up(keys);
  if (found.value == nullptr) return std::nullopt;
  note(place, *found.value);
  return found.object->integer(found.value->key(), min, max);
}

std::int64_t ConfigReader::required(const Keys& keys, std::int64_t min, std::int64_t max, std::string_view place) {
  if (!has(keys)) {
    require(keys.front());
    return 0;
  }
  return integer(keys, min, max, place).value_or(0);
}

bool ConfigReader::boolean(std::string_view key, bool otherwise) {
  for (ObjectReader& object : objects_) {
    if (object.has(key)) return object.boolean(key).value_or(otherwise);
  }
  return otherwise;
}

std::optional<std::string> ConfigReader::string(std::string_view key) { return objects_.front().string(key); }

std::optional<std::vector<std::int64_t>> ConfigReader::per_layer(const Keys& keys, std::int64_t layers,
                                                                 std::int64_t min, std::int64_t max,
                                                                 std::string_view place) {
  const Found found = look_up(keys);
  if (found.value == nullptr || layers == 0) return std::nullopt;
  note(place, *found.value);
  std::vector<std::int64_t> values;
  if (found.value->is_array()) {
    auto listed = found.object->integers(found.value->key(), min, max);
    if (!listed) return std::nullopt;
    values = *std::move(listed);
  } else if (const auto summary = found.value->is_string() ? parse_summary(found.value->as_string()) : std::nullopt) {
    if (summary->length < 0 || summary->length > layers || summary->entry < min || summary->entry > max) {
      error(found.value->place(), "range",
            fmt::format("{} is {}; its length must be the number of layers, {}, and its entries from {} to {}",
                        found.value->pointer(), found.value->source(), layers, min, max));
      return std::nullopt;
    }
    values.assign(static_cast<std::size_t>(summary->length), summary->entry);
  } else {
    const auto one = found.object->integer(found.value->key(), min, max);
    if (!one) return std::nullopt;
    values.assign(static_cast<std::size_t>(layers), *one);
  }
  if (static_cast<std::int64_t>(values.size()) == layers) return values;
  error(found.value->place(), "length",
        fmt::format("{} has {} entries, must have one for each of the {} layers", found.value->pointer(), values.size(),
                    layers));
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> ConfigReader::integers(std::string_view key, std::int64_t min,
                                                                std::int64_t max) {
  return objects_.front().integers(key, min, max);
}

std::optional<std::vector<std::string>> ConfigReader::strings(std::string_view key) {
  return objects_.front().strings(key);
}

const Node* ConfigReader::array(std::string_view key) { return objects_.front().array(key); }

void ConfigReader::error(const Place& place, std::string_view code, std::string message, std::string help) {
  Diagnostic diagnostic;
  diagnostic.code = fmt::format("model.{}", code);
  diagnostic.place = place;
  diagnostic.message = std::move(message);
  diagnostic.help = std::move(help);
  objects_.front().diagnostics().push_back(std::move(diagnostic));
}

std::optional<std::string> ConfigReader::similar_key(std::string_view word) const {
  std::vector<std::string> keys;
  if (!objects_.front().node().is_object()) return std::nullopt;
  for (const Node::Member& member : objects_.front().node().members()) keys.push_back(member.key);
  return nearest(word, keys);
}

}  // namespace plimsoll
