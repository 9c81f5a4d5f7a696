// Files damaged at random, in the ways in which files get damaged: cut, a byte more or less, another number, a value of
// another type, the whole text twice, thousands of brackets.
#pragma once

#include <algorithm>
#include <random>
#include <string>

namespace plimsoll {

using Random = std::mt19937;

inline std::size_t below(Random& random, std::size_t bound) {
  return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
}

template <std::size_t N>
std::string one_of(Random& random, const std::string (&choices)[N]) {
  return choices[below(random, N)];
}

inline const std::string bytes[] = {std::string(1, '\0'), "\x01", "\"", "{", "}", "[", "]", ",", ":", "-", "\xff",
                                    "\xf0\x9f\x98\x80"};
inline const std::string values[] = {"-1",
                                     "0",
                                     "1e999",
                                     "9223372036854775808",
                                     "18446744073709551616",
                                     "0.5",
                                     "\"7\"",
                                     "[]",
                                     "{}",
                                     "null",
                                     "1e-300",
                                     "4611686018427387904",
                                     "1048576",
                                     "true",
                                     "3"};

/// Replaces a number, if there is one behind a random place.
inline void replace_number(Random& random, std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789", below(random, text.size()));
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_not_of("0123456789.e", begin), text.size());
  text.replace(begin, end - begin, one_of(random, values));
}

inline void mutate(Random& random, std::string& text) {
  if (text.empty()) return;
  const std::size_t at = below(random, text.size());
  switch (below(random, 10)) {
    case 0: text.resize(at); break;
    case 1: text.insert(at, one_of(random, bytes)); break;
    case 2: text.erase(at, 1 + below(random, 9)); break;
    case 3: text += text; break;
    case 4: text.insert(0, below(random, 2) == 0 ? std::string(1, '[') : std::string(5000, '[')); break;
    case 5: text.insert(text.find(':') == std::string::npos ? 0 : text.find(':') + 1, " ["); break;
    default: replace_number(random, text); break;
  }
}

}  // namespace plimsoll
