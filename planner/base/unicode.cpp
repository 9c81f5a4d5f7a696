// How wide is a text on a terminal?  The decoder follows the table of well-formed sequences in RFC 3629; widths follow
// Unicode's general category Mn (combining, no cell) and East_Asian_Width W and F (two cells), by blocks.
#include "planner/base/unicode.hpp"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

constexpr std::array<Range, 10> no_cell{{{0x0300, 0x036F},
                                         {0x0483, 0x0489},
                                         {0x0591, 0x05BD},
                                         {0x064B, 0x065F},
                                         {0x1AB0, 0x1AFF},
                                         {0x1DC0, 0x1DFF},
                                         {0x200B, 0x200F},
                                         {0x20D0, 0x20FF},
                                         {0xFE00, 0xFE0F},
                                         {0xFEFF, 0xFEFF}}};

constexpr std::array<Range, 9> two_cells{{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0xA4CF},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0xFFE0, 0xFFE6},
                                          {0x1F300, 0x3FFFD}}};

template <std::size_t N>
bool any_holds(const std::array<Range, N>& ranges, char32_t value) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [value](Range range) { return range.first <= value && value <= range.last; });
}

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

/// C0 and C1 controls and DEL: a file must not steer the terminal it is shown on.
bool is_control(char32_t value) { return value < 0x20 || (value >= 0x7F && value < 0xA0); }

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xC2 && lead < 0xE0   ? 2
                            : lead >= 0xE0 && lead < 0xF0 ? 3
                            : lead >= 0xF0 && lead < 0xF5 ? 4
                                                          : 0;
  if (bytes == 0 || text.size() - at < bytes) return {};
  char32_t value = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const unsigned byte = byte_at(text, at + i);
    if ((byte & 0xC0u) != 0x80u) return {};
    value = (value << 6u) | (byte & 0x3Fu);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (overlong || surrogate || value > 0x10FFFF) return {};
  return {value, bytes, true};
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (!point.valid) return false;
    at += point.bytes;
  }
  return true;
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += decode_utf8(text, at).bytes;
  return count;
}

int display_width(char32_t code_point) {
  if (any_holds(no_cell, code_point)) return 0;
  return any_holds(two_cells, code_point) ? 2 : 1;
}

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    width += display_width(point.value);
    at += point.bytes;
  }
  return width;
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (!point.valid || (is_control(point.value) && point.value != '\n')) {
      shown += "\xEF\xBF\xBD";
    } else {
      shown += text.substr(at, point.bytes);
    }
    at += point.bytes;
  }
  return shown;
}

}  // namespace plimsoll
