// Which value does DeepSpeed see where a ds_config.json says something?  pydantic's conversions, as far as they matter:
// strings of a number, 0/1 and yes/no words for booleans.
#include "planner/spec/ds_values.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace plimsoll {
namespace {

constexpr std::array<std::string_view, 6> true_words = {"1", "true", "t", "yes", "y", "on"};
constexpr std::array<std::string_view, 6> false_words = {"0", "false", "f", "no", "n", "off"};

}  // namespace

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_auto(const Node* node) { return node != nullptr && node->is_string() && node->as_string() == "auto"; }

std::optional<bool> boolean_value(const Node* node) {
  if (node == nullptr) return std::nullopt;
  if (node->kind() == Node::Kind::boolean) return node->as_bool();
  if (node->kind() == Node::Kind::integer && (node->as_int() == 0 || node->as_int() == 1)) return node->as_int() == 1;
  if (!node->is_string()) return std::nullopt;
  const std::string word = in_lower_case(node->as_string());
  if (std::find(true_words.begin(), true_words.end(), word) != true_words.end()) return true;
  if (std::find(false_words.begin(), false_words.end(), word) != false_words.end()) return false;
  return std::nullopt;
}

std::optional<std::int64_t> integer_value(const Node* node) {
  if (node == nullptr) return std::nullopt;
  if (node->kind() == Node::Kind::integer) return node->as_int();
  if (!node->is_string()) return std::nullopt;
  const std::string& text = node->as_string();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<double> number_value(const Node* node) {
  if (node == nullptr) return std::nullopt;
  if (node->is_number()) return node->as_double();
  if (!node->is_string()) return std::nullopt;
  const std::string& text = node->as_string();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<std::string> text_value(const Node* node) {
  if (node == nullptr || !node->is_string() || is_auto(node)) return std::nullopt;
  return node->as_string();
}

bool is_converted(const Node& node, bool boolean_due) {
  return boolean_due ? node.kind() != Node::Kind::boolean : node.is_string();
}

}  // namespace plimsoll
