// How does a diagnostic look on a terminal?  The place, the message, the line it is about with carets under the span, then
// notes and help:
//
//   plan.json:14:24: error[plan.expert.divides]: /expert_parallel is 48, which does not divide the number of experts
//      14 |     "expert_parallel": 48,
//         |                        ^~
//
// Tabs are shown as spaces up to the next stop, so that the carets stand right whatever the terminal's own stops are; of a
// long line only the part around the span is shown.
#include "planner/base/diagnostic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "planner/base/unicode.hpp"

namespace plimsoll {
namespace {

constexpr int tab_stop = 4;
constexpr int shown_before = 40;  // code points shown of a long line before the span begins, and from there on
constexpr int shown_after = 80;

constexpr std::string_view reset = "\x1b[0m";
constexpr std::string_view bold = "\x1b[1m";
constexpr std::string_view red = "\x1b[1;31m";
constexpr std::string_view yellow = "\x1b[1;33m";
constexpr std::string_view cyan = "\x1b[1;36m";
constexpr std::string_view green = "\x1b[1;32m";

std::string paint(std::string_view text, std::string_view colour, bool on) {
  return on && !text.empty() ? fmt::format("{}{}{}", colour, text, reset) : std::string(text);
}

std::string_view colour_of(Severity severity) {
  switch (severity) {
    case Severity::error: return red;
    case Severity::warning: return yellow;
    case Severity::note: return cyan;
  }
  return cyan;
}

std::string_view name_of(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
    case Severity::note: return "note";
  }
  return "note";
}

/// "file:line:column: ", "file: " or "".
std::string where(const Place& place) {
  if (!place.file) return "";
  const std::string name = printable(place.file->name);
  return place.line < 1 ? name + ": " : fmt::format("{}:{}:{}: ", name, place.line, place.column);
}

/// Line `number` (from 1) without its line end; nothing if the text has fewer.
std::optional<std::string_view> line_of(std::string_view text, int number) {
  if (number < 1) return std::nullopt;
  for (int line = 1; line < number; ++line) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  return text;
}

/// A line as shown: its text, and the terminal cells that the span covers.
struct Excerpt {
  std::string text;
  int begin = 0;  ///< first cell of the span
  int cells = 1;
};

/// The code points of `line` around the span [column, column + length), columns from 1.  A span beyond the end of the line
/// points just behind its last character.
Excerpt excerpt(std::string_view line, int column, int length) {
  const auto count = static_cast<int>(count_code_points(line));
  const int first = std::clamp(column - 1, 0, count);
  const int last = first + std::clamp(length, 0, count - first);
  const int from = count > shown_before + shown_after ? std::max(0, first - shown_before) : 0;
  const int to = count > shown_before + shown_after ? std::min(count, first + shown_after) : count;

  Excerpt result;
  int width = 0;
  const auto show = [&](std::string_view text, int cells) {
    result.text += text;
    width += cells;
  };
  if (from > 0) show("…", 1);
  int span_end = width;
  std::size_t at = 0;
  for (int index = 0; index <= to; ++index) {
    if (index == first) result.begin = width;
    if (index == std::min(last, to)) span_end = width;
    if (index == to) break;
    const CodePoint point = decode_utf8(line, at);
    const std::string_view bytes = line.substr(at, point.bytes);
    at += point.bytes;
    if (index < from) continue;
    if (point.value == '\t') {
      const int cells = tab_stop - width % tab_stop;
      show(std::string(static_cast<std::size_t>(cells), ' '), cells);
    } else {
      show(printable(bytes), display_width(point.value));
    }
  }
  if (to < count) show("…", 1);
  result.cells = std::max(1, span_end - result.begin);
  return result;
}

}  // namespace

Diagnostic make_error(std::string code, std::string message, std::string help, Place place) {
  return {Severity::error, std::move(code), std::move(place), std::move(message), {}, std::move(help)};
}

bool has_errors(const Diagnostics& diagnostics) {
  return std::any_of(diagnostics.begin(), diagnostics.end(),
                     [](const Diagnostic& diagnostic) { return diagnostic.severity == Severity::error; });
}

std::string format(const Diagnostic& diagnostic, bool colour) {
  const Place& place = diagnostic.place;
  const std::string_view severity_colour = colour_of(diagnostic.severity);
  std::string kind(name_of(diagnostic.severity));
  if (!diagnostic.code.empty()) kind += fmt::format("[{}]", diagnostic.code);
  std::string text = paint(where(place), bold, colour) + paint(kind + ":", severity_colour, colour) + " " +
                     printable(diagnostic.message) + "\n";
  if (const auto line = place.file ? line_of(place.file->text, place.line) : std::nullopt) {
    const Excerpt shown = excerpt(*line, place.column, place.length);
    const std::string number = fmt::format("{:>5}", place.line);
    const std::string carets = "^" + std::string(static_cast<std::size_t>(shown.cells - 1), '~');
    text += fmt::format("{} | {}\n", number, shown.text);
    text +=
        fmt::format("{:{}} | {:{}}{}\n", "", number.size(), "", shown.begin, paint(carets, severity_colour, colour));
  }
  for (const Diagnostic::Note& note : diagnostic.notes) {
    text +=
        paint(where(note.place), bold, colour) + paint("note:", cyan, colour) + " " + printable(note.message) + "\n";
  }
  if (!diagnostic.help.empty()) text += paint("help:", green, colour) + " " + printable(diagnostic.help) + "\n";
  return text;
}

}  // namespace plimsoll
