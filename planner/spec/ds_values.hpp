// Which value does DeepSpeed see where a ds_config.json says something?  Its configuration sections are pydantic models,
// which convert: "3" is 3, 1 is true, 5e8 is a whole number; plain look-ups at the top level convert nothing.
#pragma once

#include <optional>
#include <string>

#include "planner/spec/document.hpp"

namespace plimsoll {

/// The word "auto", which Hugging Face's Trainer replaces before DeepSpeed sees the file.
bool is_auto(const Node* node);

// Each returns nothing where the node is null, JSON null, "auto" or not convertible to the type.
std::optional<bool> boolean_value(const Node* node);
std::optional<std::int64_t> integer_value(const Node* node);
std::optional<double> number_value(const Node* node);
std::optional<std::string> text_value(const Node* node);

std::string in_lower_case(std::string text);

/// True if the value has the type only after pydantic's conversion.
bool is_converted(const Node& node, bool boolean_due);

}  // namespace plimsoll
