// Whose behaviour is asked for?  Versions compared number by number.
#include "planner/spec/engine_version.hpp"

#include <charconv>

namespace plimsoll {

std::optional<EngineVersion> parse_version(std::string_view text) {
  EngineVersion version;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (std::size_t part = 0; part < version.parts.size(); ++part) {
    const auto [next, error] = std::from_chars(at, end, version.parts[part]);
    if (error != std::errc() || version.parts[part] < 0) return std::nullopt;
    if (next == end || *next != '.') return version;
    at = next + 1;
  }
  return version;
}

}  // namespace plimsoll
