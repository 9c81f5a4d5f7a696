// Does the decoder accept exactly well-formed UTF-8 (RFC 3629), and do widths match what terminals show?
#include "planner/base/unicode.hpp"

#include <gtest/gtest.h>

namespace plimsoll {
namespace {

using namespace std::string_literals;

TEST(Utf8, DecodesOneToFourBytes) {
  EXPECT_EQ(decode_utf8("A", 0).value, U'A');
  EXPECT_EQ(decode_utf8("é", 0).value, U'é');
  EXPECT_EQ(decode_utf8("€", 0).value, U'€');
  EXPECT_EQ(decode_utf8("😀", 0).value, U'😀');
  EXPECT_EQ(decode_utf8("😀", 0).bytes, 4U);
  EXPECT_EQ(decode_utf8("aé", 1).bytes, 2U);
}

TEST(Utf8, RefusesWhatIsNotWellFormed) {
  for (const std::string& text :
       {"\x80"s, "\xBF"s, "\xC0\x80"s, "\xC1\xBF"s, "\xC3"s, "\xC3("s, "\xE0\x80\x80"s, "\xE2\x82"s, "\xED\xA0\x80"s,
        "\xF0\x80\x80\x80"s, "\xF4\x90\x80\x80"s, "\xF5\x80\x80\x80"s, "\xFF"s}) {
    EXPECT_FALSE(is_utf8(text));
    EXPECT_FALSE(decode_utf8(text, 0).valid);
    EXPECT_EQ(decode_utf8(text, 0).bytes, 1U);
  }
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("\xEF\xBF\xBD"));      // U+FFFD itself is legal
  EXPECT_TRUE(is_utf8("\xF4\x8F\xBF\xBF"));  // U+10FFFF, the last
}

TEST(Utf8, CountsCodePointsAndInvalidBytes) {
  EXPECT_EQ(count_code_points(""), 0U);
  EXPECT_EQ(count_code_points("naïve"), 5U);
  EXPECT_EQ(count_code_points("a\xFF\xFE"), 3U);
}

TEST(DisplayWidth, FollowsTheTerminal) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("é"), 1);
  EXPECT_EQ(display_width("e\u0301"), 1);  // e and a combining acute
  EXPECT_EQ(display_width("模型"), 4);
  EXPECT_EQ(display_width("😀"), 2);
  EXPECT_EQ(display_width("█"), 1);
  EXPECT_EQ(display_width("\uFEFFx"), 1);  // a byte order mark takes no cell
}

TEST(Printable, KeepsTextAndHidesControls) {
  EXPECT_EQ(printable("naïve 模\nx"), "naïve 模\nx");
  EXPECT_EQ(printable("a\x1b[31mb"), "a\uFFFD[31mb");
  EXPECT_EQ(printable("a\xFF"), "a\uFFFD");
  EXPECT_EQ(printable("a\tb\x7F"), "a\uFFFDb\uFFFD");
  EXPECT_EQ(printable("\u009B"), "\uFFFD");  // a one-character escape introducer
}

}  // namespace
}  // namespace plimsoll
