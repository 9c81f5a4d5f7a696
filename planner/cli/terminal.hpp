// May we paint?  Colours and progress lines are for terminals only; NO_COLOR (no-color.org) and TERM=dumb turn colours off.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace plimsoll {

enum class Stream { output, error };

bool is_terminal(Stream stream);
/// True if colours may be written to that stream.
bool colours(Stream stream);

enum class Colour { none, bold, dim, red, yellow, green };

/// `text` in that colour on standard output, unchanged where colours are off.
std::string paint(std::string_view text, Colour colour);

/// Writes to standard output.  @throws MachineError where that fails (a full disk)
void print(std::string_view text);
/// True once print() was called.
bool has_printed();
/// Flushes standard output.  @throws MachineError likewise
void finish_output();

/// A line on standard error that says how far a long search is: terminals only, from the second second on.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more step; `now` says what is looked at.
  void step(std::string_view now);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_, last_;
  long steps_ = 0;
  bool shown_ = false;
};

}  // namespace plimsoll
