// Do diagnostics show the place they are about, whatever the line holds?
#include "planner/base/diagnostic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace plimsoll {
namespace {

using testing::HasSubstr;

Place place_in(const std::string& text, int line, int column, int length = 1) {
  return {std::make_shared<SourceFile>(SourceFile{"plan.json", text}), line, column, length, ""};
}

Diagnostic error_at(Place place) { return {Severity::error, "plan.bad", std::move(place), "it is wrong", {}, ""}; }

/// The line of carets, from the bar on.
std::string carets(const Diagnostic& diagnostic) {
  const std::string text = format(diagnostic);
  const auto begin = text.rfind("| ");
  return text.substr(begin + 2, text.find('\n', begin) - begin - 2);
}

TEST(Diagnostic, ShowsPlaceLineCaretsNotesAndHelp) {
  const Place model = {std::make_shared<SourceFile>(SourceFile{"config.json", "{}"}), 22, 16, 1, ""};
  Diagnostic diagnostic = {Severity::error,
                           "plan.expert.divides",
                           place_in("{\n  \"expert_parallel\": 48,\n}", 2, 22, 2),
                           "/expert_parallel is 48, which does not divide the number of experts",
                           {{model, "/n_routed_experts is 256 here"}},
                           "divisors of 256: 1, 2, 4, 8"};
  EXPECT_EQ(format(diagnostic),
            "plan.json:2:22: error[plan.expert.divides]: /expert_parallel is 48, which does not divide the number of "
            "experts\n"
            "    2 |   \"expert_parallel\": 48,\n"
            "      |                      ^~\n"
            "config.json:22:16: note: /n_routed_experts is 256 here\n"
            "help: divisors of 256: 1, 2, 4, 8\n");
}

TEST(Diagnostic, WithoutAFileHasOnlyItsMessage) {
  Diagnostic diagnostic = {Severity::warning,    "set.stage", {}, "--set zero.stage=4: stages are 0 to 3",
                           {{{}, "given last"}}, ""};
  EXPECT_EQ(format(diagnostic), "warning[set.stage]: --set zero.stage=4: stages are 0 to 3\nnote: given last\n");
}

TEST(Diagnostic, OfTheFileAsAWholeHasNoLine) {
  EXPECT_EQ(format(error_at(place_in("", 0, 0))), "plan.json: error[plan.bad]: it is wrong\n");
}

TEST(Diagnostic, NamesItsSeverityAndOmitsAnEmptyCode) {
  EXPECT_EQ(format(Diagnostic{Severity::note, "", {}, "so it is", {}, ""}), "note: so it is\n");
}

TEST(Diagnostic, PointsBehindTheEndOfALine) {
  EXPECT_EQ(carets(error_at(place_in("{\"a\": 1", 1, 8))), "       ^");
  EXPECT_EQ(carets(error_at(place_in("{\"a\": 1", 1, 99))), "       ^");
  EXPECT_EQ(carets(error_at(place_in("{\n\n}", 2, 1))), "^");
}

TEST(Diagnostic, ClipsASpanToItsLine) {
  EXPECT_EQ(carets(error_at(place_in("abcdef\nghi", 1, 4, 100))), "   ^~~");
  EXPECT_EQ(carets(error_at(place_in("abcdef", 1, 4, 0))), "   ^");
  EXPECT_EQ(carets(error_at(place_in("abcdef", 1, 4, -3))), "   ^");
  EXPECT_EQ(carets(error_at(place_in("abcdef", 1, 4, 2147483647))), "   ^~~");
  EXPECT_EQ(carets(error_at(place_in("abcdef", 1, -5))), "^");
}

TEST(Diagnostic, ShowsNoLineThatTheFileLacks) {
  EXPECT_EQ(format(error_at(place_in("one\ntwo", 3, 1))), "plan.json:3:1: error[plan.bad]: it is wrong\n");
}

TEST(Diagnostic, ExpandsTabsToStops) {
  const std::string text = format(error_at(place_in("\tab\tcd", 1, 5, 2)));
  EXPECT_THAT(text, HasSubstr("    1 |     ab  cd\n"));
  EXPECT_THAT(text, HasSubstr("      |         ^~\n"));
}

TEST(Diagnostic, CountsColumnsInCodePointsAndCaretsInCells) {
  // naïve: 5 code points, 6 bytes; the value begins at code point 11
  EXPECT_EQ(carets(error_at(place_in("{\"naïve\": x}", 1, 11))), "          ^");
  // two wide characters before the span take four cells
  EXPECT_EQ(carets(error_at(place_in("模型: x", 1, 5))), "      ^");
  // a wide character under the span is underlined in full
  EXPECT_EQ(carets(error_at(place_in("a模b", 1, 2))), " ^~");
}

TEST(Diagnostic, ShowsInvalidBytesAndControlsHarmlessly) {
  const std::string text = format(error_at(place_in("a\xFF\x1b[31m?", 1, 8)));
  EXPECT_THAT(text, HasSubstr("| a\uFFFD\uFFFD[31m?\n"));
  EXPECT_EQ(carets(error_at(place_in("a\xFF\x1b[31m?", 1, 8))), "       ^");
  Diagnostic diagnostic = error_at({});
  diagnostic.message = "unknown key \"\x1b[2J\"";
  EXPECT_EQ(format(diagnostic), "error[plan.bad]: unknown key \"\uFFFD[2J\"\n");
}

TEST(Diagnostic, CutsALongLineAroundTheSpan) {
  const std::string line = std::string(1000, 'a') + "X" + std::string(1000, 'b');
  EXPECT_THAT(format(error_at(place_in(line, 1, 1001))),
              HasSubstr("| …" + std::string(40, 'a') + "X" + std::string(79, 'b') + "…\n"));
  EXPECT_EQ(carets(error_at(place_in(line, 1, 1001))), std::string(41, ' ') + "^");
  EXPECT_THAT(format(error_at(place_in(line, 1, 1))), HasSubstr("| " + std::string(80, 'a') + "…\n"));
  EXPECT_EQ(carets(error_at(place_in(line, 1, 1, 500))), "^" + std::string(79, '~'));
  EXPECT_THAT(format(error_at(place_in(line, 1, 2002))), HasSubstr("| …" + std::string(40, 'b') + "\n"));
}

TEST(Diagnostic, DropsTheCarriageReturnOfWindowsFiles) {
  EXPECT_THAT(format(error_at(place_in("ab\r\ncd\r\n", 1, 1))), HasSubstr("    1 | ab\n"));
}

TEST(Diagnostic, WidensTheMarginForLargeLineNumbers) {
  const std::string text = format(error_at(place_in(std::string(123456, '\n') + "x", 123457, 1)));
  EXPECT_THAT(text, HasSubstr("123457 | x\n       | ^\n"));
}

TEST(Diagnostic, IsColouredOnlyOnRequest) {
  const Diagnostic diagnostic = error_at(place_in("x", 1, 1));
  EXPECT_EQ(format(diagnostic).find('\x1b'), std::string::npos);
  EXPECT_EQ(format(diagnostic, true),
            "\x1b[1mplan.json:1:1: \x1b[0m\x1b[1;31merror[plan.bad]:\x1b[0m it is wrong\n    1 | x\n      | "
            "\x1b[1;31m^\x1b[0m\n");
}

TEST(HasErrors, LooksForErrorsOnly) {
  EXPECT_FALSE(has_errors({}));
  EXPECT_FALSE(has_errors({{Severity::warning, "", {}, "", {}, ""}, {Severity::note, "", {}, "", {}, ""}}));
  EXPECT_TRUE(has_errors({{Severity::warning, "", {}, "", {}, ""}, {Severity::error, "", {}, "", {}, ""}}));
}

TEST(Result, HoldsAValueWithItsWarnings) {
  const Result<int> result(7, {{Severity::warning, "w", {}, "hm", {}, ""}});
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(result.diagnostics().size(), 1U);
}

TEST(Result, HoldsTheReasonsWhyThereIsNoValue) {
  const Result<int> result(error_at({}));
  EXPECT_FALSE(result);
  EXPECT_EQ(result.diagnostics().front().code, "plan.bad");
}

TEST(ResultDeathTest, AbortsWhereOurOwnCodeIsWrong) {
  EXPECT_DEATH(Result<int>(Diagnostics{}), "internal error: a Result without a value carries at least one error");
  EXPECT_DEATH(*Result<int>(error_at({})), "Result has no value");
}

}  // namespace
}  // namespace plimsoll
