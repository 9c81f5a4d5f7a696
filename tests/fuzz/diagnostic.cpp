// Does any file with any place in it make the caret display misbehave, or let through what a terminal would obey?
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "planner/base/check.hpp"
#include "planner/base/diagnostic.hpp"
#include "planner/base/unicode.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const auto number = [&](std::size_t index) { return static_cast<std::int8_t>(data[index]); };
  const std::string text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const plimsoll::Place place = {std::make_shared<plimsoll::SourceFile>(plimsoll::SourceFile{text, text}), number(0),
                                 number(1) * 8, number(2) * 8, text};
  const std::string shown = plimsoll::format({plimsoll::Severity::error, "code", place, text, {{place, text}}, text});
  CHECK(plimsoll::is_utf8(shown), "what is shown is UTF-8");
  CHECK(plimsoll::printable(shown) == shown, "what is shown has no control characters");
  return 0;
}
