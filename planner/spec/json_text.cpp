// How does a liberal text become strict JSON?  One pass that copies, blanks comments and, for Hjson, keeps track of whether
// a key, a value or a comma is due; whatever is still wrong stays as it is, for the parser to point at.
#include "planner/spec/json_text.hpp"

#include <algorithm>

namespace plimsoll {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t digits(std::string_view text, std::size_t at) {
  while (at < text.size() && is_digit(text[at])) ++at;
  return at;
}

/// A number by the grammar of RFC 8259.
bool is_json_number(std::string_view text) {
  std::size_t at = !text.empty() && text[0] == '-' ? 1 : 0;
  if (at == text.size() || !is_digit(text[at])) return false;
  at = text[at] == '0' ? at + 1 : digits(text, at);
  if (at < text.size() && text[at] == '.') {
    const std::size_t end = digits(text, at + 1);
    if (end == at + 1) return false;
    at = end;
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    const std::size_t end = digits(text, at);
    if (end == at) return false;
    at = end;
  }
  return at == text.size();
}

bool is_json_literal(std::string_view text) {
  return text == "true" || text == "false" || text == "null" || is_json_number(text);
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

JsonText::JsonText(std::string_view source, Syntax syntax) : source_(source), syntax_(syntax) {
  out_.reserve(source.size());
  rewrite();
}

std::size_t JsonText::source_offset(std::size_t position) const {
  const auto next = std::upper_bound(anchors_.begin(), anchors_.end(), position,
                                     [](std::size_t p, const Anchor& anchor) { return p < anchor.out; });
  const Anchor& anchor = *(next - 1);
  const std::size_t limit = next == anchors_.end() ? source_.size() : next->in;
  return std::min(anchor.in + (position - anchor.out), limit);
}

void JsonText::rewrite() {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // no token of any syntax
  if (source_.substr(0, byte_order_mark.size()) == byte_order_mark) copy(byte_order_mark.size());
  while (at_ < source_.size() && !error_) {
    const char c = source_[at_];
    if (is_space(c)) {
      new_line_ = new_line_ || c == '\n';
      copy(1);
    } else if (syntax_ != Syntax::json && blank_comment()) {
      continue;
    } else if (syntax_ == Syntax::hjson) {
      rewrite_hjson_token(c);
    } else if (c == '"') {
      copy_string();
    } else if (syntax_ != Syntax::json || !replace_python_constant()) {
      copy(1);
    }
  }
}

void JsonText::copy(std::size_t bytes) {
  out_.append(source_.substr(at_, bytes));
  at_ = std::min(at_ + bytes, source_.size());
}

void JsonText::insert(std::string_view text) {
  anchors_.push_back({out_.size(), at_});
  out_.append(text);
  anchors_.push_back({out_.size(), at_});
}

void JsonText::replace(std::size_t bytes, std::string_view text) {
  insert(text);
  at_ += bytes;
  anchors_.push_back({out_.size(), at_});
}

void JsonText::copy_string() {
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != '"' && source_[end] != '\n') end += source_[end] == '\\' ? 2 : 1;
  copy(end + 1 - at_);
}

bool JsonText::blank_comment() {
  const std::string_view rest = source_.substr(at_);
  std::size_t end = rest.size();
  if (rest[0] == '#' || rest.substr(0, 2) == "//") {
    end = std::min(rest.find('\n'), rest.size());
  } else if (rest.substr(0, 2) == "/*") {
    const std::size_t close = rest.find("*/", 2);
    if (close == std::string_view::npos) {
      error_ = Error{at_, at_ + 2, "this comment is never closed; */ is missing"};
      return true;
    }
    end = close + 2;
  } else {
    return false;
  }
  for (const char c : rest.substr(0, end)) out_ += c == '\n' ? '\n' : ' ';
  new_line_ = new_line_ || rest.substr(0, end).find('\n') != std::string_view::npos;
  at_ += end;
  return true;
}

/// Python writes and reads NaN, Infinity and -Infinity.  No size of a model is one of these, so they read as null.
bool JsonText::replace_python_constant() {
  for (const std::string_view constant : {"NaN", "Infinity", "-Infinity"}) {
    if (source_.substr(at_, constant.size()) == constant) {
      replace(constant.size(), "null");
      return true;
    }
  }
  return false;
}

void JsonText::rewrite_hjson_token(char c) {
  if (c == ',' || c == ':') {
    if (c == ',' && due_ == Due::comma) last_comma_ = out_.size();
    due_ = c == ',' && !brackets_.empty() && brackets_.back() == '{' ? Due::key : Due::value;
    copy(1);
    return;
  }
  if (c == '}' || c == ']') {
    close_bracket();
    return;
  }
  if (due_ == Due::comma) insert_missing_comma();
  last_comma_.reset();
  new_line_ = false;
  if (c == '{' || c == '[') {
    brackets_.push_back(c);
    due_ = c == '{' ? Due::key : Due::value;
    copy(1);
  } else if (c == '"') {
    copy_string();
    due_ = due_ == Due::key ? Due::value : Due::comma;
  } else if (c == '\'') {
    const std::size_t close = std::min(source_.find_first_of("'\n", at_ + 1), source_.size());
    const bool is_closed = close < source_.size() && source_[close] == '\'';
    // Without a closing quote it stays as it is, and the parser says so.
    is_closed ? quote(close + 1 - at_, 1) : copy(1);
    due_ = due_ == Due::key ? Due::value : Due::comma;
  } else if (due_ == Due::key) {
    rewrite_bare_key();
  } else {
    rewrite_bare_value();
  }
}

void JsonText::close_bracket() {
  if (last_comma_) out_[*last_comma_] = ' ';
  last_comma_.reset();
  if (!brackets_.empty()) brackets_.pop_back();
  due_ = Due::comma;
  new_line_ = false;
  copy(1);
}

/// Hjson lets the end of a line separate members; on one line a comma is needed, and the parser will ask for it.
void JsonText::insert_missing_comma() {
  if (!new_line_ || brackets_.empty()) return;
  insert(",");
  due_ = brackets_.back() == '{' ? Due::key : Due::value;
}

/// Writes the next `bytes` of the source, without `skip` bytes at either end, as a JSON string.
void JsonText::quote(std::size_t bytes, std::size_t skip) {
  const std::size_t end = at_ + bytes;
  replace(skip, "\"");
  while (at_ + skip < end) {
    if (source_[at_] == '"' || source_[at_] == '\\') insert("\\");
    copy(1);
  }
  replace(end - at_, "\"");
}

void JsonText::rewrite_bare_key() {
  const std::string_view rest = source_.substr(at_);
  quote(std::min(rest.find_first_of(" \t\r\n,:[]{}\"'"), rest.size()), 0);
  due_ = Due::value;
}

/// A literal ends at punctuation or at a comment; a string without quotes goes to the end of its line.
void JsonText::rewrite_bare_value() {
  const std::string_view rest = source_.substr(at_);
  due_ = Due::comma;
  std::size_t end = 0;
  do {
    end = std::min(rest.find_first_of(",]}#/\n", end + 1), rest.size());
    const std::string_view text = without_trailing_space(rest.substr(0, end));
    if (is_json_literal(text)) {
      copy(text.size());
      return;
    }
  } while (end < rest.size() && rest[end] != '\n');
  quote(without_trailing_space(rest.substr(0, end)).size(), 0);
}

}  // namespace plimsoll
