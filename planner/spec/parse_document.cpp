// How does a text become a document?  nlohmann's SAX parser calls back for each token; a counting iterator under its lexer
// says where in the text the token stands.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "planner/spec/document.hpp"
#include "planner/spec/document_storage.hpp"
#include "planner/spec/json_text.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t duplicate_limit = 20;  ///< reported per document

/// Counts what nlohmann's lexer has taken, so that a callback knows where it stands.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

/// The document is over, and something follows.
bool is_after_the_end(std::string_view reason) {
  return reason.find("; expected end of input") != std::string_view::npos;
}

/// What is wrong with the syntax, and what would be right.
struct SyntaxError {
  std::string message;
  const char* help;
};

/// Of what the lexer refuses within a token, by the reason that it gives.
std::optional<SyntaxError> within_a_token(std::string_view reason) {
  // Where no value is due, a word is no misspelt value: what is missing before it is told instead.
  const bool is_word = reason.find("invalid literal") != std::string_view::npos;
  const bool value_is_due = reason.find("while parsing value") != std::string_view::npos && !is_after_the_end(reason);
  if (is_word && !value_is_due) return std::nullopt;
  struct Refused {
    std::string_view reason;
    const char *message, *help;
  };
  static constexpr std::array<Refused, 9> all = {{
      {"invalid literal", "this is no value",
       "a value is a number, true, false, null, text in double quotes, an array in [] or an object in {}"},
      {"invalid number", "this is no number", "digits, at most one point between them and an exponent, as in -2.5e-3"},
      {"number overflow", "the number is too large", "numbers go up to 1.8e308"},
      {"missing closing quote", "the closing quote of a string is missing", "text ends with a double quote"},
      {"control character", "a line break, a tab or another control character stands in a string",
       "a double quote may be missing before it; within text write \\n for a line break and \\t for a tab"},
      {"ill-formed UTF-8", "this byte is no UTF-8", "save the file as UTF-8"},
      {"invalid BOM", "the file begins with a broken byte order mark", "save the file as UTF-8"},
      {"invalid string", "there is no such escape in a string",
       R"(\" \\ \/ \b \f \n \r \t and \u with four hex digits; a backslash itself is written \\)"},
      {"invalid comment", "the comment is never closed", "/* and */ enclose a comment"},
  }};
  for (const Refused& refused : all)
    if (reason.find(refused.reason) != std::string_view::npos) return SyntaxError{refused.message, refused.help};
  return std::nullopt;
}

/// Of a token in the wrong place: what is due there, from what the parser was at.
SyntaxError between_tokens(std::string_view reason) {
  const auto was_at = [&](std::string_view what) {
    return reason.find(fmt::format("while parsing {} -", what)) != std::string_view::npos;
  };
  const bool closes = reason.find("unexpected '}'") != std::string_view::npos ||
                      reason.find("unexpected ']'") != std::string_view::npos;
  if (was_at("object separator")) return {"a colon is missing", "a key and its value are written \"key\": value"};
  if (was_at("object key"))
    return {reason.find("unexpected end of input") == std::string_view::npos
                ? "a key in double quotes is missing"
                : "a key in double quotes or the closing } is missing",
            closes ? "leave out the comma before it" : R"(an object is written {"key": value, "other": value})"};
  if (was_at("object")) return {"a comma or the closing } is missing", "members of an object are separated by commas"};
  if (was_at("array")) return {"a comma or the closing ] is missing", "values of an array are separated by commas"};
  if (is_after_the_end(reason))
    return {"this stands after the end of the document", "a document is one value, mostly one object in {}"};
  return {"a value is missing", closes ? "state it, or leave out the comma before it"
                                       : "a number, true, false, null, text in double quotes, an array or an object"};
}

/// Length in the text of a token that nlohmann prints with control characters as <U+0000>.
std::size_t token_length(const std::string& printed) {
  std::size_t length = 0;
  for (std::size_t at = 0; at < printed.size(); ++length) at += printed.compare(at, 3, "<U+") == 0 ? 8 : 1;
  return length;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Where the token begins that ends at `end` and that the parser's `message` complains about.  The token that nlohmann
/// hands over is whole for strings and numbers only; of a misspelt literal it has read the first wrong letter.
std::size_t token_begin(std::string_view text, std::size_t end, const std::string& message, const std::string& token) {
  if (message.find("ill-formed UTF-8") != std::string::npos) return end - std::min<std::size_t>(end, 1);
  for (const std::string_view whole :
       {"unexpected string", "invalid string", "unexpected number", "invalid number", "number overflow"}) {
    if (message.find(whole) != std::string::npos) return end - std::min(end, token_length(token));
  }
  std::size_t begin = end - std::min<std::size_t>(end, 1);
  if (message.find("invalid literal") != std::string::npos) {
    while (begin > 0 && is_word(text[begin - 1])) --begin;
  }
  return begin;
}

}  // namespace

/// Builds the tree from nlohmann's callbacks.  Each callback comes when its token has been read, numbers one byte later;
/// a token begins where the one before it ended, after space, commas and colons.
class DocumentBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  DocumentBuilder(std::shared_ptr<const SourceFile> file, Syntax syntax)
      : storage_(std::make_shared<DocumentStorage>()), json_(file->text, syntax) {
    storage_->file = std::move(file);
  }

  Result<Document> build() {
    if (json_.error()) {
      error("json.syntax", json_.error()->begin, json_.error()->end, json_.error()->message);
      return diagnostics_;
    }
    const char* begin = json_.text().data();
    furthest_ = begin;
    const bool ok = nlohmann::json::sax_parse(CountingIterator(begin, &furthest_),
                                              CountingIterator(begin + json_.text().size(), &furthest_), this);
    if (!ok) {
      CHECK(has_errors(diagnostics_), "a text that does not parse has an error");
      return diagnostics_;
    }
    Document document;
    document.storage_ = storage_;
    return {document, std::move(diagnostics_)};
  }

  bool null() override { return add(Node::Kind::null, std::monostate{}); }
  bool boolean(bool value) override { return add(Node::Kind::boolean, value); }
  bool number_integer(std::int64_t value) override { return add(Node::Kind::integer, value, true); }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return add(Node::Kind::integer, static_cast<std::int64_t>(value), true);
    }
    return number_float(static_cast<double>(value), {});
  }
  bool number_float(double value, const std::string&) override {
    const bool whole = value == std::floor(value);
    constexpr double int64_end = 9223372036854775808.0;
    if (whole && value >= -int64_end && value < int64_end) {
      return add(Node::Kind::integer, static_cast<std::int64_t>(value), true);
    }
    if (!add(Node::Kind::number, value, true)) return false;
    storage_->nodes.back().beyond_int64_ = whole;
    return true;
  }
  bool string(std::string& value) override { return add(Node::Kind::string, std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Node::Kind::object, std::vector<Node::Member>{}); }
  bool end_object() override {
    report_duplicates();
    return close();
  }
  bool start_array(std::size_t) override { return open(Node::Kind::array, std::vector<const Node*>{}); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [begin, end] = take_token(false);
    key_ = std::move(name);
    key_begin_ = begin;
    key_end_ = end;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& reason) override {
    const std::string& text = json_.text();
    // What was read last may hold any words: it is no part of the reason.
    std::string message = reason.what();
    const std::size_t raw = message.find("; last read: '");
    if (raw != std::string::npos) {
      const std::size_t more = message.find("'; expected ", raw);
      message.erase(raw, more == std::string::npos ? more : more + 1 - raw);
    }
    SyntaxError syntax = within_a_token(message).value_or(between_tokens(message));
    std::size_t end = std::min(position, text.size());
    std::size_t begin = end;
    if (position > text.size()) {
      syntax.message = fmt::format("the file ends too early: {}", syntax.message);
    } else {
      begin = token_begin(text, end, message, token);
      if (begin < text.size() && is_word(text[begin])) {
        end = begin;
        while (end < text.size() && is_word(text[end])) ++end;
      }
    }
    const std::size_t at = json_.source_offset(begin);
    error("json.syntax", at, std::max(json_.source_offset(end), at + 1), std::move(syntax.message), syntax.help);
    return false;
  }

 private:
  struct Span {
    std::uint32_t begin, end;
  };

  /// The token that the lexer has just read, as a span of the file.
  Span take_token(bool number) {
    const std::string& text = json_.text();
    const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n,:\xEF\xBB\xBF", last_end_), text.size());
    const std::size_t read = static_cast<std::size_t>(furthest_ - text.data());
    last_end_ = number ? std::min(text.find_first_not_of("+-.0123456789eE", begin), text.size()) : read;
    return {static_cast<std::uint32_t>(json_.source_offset(begin)),
            static_cast<std::uint32_t>(json_.source_offset(last_end_))};
  }

  template <class Value>
  bool add(Node::Kind kind, Value value, bool number = false) {
    if (storage_->nodes.size() == document_value_limit) {
      const Span span = take_token(number);
      error("json.size", span.begin, span.end,
            fmt::format("the document has more than {} values", document_value_limit));
      return false;
    }
    Node& node = storage_->nodes.emplace_back();
    const Span span = take_token(number);
    node.kind_ = kind;
    node.begin_ = span.begin;
    node.end_ = span.end;
    node.storage_ = storage_.get();
    node.value_ = std::move(value);
    if (open_.empty()) return true;
    node.parent_ = open_.back();
    if (auto* items = std::get_if<std::vector<const Node*>>(&open_.back()->value_)) {
      node.slot_ = static_cast<std::uint32_t>(items->size());
      items->push_back(&node);
    } else {
      auto& members = std::get<std::vector<Node::Member>>(open_.back()->value_);
      node.slot_ = static_cast<std::uint32_t>(members.size());
      members.push_back({std::move(key_), &node, key_begin_, key_end_});
    }
    return true;
  }

  template <class Value>
  bool open(Node::Kind kind, Value value) {
    if (!add(kind, std::move(value))) return false;
    Node& node = storage_->nodes.back();
    open_.push_back(&node);
    if (open_.size() <= document_depth_limit) return true;
    error("json.depth", node.begin_, node.end_,
          fmt::format("arrays and objects are nested more than {} deep", document_depth_limit));
    return false;
  }

  bool close() {
    open_.back()->end_ = take_token(false).end;
    open_.pop_back();
    return true;
  }

  /// Each later member of the same name as an earlier one is an error, since readers differ in which of them counts.
  void report_duplicates() {
    const auto& members = open_.back()->members();
    std::vector<std::size_t> order(members.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return members[a].key < members[b].key; });
    std::vector<std::pair<std::size_t, std::size_t>> duplicates;  // later, earlier
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (members[order[i]].key == members[order[i - 1]].key) duplicates.emplace_back(order[i], order[i - 1]);
    }
    std::sort(duplicates.begin(), duplicates.end());
    for (const auto& [later, earlier] : duplicates) {
      if (diagnostics_.size() == duplicate_limit) return;
      Diagnostic diagnostic;
      diagnostic.code = "json.duplicate";
      diagnostic.place = members[later].value->key_place();
      diagnostic.message = fmt::format("{} is stated twice", members[later].value->pointer());
      diagnostic.notes.push_back({members[earlier].value->key_place(), "it is stated here too"});
      diagnostic.help = "leave out one of them";
      diagnostics_.push_back(std::move(diagnostic));
    }
  }

  void error(std::string code, std::size_t begin, std::size_t end, std::string message, std::string help = {}) {
    Diagnostic diagnostic;
    diagnostic.help = std::move(help);
    diagnostic.code = std::move(code);
    diagnostic.place = place_in(storage_->file, begin, end);
    diagnostic.message = std::move(message);
    diagnostics_.push_back(std::move(diagnostic));
  }

  std::shared_ptr<DocumentStorage> storage_;
  JsonText json_;
  Diagnostics diagnostics_;
  const char* furthest_ = nullptr;
  std::size_t last_end_ = 0;  ///< of the last token, in json_.text()
  std::vector<Node*> open_;
  std::string key_;
  std::uint32_t key_begin_ = 0, key_end_ = 0;
};

Result<Document> parse_document(std::shared_ptr<const SourceFile> file, Syntax syntax) {
  const std::string& text = file->text;
  const std::size_t nul = text.find('\0');
  Diagnostic diagnostic;
  if (text.size() > document_size_limit) {
    diagnostic.code = "json.size";
    diagnostic.place.file = file;
    diagnostic.message = fmt::format("the file has {} bytes; at most {} are read", text.size(), document_size_limit);
    return diagnostic;
  }
  if (nul != std::string::npos) {
    diagnostic.code = "json.syntax";
    diagnostic.place = place_in(file, nul, nul + 1);
    diagnostic.message = "the file holds a NUL byte, so it is no text";
    return diagnostic;
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    diagnostic.code = "json.syntax";
    diagnostic.place = place_in(file, 0, 0);
    diagnostic.message = "the file is empty";
    diagnostic.help = "a document is one value, mostly one object in {}";
    return diagnostic;
  }
  return DocumentBuilder(std::move(file), syntax).build();
}

}  // namespace plimsoll
