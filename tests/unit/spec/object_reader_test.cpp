// Are typed values taken out of an object, and all errors reported at once?
#include <gmock/gmock.h>

#include "planner/spec/document.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ObjectReader, TakesTypedValues) {
  const auto document = parse_document(
      source(R"({"n": 5e8, "x": 0.5, "t": true, "s": "bf16", "l": [1, 2], "w": ["a"], "o": {}, "z": null})"));
  Diagnostics diagnostics;
  ObjectReader reader(document->root(), diagnostics, "plan");
  EXPECT_EQ(reader.integer("n", 1), 500'000'000);
  EXPECT_EQ(reader.number("x"), 0.5);
  EXPECT_EQ(reader.number("n"), 5e8);
  EXPECT_EQ(reader.boolean("t"), true);
  EXPECT_EQ(reader.string("s"), "bf16");
  EXPECT_EQ(reader.choice("s", {"fp16", "bf16"}), 1U);
  EXPECT_THAT(*reader.integers("l", 0, 9), ElementsAre(1, 2));
  EXPECT_THAT(*reader.strings("w"), ElementsAre("a"));
  EXPECT_NE(reader.object("o"), nullptr);
  EXPECT_EQ(reader.integer("z"), std::nullopt);
  EXPECT_EQ(reader.integer("absent"), std::nullopt);
  EXPECT_TRUE(reader.unknown().empty());
  EXPECT_TRUE(diagnostics.empty()) << format(diagnostics);
}

TEST(ObjectReader, ReportsAllErrorsAtTheirPlaces) {
  const auto document =
      parse_document(source("{\n \"a\": \"7\",\n \"b\": 0,\n \"c\": \"bf61\",\n \"d\": [1, -1],\n \"e\": 0.5,\n "
                            "\"stag\": 3,\n \"f\": {\"g\": 1}\n}"));
  Diagnostics diagnostics;
  ObjectReader reader(document->root(), diagnostics, "plan");
  EXPECT_EQ(reader.integer("a", 1, 8), std::nullopt);
  EXPECT_EQ(reader.integer("b", 1), std::nullopt);
  EXPECT_EQ(reader.choice("c", {"bf16", "fp32"}), std::nullopt);
  EXPECT_EQ(reader.integers("d", 0, 9), std::nullopt);
  EXPECT_EQ(reader.integer("e"), std::nullopt);
  EXPECT_EQ(reader.required_integer("needed", 3), 3);
  EXPECT_EQ(reader.boolean("f"), std::nullopt);
  reader.know({"stage"});
  reader.report_unknown();
  std::string lines;
  for (const Diagnostic& d : diagnostics) {
    lines +=
        std::to_string(d.place.line) + " " + d.place.pointer + " " + d.code + ": " + d.message + " | " + d.help + "\n";
  }
  EXPECT_EQ(
      lines,
      "2 /a plan.type: /a is a string, must be a whole number from 1 to 8 | write it without quotes: 7\n"
      "3 /b plan.range: /b is 0, must be at least 1 | \n"
      "4 /c plan.choice: /c is \"bf61\", which is none of its values | did you mean bf16? legal values: bf16, fp32\n"
      "5 /d/1 plan.range: /d/1 is -1, must be from 0 to 9 | \n"
      "6 /e plan.type: /e is a number with a fraction, must be a whole number at least 0 | \n"
      "1  plan.missing: /needed is missing | \n"
      "8 /f plan.type: /f is an object, must be true or false | \n"
      "7 /stag plan.unknown: /stag is no known key | did you mean stage?\n");
}

TEST(ObjectReader, WhatIsNoObjectReadsAsAnEmptyOne) {
  const auto document = parse_document(source("[1]"));
  Diagnostics diagnostics;
  ObjectReader reader(document->root(), diagnostics, "plan");
  EXPECT_EQ(reader.integer("a"), std::nullopt);
  EXPECT_TRUE(reader.unknown().empty());
  EXPECT_THAT(format(diagnostics), HasSubstr("error[plan.type]: the document is an array, must be an object"));
}

}  // namespace
}  // namespace plimsoll
