// How does a person read a size or a time, and how is one written in a file?  Three significant digits, four where a binary
// unit needs them (1000 to 1023); a number that rounds up to the next unit is shown in that unit ("1.00 GiB", never
// "1024 MiB").  Reading has 64 bits of mantissa: whole numbers are exact, fractions are rounded to the nearest byte.
#include "planner/base/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace plimsoll {
namespace {

struct Unit {
  std::string_view name;
  double size;
};

/// "1.23", "12.3", "123" or "1023": the number of decimals follows the value *after* rounding.
std::string digits(double value) {
  const double size = std::abs(value);
  if (size < 9.995) return fmt::format("{:.2f}", value);
  if (size < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

/// `value` in the largest of `units` (ascending) that leaves at least 1 in front of the point.  The smallest unit of a
/// whole-number quantity has no decimals.
template <std::size_t N>
std::string in_units(double value, const Unit (&units)[N], bool whole) {
  const double size = std::abs(value);
  std::size_t at = 0;
  // The next unit is due as soon as the rounded number would reach it: 0.9995 of 1000, 0.99951 of 1024.
  while (at + 1 < N && size >= units[at + 1].size - units[at].size / 2) ++at;
  if (value == 0 || (whole && at == 0)) return fmt::format("{:.0f} {}", value, units[at].name);
  return fmt::format("{} {}", digits(value / units[at].size), units[at].name);
}

constexpr double kibi = 1024.0;
constexpr Unit binary_units[] = {{"B", 1},
                                 {"KiB", kibi},
                                 {"MiB", kibi* kibi},
                                 {"GiB", kibi* kibi* kibi},
                                 {"TiB", kibi* kibi* kibi* kibi},
                                 {"PiB", kibi* kibi* kibi* kibi* kibi},
                                 {"EiB", kibi* kibi* kibi* kibi* kibi* kibi}};
constexpr Unit rate_units[] = {{"B/s", 1},     {"kB/s", 1e3},  {"MB/s", 1e6}, {"GB/s", 1e9},
                               {"TB/s", 1e12}, {"PB/s", 1e15}, {"EB/s", 1e18}};
constexpr Unit flop_units[] = {{"FLOP", 1},     {"kFLOP", 1e3},  {"MFLOP", 1e6},  {"GFLOP", 1e9}, {"TFLOP", 1e12},
                               {"PFLOP", 1e15}, {"EFLOP", 1e18}, {"ZFLOP", 1e21}, {"YFLOP", 1e24}};
constexpr Unit second_units[] = {{"ps", 1e-12}, {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t";
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "13897000" of "13,897,000", "13_897_000" or "13 897 000": one kind of separator, and three digits after each.  Another text as
/// it is.
std::string without_groups(std::string_view text) {
  constexpr std::size_t group = 3;
  const std::size_t first = text.find_first_of(",_ ");
  if (first == std::string_view::npos) return std::string(text);
  const auto all_digits = [](std::string_view part) { return std::all_of(part.begin(), part.end(), is_digit); };
  std::string digits(text.substr(0, first));
  bool good = first > 0 && first <= group && all_digits(digits);
  std::size_t at = first;
  for (; good && at < text.size() && text[at] == text[first]; at += group + 1) {
    const std::string_view three = text.substr(at + 1, group);
    good = three.size() == group && all_digits(three);
    digits += three;
  }
  good = good && (at == text.size() || !is_digit(text[at]));
  return good ? digits + std::string(text.substr(at)) : std::string(text);
}

/// A number that is not negative, blanks, and the rest of the text as its unit.  "1.5 TB", "80GiB", "1e9 B".
std::optional<std::pair<long double, std::string_view>> split(std::string_view text) {
  text = trimmed(text);
  // from_chars would take "-1", "inf" and "nan"; a size is none of them.
  if (text.empty() || !is_digit(text.front())) return std::nullopt;
  long double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  unit = trimmed(unit);
  if (unit.empty()) return std::nullopt;
  return std::pair(number, unit);
}

/// Powers of a prefix: "" 1, "k" and "K" 1000, "Ki" 1024, "M", "Mi", … up to "E", "Ei".
std::optional<long double> prefix_factor(std::string_view prefix) {
  if (prefix.empty()) return 1.0L;
  if (prefix == "k") return 1000.0L;
  constexpr std::string_view letters = "KMGTPE";
  const auto power = letters.find(prefix.front());
  if (power == std::string_view::npos) return std::nullopt;
  const bool binary = prefix.size() == 2 && prefix[1] == 'i';
  if (prefix.size() > 1 && !binary) return std::nullopt;
  long double factor = 1;
  for (std::size_t i = 0; i <= power; ++i) factor *= binary ? 1024.0L : 1000.0L;
  return factor;
}

/// The factor of `unit` = prefix + `suffix`, if it has that form.
std::optional<long double> factor_before(std::string_view unit, std::string_view suffix) {
  if (!unit.ends_with(suffix)) return std::nullopt;
  return prefix_factor(unit.substr(0, unit.size() - suffix.size()));
}

}  // namespace

std::string format(Bytes bytes) { return in_units(static_cast<double>(bytes.count), binary_units, true); }

std::string format(Seconds seconds) {
  constexpr double minute = 60;
  constexpr double hour = 60 * minute;
  constexpr double day = 24 * hour;
  const double size = std::abs(seconds.count);
  if (size == 0) return "0 s";
  if (size >= 2 * day) return fmt::format("{} d", digits(seconds.count / day));
  if (size >= 2 * hour) return fmt::format("{} h", digits(seconds.count / hour));
  if (size >= 2 * minute) return fmt::format("{} min", digits(seconds.count / minute));
  return in_units(seconds.count, second_units, false);
}

std::string format(BytesPerSecond rate) { return in_units(rate.count, rate_units, false); }

std::string format(Flops flops) { return in_units(flops.count, flop_units, false); }

std::string format_count(std::int64_t count) {
  std::string text = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

std::optional<Bytes> parse_bytes(std::string_view text) {
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  const auto factor = factor_before(parts->second, "B");
  if (!factor) return std::nullopt;
  const long double bytes = std::round(parts->first * *factor);
  if (!(bytes < 0x1p63L)) return std::nullopt;
  return Bytes(static_cast<std::int64_t>(bytes));
}

std::optional<Seconds> parse_seconds(std::string_view text) {
  constexpr std::pair<std::string_view, long double> units[] = {
      {"ps", 1e-12L}, {"ns", 1e-9L}, {"us", 1e-6L},  {"\u00B5s", 1e-6L}, {"\u03BCs", 1e-6L},
      {"ms", 1e-3L},  {"s", 1.0L},   {"min", 60.0L}, {"h", 3600.0L},     {"d", 86400.0L}};
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  for (const auto& [name, size] : units) {
    if (name != parts->second) continue;
    const auto seconds = static_cast<double>(parts->first * size);
    return std::isfinite(seconds) ? std::optional(Seconds(seconds)) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<BytesPerSecond> parse_bytes_per_second(std::string_view text) {
  constexpr std::pair<std::string_view, long double> suffixes[] = {
      {"B/s", 1.0L}, {"b/s", 0.125L}, {"bit/s", 0.125L}, {"bps", 0.125L}};
  const auto parts = split(text);
  if (!parts) return std::nullopt;
  for (const auto& [suffix, bytes] : suffixes) {
    if (const auto factor = factor_before(parts->second, suffix)) {
      const auto rate = static_cast<double>(parts->first * *factor * bytes);
      return std::isfinite(rate) ? std::optional(BytesPerSecond(rate)) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<double> parse_count(std::string_view text) {
  constexpr std::pair<std::string_view, double> thousands[] = {
      {"kK", 1e3}, {"mM", 1e6}, {"bB", 1e9}, {"gG", 1e9}, {"tT", 1e12}};
  double factor = 1;
  text = trimmed(text);
  for (const auto& [letters, power] : thousands)
    if (!text.empty() && letters.find(text.back()) != std::string_view::npos) factor = power;
  if (factor > 1) text = trimmed(text.substr(0, text.size() - 1));
  const std::string digits = without_groups(text);
  // from_chars would take "-1", "inf" and "nan".
  if (digits.empty() || (digits.front() != '.' && !is_digit(digits.front()))) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(number * factor))
    return std::nullopt;
  return number * factor;
}

}  // namespace plimsoll
