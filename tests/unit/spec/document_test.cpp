// Does every value know its place, and does every bad text get one located reason?
#include "planner/spec/document.hpp"

#include <gmock/gmock.h>

#include <array>

#include "planner/base/machine_error.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

Document parsed(const std::string& text, Syntax syntax = Syntax::commented) {
  auto document = parse_document(source(text), syntax);
  EXPECT_TRUE(document) << format(document.diagnostics());
  return *document;
}

std::string errors(const std::string& text, Syntax syntax = Syntax::json) {
  return format(parse_document(source(text), syntax).diagnostics());
}

TEST(Document, EveryValueKnowsItsPlace) {
  const Document document = parsed("{\n  \"é\": [1, {\"a/b~\": \"x\"}]\n}");
  const Node& inner = *document.root().find("é")->items()[1]->find("a/b~");
  const Place place = inner.place();
  EXPECT_EQ(place.line, 2);
  EXPECT_EQ(place.column, 21);
  EXPECT_EQ(place.length, 3);
  EXPECT_EQ(place.pointer, "/é/1/a~1b~0");
  EXPECT_EQ(inner.key_place().column, 13);
  EXPECT_EQ(inner.source(), "\"x\"");
  EXPECT_EQ(document.root().place().pointer, "");
}

TEST(Document, WholeNumbersAreIntegersHoweverTheyAreWritten) {
  const Document document = parsed("[5e8, 2.0, -7, 9223372036854775807, 0.5, 9223372036854775808, 1e300]");
  const auto& items = document.root().items();
  EXPECT_EQ(items[0]->as_int(), 500'000'000);
  EXPECT_EQ(items[1]->as_int(), 2);
  EXPECT_EQ(items[2]->as_int(), -7);
  EXPECT_EQ(items[3]->as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(items[4]->kind(), Node::Kind::number);
  EXPECT_FALSE(items[4]->beyond_int64());
  EXPECT_EQ(items[5]->kind(), Node::Kind::number);
  EXPECT_TRUE(items[5]->beyond_int64());
  EXPECT_TRUE(items[6]->beyond_int64());
  EXPECT_EQ(items[6]->as_double(), 1e300);
}

TEST(Document, CommentsLeavePositionsAsTheyAre) {
  const Document document = parsed("{ # one\n  // \"two\": 2\n  \"a\": /* three\n */ 1, \"url\": \"http://x\" }");
  EXPECT_EQ(document.root().find("a")->place().line, 4);
  EXPECT_EQ(document.root().find("a")->place().column, 5);
  EXPECT_EQ(document.root().find("url")->as_string(), "http://x");
  EXPECT_THAT(errors("{/* x }", Syntax::commented),
              HasSubstr("test.json:1:2: error[json.syntax]: this comment is never"));
}

TEST(Document, CommentsAndTrailingCommasAreErrorsWhereTheSyntaxHasNone) {
  EXPECT_THAT(errors("{\"a\": 1, // x\n \"b\": 2}", Syntax::json), HasSubstr("test.json:1:10: error[json.syntax]"));
  EXPECT_THAT(errors("[1, 2,]", Syntax::json), HasSubstr("test.json:1:7: error[json.syntax]"));
  EXPECT_THAT(errors("[1, 2,]", Syntax::commented), HasSubstr("test.json:1:7: error[json.syntax]"));
}

TEST(Document, HjsonDoesWithoutQuotesAndCommas) {
  const Document document = parsed(
      "{\n  bare: some text, more\n  \"list\": [1, 2,],\n  # comment\n  number: 5e8  # not text\n  'q': 'it \"is\"'\n"
      "  on: true, off: false\n}",
      Syntax::hjson);
  const Node& root = document.root();
  EXPECT_EQ(root.find("bare")->as_string(), "some text, more");
  EXPECT_EQ(root.find("list")->items().size(), 2U);
  EXPECT_EQ(root.find("number")->as_int(), 500'000'000);
  EXPECT_EQ(root.find("number")->place().line, 5);
  EXPECT_EQ(root.find("number")->place().column, 11);
  EXPECT_EQ(root.find("q")->as_string(), "it \"is\"");
  EXPECT_TRUE(root.find("on")->as_bool());
  EXPECT_FALSE(root.find("off")->as_bool());
  EXPECT_THAT(errors("{\"a\": 1 \"b\": 2}", Syntax::hjson), HasSubstr("error[json.syntax]"));
  EXPECT_THAT(errors("[,]", Syntax::hjson), HasSubstr("error[json.syntax]"));
}

TEST(Document, PythonConstantsReadAsNull) {
  const Document document = parsed("{\"a\": [NaN, -Infinity, 3]}", Syntax::json);
  EXPECT_TRUE(document.root().find("a")->items()[0]->is_null());
  EXPECT_EQ(document.root().find("a")->items()[2]->place().column, 24);
}

TEST(Document, DuplicateKeysAreErrorsThatNameBothPlaces) {
  auto document = parse_document(source("{\n \"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3\n}"));
  ASSERT_TRUE(document);
  EXPECT_EQ(document->root().find("a")->as_int(), 3);
  EXPECT_EQ(format(document.diagnostics()),
            "test.json:4:2: error[json.duplicate]: /a is stated twice\n"
            "    4 |  \"a\": 3\n"
            "      |  ^~~\n"
            "test.json:2:2: note: it is stated here too\n"
            "help: leave out one of them\n");
}

TEST(Document, ASyntaxErrorPointsAtTheToken) {
  EXPECT_EQ(errors("{\n  \"a\": tru\n}"),
            "test.json:2:8: error[json.syntax]: this is no value\n"
            "    2 |   \"a\": tru\n"
            "      |        ^~~\n"
            "help: a value is a number, true, false, null, text in double quotes, an array in [] or an object in {}\n");
  EXPECT_EQ(errors("{\"a\" \"b\"}"),
            "test.json:1:6: error[json.syntax]: a colon is missing\n"
            "    1 | {\"a\" \"b\"}\n"
            "      |      ^~~\n"
            "help: a key and its value are written \"key\": value\n");
  EXPECT_THAT(errors("[1e999]"), HasSubstr("test.json:1:2: error[json.syntax]: the number is too large"));
  EXPECT_THAT(errors("[\"\xff\"]"), HasSubstr("test.json:1:3: error[json.syntax]"));
  EXPECT_THAT(errors("{\"a\":"), HasSubstr("test.json:1:6: error[json.syntax]: the file ends too early"));
  EXPECT_THAT(errors(""), HasSubstr("test.json:1:1: error[json.syntax]: the file is empty"));
}

TEST(Document, ASyntaxErrorSaysInItsOwnWordsWhatIsMissing) {
  for (const auto& [text, message, help] : {std::array{"{\"a\": }", "a value is missing", "leave out the comma"},
                                            {"{\"a\": 1,}", "a key in double quotes is missing", "leave out the comma"},
                                            {"{a: 1}", "a key in double quotes is missing", "{\"key\": value"},
                                            {R"({"a": 1 "b": 2})", "a comma or the closing } is missing", "commas"},
                                            {"[1 x]", "a comma or the closing ] is missing", "commas"},
                                            {"[1,]", "a value is missing", "leave out the comma"},
                                            {"{} {}", "this stands after the end", "one value"},
                                            {"{} x", "this stands after the end", "one value"},
                                            {"{\"a\":", "ends too early: a value is missing", "a number, true"},
                                            {"[1.]", "this is no number", "-2.5e-3"},
                                            {"[\"a\tb\"]", "a tab or another control character", "\\t"},
                                            {R"(["\q"])", "no such escape", "\\\\"},
                                            {"[\"a", "ends too early: the closing quote", "double quote"},
                                            {"{\"a\": 1", "ends too early: a comma or the closing }", "commas"},
                                            {"[\"invalid literal\" 1]", "a comma or the closing ]", "commas"}}) {
    const std::string said = format(parse_document(source(text), Syntax::json).diagnostics());
    EXPECT_THAT(said, HasSubstr(message)) << text;
    EXPECT_THAT(said, HasSubstr(help)) << text;
    EXPECT_THAT(said, testing::Not(HasSubstr("while parsing"))) << text;
  }
}

TEST(Document, WhatIsNoTextOrTooDeepOrTooLargeIsAnError) {
  EXPECT_THAT(errors(std::string("{\"a\": 1}\0", 9)),
              HasSubstr("test.json:1:9: error[json.syntax]: the file holds a NUL"));
  EXPECT_THAT(errors(std::string(100'000, '[')), HasSubstr("error[json.depth]"));
  EXPECT_TRUE(parse_document(source(std::string(100, '[') + std::string(100, ']'))));
  EXPECT_FALSE(parse_document(source(std::string(101, '[') + std::string(101, ']'))));
  EXPECT_THAT(errors(std::string(document_size_limit + 1, ' ')), HasSubstr("error[json.size]"));
}

TEST(Document, AByteOrderMarkIsNoColumn) {
  for (const Syntax syntax : {Syntax::json, Syntax::commented, Syntax::hjson}) {
    const Document document = parsed("\xEF\xBB\xBF{\"a\": 1}", syntax);
    EXPECT_EQ(document.root().place().column, 1);
    ASSERT_NE(document.root().find("a"), nullptr);
    EXPECT_EQ(document.root().find("a")->place().column, 7);
  }
}

TEST(Document, ATextCutAnywhereIsAnErrorWithAPlace) {
  const std::string text = "{\"é\": [1, -2.5e3, true], # c\n \"b\": {\"c\": \"d\\n\\u00e9\", /* x */ \"e\": null}}";
  for (const Syntax syntax : {Syntax::commented, Syntax::hjson}) {
    for (std::size_t length = 0; length < text.size(); ++length) {
      const auto document = parse_document(source(text.substr(0, length)), syntax);
      ASSERT_FALSE(document) << text.substr(0, length);
      EXPECT_GE(document.diagnostics().front().place.line, 1);
      EXPECT_FALSE(document.diagnostics().front().message.empty());
    }
  }
}

TEST(Document, AMissingFileOrADirectoryIsAFaultOfTheMachine) {
  EXPECT_THROW(load_source("/nowhere/at/all.json"), MachineError);
  EXPECT_THROW(load_source("/"), MachineError);
}

}  // namespace
}  // namespace plimsoll
