// Is a change said so that a person can use it?
#include "planner/cli/diff_terms.hpp"

#include <gtest/gtest.h>

namespace plimsoll {
namespace {

TEST(DiffTerms, AChangeIsAPercentageOrAMultipleOrNothing) {
  constexpr double least = 0.005;
  EXPECT_EQ(change_in_words({"", 2, 3}, least), "+50.0 %");
  EXPECT_EQ(change_in_words({"", 2, 2}, least), "+0.0 %");
  EXPECT_EQ(change_in_words({"", 3, 2.99999}, least), "+0.0 %");
  EXPECT_EQ(change_in_words({"", 3, 0}, least), "-100.0 %");
  EXPECT_EQ(change_in_words({"", 0.5, 60}, least), "120 x");
  EXPECT_EQ(change_in_words({"", 0, 60}, least), "");
  EXPECT_EQ(change_in_words({"", 0.0001, 60}, least), "") << "shown as 0.00";
  EXPECT_EQ(change_in_words({"", -2, -20}, least), "") << "margins that are none";
  EXPECT_EQ(change_in_words({"", 2, -20}, least), "");
}

TEST(DiffTerms, FiguresAreWrittenAsAPersonReadsThem) {
  EXPECT_EQ(figure_in_words({"tokens/s a GPU", 0, 0}, 36650.4), "36,650");
  EXPECT_EQ(figure_in_words({"MFU", 0, 0}, 0.31272), "0.3127");
  EXPECT_EQ(figure_in_words({"step, s", 0, 0}, 0.0321), "32.1 ms");
  EXPECT_EQ(name_in_words({"step, s", 0, 0}), "step");
}

}  // namespace
}  // namespace plimsoll
