// How wide is a text on a terminal, and how many characters does it have?  Files and messages are UTF-8; columns count
// code points; terminals show some of them two cells wide and some in none.  Bytes that are not UTF-8, and control
// characters, never reach a terminal: they are shown as U+FFFD.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll {

/// One code point of a UTF-8 text.  A byte that does not belong to valid UTF-8 counts as one invalid code point.
struct CodePoint {
  char32_t value = 0xFFFD;
  std::size_t bytes = 1;
  bool valid = false;
};

/// The code point that starts at byte `at`, which lies inside `text`.  Overlong forms, surrogates and values beyond
/// U+10FFFF are invalid (RFC 3629).
CodePoint decode_utf8(std::string_view text, std::size_t at);

/// True if all of `text` is UTF-8.
bool is_utf8(std::string_view text);

/// Code points in `text`, invalid bytes counted one each.
std::size_t count_code_points(std::string_view text);

/// Terminal cells: 0 for combining marks, 2 for East Asian wide characters and emoji, else 1.
int display_width(char32_t code_point);
int display_width(std::string_view text);

/// `text` with invalid bytes and control characters (except newline) as U+FFFD.
std::string printable(std::string_view text);

}  // namespace plimsoll
