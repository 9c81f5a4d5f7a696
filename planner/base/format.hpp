// How does a person read a size or a time?  "12.4 GiB", "3.21 ms", "360 GB/s"; and the way back, from files whose values
// carry their unit.  GB (1e9) and GiB (2^30) differ and are never guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/quantity.hpp"

namespace plimsoll {

std::string format(Bytes bytes);      ///< binary units, three significant digits (four from 1000 to 1023): "79.3 GiB"
std::string format(Seconds seconds);  ///< "3.21 ms"
std::string format(BytesPerSecond rate);       ///< decimal units: "360 GB/s"
std::string format(Flops flops);               ///< "2.50 PFLOP"
std::string format_count(std::int64_t count);  ///< digits in groups of three: "46,702,792,704"
/// "1 GPU", "1,024 GPUs": for nouns whose plural ends in s.
std::string counted(std::int64_t count, std::string_view noun);

std::optional<Bytes> parse_bytes(std::string_view text);      ///< "80 GiB", "1.5 TB"; a unit is required
std::optional<Seconds> parse_seconds(std::string_view text);  ///< "25 us", "1.2 s"
std::optional<BytesPerSecond> parse_bytes_per_second(std::string_view text);  ///< "400 GB/s", "400 Gb/s" (bits)

/// A number that is not negative: "15T", "13.9B", "1e12", "13,897,000,000"; k, M, B (or G) and T are decimal thousands, in
/// either case.
std::optional<double> parse_count(std::string_view text);

/// The candidate nearest to `word` by edit distance, if near enough to be a slip of the pen.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace plimsoll
