// Which names are most like a word?  By edit distance (planner/base/nearest.hpp, planner/base/format.hpp).
#include "planner/base/nearest.hpp"

#include <algorithm>
#include <utility>

#include "planner/base/format.hpp"

namespace plimsoll {
namespace {

char folded(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter == '-' ? '_' : letter;
}

/// Fewest insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal string alignment),
/// with letter case and "-" against "_" free; or into any part of `b`.  Row i of the table needs the two rows before it.
enum class Into { all, part };
std::size_t edit_distance(std::string_view a, std::string_view b, Into into) {
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = into == Into::all ? j : 0;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = folded(a[i - 1]);
      const char y = folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y)
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return into == Into::all ? row[b.size()] : *std::min_element(row.begin(), row.end());
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(word.size(), candidate.size());
    const std::size_t shorter = std::min(word.size(), candidate.size());
    // A slip of the pen: at most one letter in three, and never all of a word.
    const std::size_t limit = std::min(std::max<std::size_t>(1, longer / 3), shorter == 0 ? 0 : shorter - 1);
    if (shorter == 0 || longer - shorter > limit) continue;
    const std::size_t distance = edit_distance(word, candidate, Into::all);
    if (distance > limit || (best && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::vector<std::string> nearest_parts(std::string_view word, const std::vector<std::string>& candidates,
                                       std::size_t count) {
  std::vector<std::pair<std::size_t, const std::string*>> order;
  order.reserve(candidates.size());
  for (const std::string& candidate : candidates)
    order.emplace_back(edit_distance(word, candidate, Into::part), &candidate);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(count, order.size()); ++i) names.push_back(*order[i].second);
  return names;
}

}  // namespace plimsoll
