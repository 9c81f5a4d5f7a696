// Do tables line up and bars have their length?
#include "planner/cli/table.hpp"

#include <gtest/gtest.h>

namespace plimsoll {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({{"name"}, {"GiB", Align::right}});
  table.row({"parameters", "1.5"});
  table.row({"x", "123.25"});
  EXPECT_EQ(table.text(), "name           GiB\nparameters     1.5\nx           123.25\n");
}

TEST(Table, WidthCountsTerminalCells) {
  Table table({{"a"}, {"b"}});
  table.row({"模型", "1"});
  table.row({"xxxx", "2"});
  EXPECT_EQ(table.text(), "a     b\n模型  1\nxxxx  2\n");
}

TEST(Table, ColoursHaveNoWidth) {
  Table table({{""}, {""}});
  table.row({"\033[31mred\033[0m", "1"});
  table.row({"blue!", "2"});
  EXPECT_EQ(table.text(), "\033[31mred\033[0m    1\nblue!  2\n");
}

TEST(Table, MissingCellsAreEmptyAndLinesHaveNoBlanksAtTheEnd) {
  Table table({{"a"}, {"b"}});
  table.row({"1"});
  EXPECT_EQ(table.text(2), "  a  b\n  1\n");
}

TEST(Bar, IsDrawnInEighths) {
  EXPECT_EQ(bar(0.5, 4), "██");
  EXPECT_EQ(bar(1.0 / 32, 4), "▏");
  EXPECT_EQ(bar(0.9375, 2), "█▉");
}

TEST(Bar, ShowsAnythingAboveZeroAndIsCutOffAtItsWidth) {
  EXPECT_EQ(bar(0, 4), "");
  EXPECT_EQ(bar(1e-9, 4), "▏");
  EXPECT_EQ(bar(7, 4), "████");
  EXPECT_EQ(bar(-1, 4), "");
}

TEST(Wrap, BreaksAtBlanks) { EXPECT_EQ(wrap("one two three", 8, 2), "one two\n  three"); }

}  // namespace
}  // namespace plimsoll
