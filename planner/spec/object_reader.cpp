// How is a wrong value reported?  Always at its own place, with what it is and what it must be.
#include <fmt/core.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t unknown_limit = 20;  ///< unknown keys reported per object

/// The value as the file writes it, short enough for a message.
std::string shown(const Node& node) {
  if (node.is_array() || node.is_object()) return node.kind_in_words();
  const std::string_view source = node.source();
  if (source.size() <= 40) return std::string(source);
  return node.kind_in_words();
}

std::string in_range(std::int64_t min, std::int64_t max) {
  if (max == std::numeric_limits<std::int64_t>::max()) return fmt::format("at least {}", format_count(min));
  return fmt::format("from {} to {}", format_count(min), format_count(max));
}

std::string in_range(double min, double max) {
  if (max == std::numeric_limits<double>::max()) return fmt::format("at least {}", min);
  if (min == std::numeric_limits<double>::lowest()) return fmt::format("at most {}", max);
  return fmt::format("from {} to {}", min, max);
}

/// How to write what was written as another type: a word or number in a list, a number without its quotes, a word with them.
std::string advice_on_type(const Node& value, std::string_view due) {
  const bool scalar = !value.is_array() && !value.is_object() && value.source().size() <= 40;
  if (!scalar || value.is_null()) return {};
  if (due == "an array") return fmt::format("write a list: [{}]", value.source());
  if (due == "a string") return fmt::format("write it in quotes: \"{}\"", value.source());
  if (!value.is_string()) return {};
  const std::string& text = value.as_string();
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const bool truth = text == "true" || text == "false";
  const bool fits = due == "true or false" ? truth : number && due.find("number") != std::string_view::npos;
  return fits ? fmt::format("write it without quotes: {}", text) : "";
}

std::string listed(const std::vector<std::string>& choices) {
  std::string text;
  for (const std::string& choice : choices) text += (text.empty() ? "" : ", ") + choice;
  return text;
}

/// "zero.stage" for "stage": a key that belongs into a section.
std::optional<std::string> in_a_section(std::string_view key, const std::vector<std::string>& candidates) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const std::string& candidate) {
    return candidate.ends_with(fmt::format(".{}", key));
  });
  return found == candidates.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

ObjectReader::ObjectReader(const Node& node, Diagnostics& diagnostics, std::string prefix)
    : node_(node), diagnostics_(diagnostics), prefix_(std::move(prefix)) {
  if (!node.is_object()) wrong_type(node, "an object");
}

const Node* ObjectReader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  return node_.find(key);
}

bool ObjectReader::has(std::string_view key) const {
  const Node* value = node_.find(key);
  return value != nullptr && !value->is_null();
}

const Node* ObjectReader::typed(std::string_view key) {
  const Node* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ObjectReader::wrong_type(const Node& value, std::string_view due) {
  Diagnostic diagnostic;
  diagnostic.code = prefix_ + ".type";
  diagnostic.place = value.place();
  const std::string pointer = value.pointer();
  diagnostic.message =
      fmt::format("{} is {}, must be {}", pointer.empty() ? "the document" : pointer, value.kind_in_words(), due);
  diagnostic.help = advice_on_type(value, due);
  diagnostics_.push_back(std::move(diagnostic));
}

void ObjectReader::out_of_range(const Node& value, std::string_view range) {
  Diagnostic diagnostic;
  diagnostic.code = prefix_ + ".range";
  diagnostic.place = value.place();
  diagnostic.message = fmt::format("{} is {}, must be {}", value.pointer(), shown(value), range);
  diagnostics_.push_back(std::move(diagnostic));
}

std::optional<bool> ObjectReader::boolean(std::string_view key) {
  const Node* value = typed(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind() == Node::Kind::boolean) return value->as_bool();
  wrong_type(*value, "true or false");
  return std::nullopt;
}

std::optional<std::int64_t> ObjectReader::integer(std::string_view key, std::int64_t min, std::int64_t max) {
  const Node* value = typed(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind() != Node::Kind::integer) {
    wrong_type(*value, "a whole number " + in_range(min, max));
    return std::nullopt;
  }
  if (value->as_int() >= min && value->as_int() <= max) return value->as_int();
  out_of_range(*value, in_range(min, max));
  return std::nullopt;
}

std::optional<double> ObjectReader::number(std::string_view key, double min, double max) {
  const Node* value = typed(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_type(*value, "a number");
    return std::nullopt;
  }
  if (value->as_double() >= min && value->as_double() <= max) return value->as_double();
  out_of_range(*value, in_range(min, max));
  return std::nullopt;
}

std::optional<std::string> ObjectReader::string(std::string_view key) {
  const Node* value = typed(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->as_string();
  wrong_type(*value, "a string");
  return std::nullopt;
}

std::optional<std::size_t> ObjectReader::choice(std::string_view key, const std::vector<std::string>& choices) {
  const std::optional<std::string> word = string(key);
  if (!word) return std::nullopt;
  const auto found = std::find(choices.begin(), choices.end(), *word);
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  const auto near = nearest(*word, choices);
  const Node& value = *node_.find(key);
  report(Severity::error, key, "choice",
         fmt::format("{} is {}, which is none of its values", value.pointer(), shown(value)),
         near ? fmt::format("did you mean {}? legal values: {}", *near, listed(choices))
              : "legal values: " + listed(choices));
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> ObjectReader::integers(std::string_view key, std::int64_t min,
                                                                std::int64_t max) {
  const Node* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Node* item : value->items()) {
    if (item->kind() == Node::Kind::integer && item->as_int() >= min && item->as_int() <= max) {
      numbers.push_back(item->as_int());
      continue;
    }
    if (item->kind() == Node::Kind::integer) {
      out_of_range(*item, in_range(min, max));
    } else {
      wrong_type(*item, "a whole number " + in_range(min, max));
    }
    return std::nullopt;
  }
  return numbers;
}

std::optional<std::vector<std::string>> ObjectReader::strings(std::string_view key) {
  const Node* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> words;
  for (const Node* item : value->items()) {
    if (!item->is_string()) {
      wrong_type(*item, "a string");
      return std::nullopt;
    }
    words.push_back(item->as_string());
  }
  return words;
}

const Node* ObjectReader::object(std::string_view key) {
  const Node* value = typed(key);
  if (value == nullptr || value->is_object()) return value;
  wrong_type(*value, "an object");
  return nullptr;
}

const Node* ObjectReader::array(std::string_view key) {
  const Node* value = typed(key);
  if (value == nullptr || value->is_array()) return value;
  wrong_type(*value, "an array");
  return nullptr;
}

std::int64_t ObjectReader::required_integer(std::string_view key, std::int64_t min, std::int64_t max) {
  if (const auto value = integer(key, min, max)) return *value;
  if (node_.is_object() && !has(key))
    report(Severity::error, key, "missing", fmt::format("{}/{} is missing", node_.pointer(), key));
  return min;
}

std::string ObjectReader::required_string(std::string_view key) {
  if (auto value = string(key)) return *std::move(value);
  if (node_.is_object() && !has(key))
    report(Severity::error, key, "missing", fmt::format("{}/{} is missing", node_.pointer(), key));
  return {};
}

void ObjectReader::know(const std::vector<std::string>& keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }

std::vector<const Node*> ObjectReader::unknown() const {
  std::vector<const Node*> strangers;
  if (!node_.is_object()) return strangers;
  for (const Node::Member& member : node_.members()) {
    if (std::find(known_.begin(), known_.end(), member.key) == known_.end()) strangers.push_back(member.value);
  }
  return strangers;
}

void ObjectReader::report_unknown(Severity severity, const std::vector<std::string>& also_known) {
  std::vector<std::string> candidates = known_;
  candidates.insert(candidates.end(), also_known.begin(), also_known.end());
  std::size_t reported = 0;
  for (const Node* value : unknown()) {
    const std::string pointer = value->pointer();
    if (++reported > unknown_limit) return;
    Diagnostic diagnostic;
    diagnostic.severity = severity;
    diagnostic.code = prefix_ + ".unknown";
    diagnostic.place = value->key_place();
    diagnostic.message = fmt::format("{} is no known key", pointer);
    const auto within = in_a_section(value->key(), also_known);
    const auto near = within ? within : nearest(value->key(), candidates);
    diagnostic.help = near ? fmt::format("did you mean {}?", *near) : "known keys: " + listed(known_);
    diagnostics_.push_back(std::move(diagnostic));
  }
}

void ObjectReader::report(Severity severity, std::string_view key, std::string_view code, std::string message,
                          std::string help) {
  Diagnostic diagnostic;
  diagnostic.severity = severity;
  diagnostic.code = fmt::format("{}.{}", prefix_, code);
  diagnostic.place = place(key);
  diagnostic.message = std::move(message);
  diagnostic.help = std::move(help);
  diagnostics_.push_back(std::move(diagnostic));
}

Place ObjectReader::place(std::string_view key) const {
  const Node* value = node_.find(key);
  return value == nullptr ? node_.place() : value->place();
}

}  // namespace plimsoll
