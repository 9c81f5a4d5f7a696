// What has to change in a text before a strict JSON parser can read it?  Comments become spaces, trailing commas go, the
// quotes and commas that Hjson (hjson.github.io/syntax.html) lets people leave out are put in.  Every byte of the result
// knows which byte of the file it stands for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/spec/document.hpp"

namespace plimsoll {

class JsonText {
 public:
  struct Error {
    std::size_t begin, end;  ///< byte offsets in the file
    std::string message;
  };

  JsonText(std::string_view source, Syntax syntax);

  const std::string& text() const { return out_; }
  /// An error that the rewriting met (a comment without end).
  const std::optional<Error>& error() const { return error_; }
  /// The byte of the file that byte `position` of text() stands for.
  std::size_t source_offset(std::size_t position) const;

 private:
  /// From `out` on, text()[out + i] is source[in + i].
  struct Anchor {
    std::size_t out, in;
  };
  enum class Due { key, value, comma };

  void rewrite();
  void rewrite_hjson_token(char c);
  void copy(std::size_t bytes);
  void insert(std::string_view text);
  void replace(std::size_t bytes, std::string_view text);
  void copy_string();
  bool blank_comment();
  bool replace_python_constant();
  void close_bracket();
  void insert_missing_comma();
  void quote(std::size_t bytes, std::size_t skip);
  void rewrite_bare_value();
  void rewrite_bare_key();

  std::string_view source_;
  Syntax syntax_;
  std::size_t at_ = 0;  ///< in the source
  std::string out_;
  std::vector<Anchor> anchors_{{0, 0}};
  std::optional<Error> error_;
  // Hjson only
  std::vector<char> brackets_;
  Due due_ = Due::value;
  bool new_line_ = false;                  ///< since the last token
  std::optional<std::size_t> last_comma_;  ///< position in out_ if no token followed it yet
};

}  // namespace plimsoll
