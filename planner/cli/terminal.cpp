// Colours, output that is checked, and the progress line (planner/cli/terminal.hpp).
#include "planner/cli/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "planner/base/machine_error.hpp"

namespace plimsoll {
namespace {

const char* code_of(Colour colour) {
  switch (colour) {
    case Colour::none: return "";
    case Colour::bold: return "\033[1m";
    case Colour::dim: return "\033[2m";
    case Colour::red: return "\033[1;31m";
    case Colour::yellow: return "\033[1;33m";
    case Colour::green: return "\033[1;32m";
  }
  return "";
}

bool printed = false;

[[noreturn]] void output_failed() {
  throw MachineError(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

}  // namespace

bool is_terminal(Stream stream) { return isatty(stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO) == 1; }

bool colours(Stream stream) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  return is_terminal(stream) && term != nullptr && std::string_view(term) != "dumb";
}

std::string paint(std::string_view text, Colour colour) {
  static const bool on = colours(Stream::output);
  if (!on || colour == Colour::none) return std::string(text);
  return fmt::format("{}{}\033[0m", code_of(colour), text);
}

void print(std::string_view text) {
  printed = true;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_failed();
}

bool has_printed() { return printed; }

void finish_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) output_failed();
}

Progress::Progress(std::string what)
    : what_(std::move(what)), start_(std::chrono::steady_clock::now()), last_(start_) {}

void Progress::step(std::string_view now) {
  using namespace std::chrono_literals;
  ++steps_;
  if (!is_terminal(Stream::error)) return;
  const auto time = std::chrono::steady_clock::now();
  if (time - start_ < 2s || time - last_ < 100ms) return;
  last_ = time;
  shown_ = true;
  fmt::print(stderr, "\r\033[K{}: {} tried, {} s, {}", what_, steps_,
             std::chrono::duration_cast<std::chrono::seconds>(time - start_).count(), now);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

}  // namespace plimsoll
