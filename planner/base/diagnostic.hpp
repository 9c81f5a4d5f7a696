// How is wrong input reported?  As values: each Diagnostic names its place (file, line, column, JSON pointer), what is
// wrong, and what would be right.  A reader collects all of them before it gives up; none is thrown, none is lost.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/base/check.hpp"

namespace plimsoll {

enum class Severity { error, warning, note };

/// The text of one input file, shared by every place that points into it.
struct SourceFile {
  std::string name;  ///< as the user wrote it
  std::string text;
};

/// A span of a file.  Lines and columns count from 1, columns in Unicode code points; line 0 means the file as a whole.
struct Place {
  std::shared_ptr<const SourceFile> file;  ///< null when the value came from the command line or a default
  int line = 0;
  int column = 0;
  int length = 1;       ///< code points to underline
  std::string pointer;  ///< JSON pointer (RFC 6901) of the value; "" is the whole document
};

struct Diagnostic {
  struct Note {
    Place place;
    std::string message;
  };
  Severity severity = Severity::error;
  std::string code;  ///< stable, dotted: "plan.expert.divides"
  Place place;
  std::string message;
  std::vector<Note> notes;
  std::string help;  ///< names legal values or the nearest right thing; may be empty
};

using Diagnostics = std::vector<Diagnostic>;

/// An error without notes.  Without a place it is about the command line, a preset, or what its message names.
Diagnostic make_error(std::string code, std::string message, std::string help = {}, Place place = {});

/// True if any of them is an error.
bool has_errors(const Diagnostics& diagnostics);

/// `file:line:column: error[code]: message`, the source line with a caret, notes and help, as a terminal shows them.
/// @param colour ANSI colours, for terminals only
std::string format(const Diagnostic& diagnostic, bool colour = false);

/// A value, or the reasons why there is none.  Diagnostics may accompany a value too (warnings and notes).
template <class T>
class Result {
 public:
  Result(T value, Diagnostics diagnostics = {}) : value_(std::move(value)), diagnostics_(std::move(diagnostics)) {}
  Result(Diagnostics diagnostics) : diagnostics_(std::move(diagnostics)) {
    CHECK(has_errors(diagnostics_), "a Result without a value carries at least one error");
  }
  Result(Diagnostic diagnostic) : Result(Diagnostics{std::move(diagnostic)}) {}

  explicit operator bool() const { return value_.has_value(); }
  const T& operator*() const {
    CHECK(value_, "Result has no value");
    return *value_;
  }
  T& operator*() {
    CHECK(value_, "Result has no value");
    return *value_;
  }
  const T* operator->() const { return &**this; }
  T* operator->() { return &**this; }
  const Diagnostics& diagnostics() const { return diagnostics_; }
  Diagnostics& diagnostics() { return diagnostics_; }

 private:
  std::optional<T> value_;
  Diagnostics diagnostics_;
};

}  // namespace plimsoll
