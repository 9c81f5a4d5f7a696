// Which elements do two sequences have in common, in order?  A longest common subsequence by Myers' O(ND) algorithm in
// linear space (E. W. Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1, 1986).  For sequences that
// have little in common the search is cut short, and a shorter common subsequence is given.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace plimsoll {

/// Index pairs (i, j) with a[i] == b[j], rising in both.
std::vector<std::pair<std::size_t, std::size_t>> align(std::span<const std::int64_t> a,
                                                       std::span<const std::int64_t> b);

}  // namespace plimsoll
