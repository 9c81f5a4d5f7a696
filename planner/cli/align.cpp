// Myers' difference algorithm: a point in the middle of a shortest path, found from both ends at once, splits the problem
// (planner/cli/align.hpp).
//
// Edit graph: x runs over a, y over b, diagonal k = x - y; a step right drops a[x], a step down drops b[y], equal elements
// go along the diagonal for nothing.  reach_[k] is the farthest x on diagonal k that c edits from the start reach, and
// remain_[k] the least x from which c edits reach the end.  Where they pass each other, a shortest path goes through.
#include "planner/cli/align.hpp"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

using Index = std::ptrdiff_t;

/// Edits from either end after which the search for a shortest path ends with a good one.
constexpr Index most_edits = 2048;

class Aligner {
 public:
  Aligner(std::span<const std::int64_t> a, std::span<const std::int64_t> b)
      : a_(a), b_(b), origin_(std::ssize(b) + 1), reach_(a.size() + b.size() + 3), remain_(reach_.size()) {}

  std::vector<std::pair<std::size_t, std::size_t>> run() {
    std::vector<Box> open = {{0, std::ssize(a_), 0, std::ssize(b_)}};
    while (!open.empty()) {
      Box box = open.back();
      open.pop_back();
      trim(box);
      if (box.a_begin == box.a_end || box.b_begin == box.b_end) continue;
      const auto [x, y] = middle(box);
      open.push_back({box.a_begin, x, box.b_begin, y});
      open.push_back({x, box.a_end, y, box.b_end});
    }
    std::sort(pairs_.begin(), pairs_.end());
    return std::move(pairs_);
  }

 private:
  struct Box {
    Index a_begin, a_end, b_begin, b_end;
  };
  /// Diagonals that a search has come to.
  struct Range {
    Index low, high;
    bool holds(Index k) const { return k >= low && k <= high; }
  };

  Index& reach(Index k) { return reach_[static_cast<std::size_t>(k + origin_)]; }
  Index& remain(Index k) { return remain_[static_cast<std::size_t>(k + origin_)]; }
  bool equal(Index x, Index y) const { return a_[static_cast<std::size_t>(x)] == b_[static_cast<std::size_t>(y)]; }
  void pair(Index x, Index y) { pairs_.emplace_back(static_cast<std::size_t>(x), static_cast<std::size_t>(y)); }

  /// Takes what both ends have in common.
  void trim(Box& box) {
    while (box.a_begin < box.a_end && box.b_begin < box.b_end && equal(box.a_begin, box.b_begin))
      pair(box.a_begin++, box.b_begin++);
    while (box.a_begin < box.a_end && box.b_begin < box.b_end && equal(box.a_end - 1, box.b_end - 1))
      pair(--box.a_end, --box.b_end);
  }

  /// One diagonal more on either side, as far as the box goes; `none` stands beyond the ends.
  template <class At>
  static void widen(Range& range, const Range& box, Index none, At at) {
    if (range.low > box.low) {
      at(--range.low - 1) = none;
    } else {
      ++range.low;
    }
    if (range.high < box.high) {
      at(++range.high + 1) = none;
    } else {
      --range.high;
    }
  }

  /// A point of a shortest path through the box (of a good one, where that is long), not one of its corners: both ends
  /// of the box differ, so that at least two edits are needed.
  std::pair<Index, Index> middle(const Box& box) {
    const Range diagonals{box.a_begin - box.b_end, box.a_end - box.b_begin};
    const Index first = box.a_begin - box.b_begin;
    const Index last = box.a_end - box.b_end;
    const bool odd = (last - first) % 2 != 0;
    Range from_start{first, first};
    Range from_end{last, last};
    reach(first) = box.a_begin;
    remain(last) = box.a_end;
    for (Index edits = 1; edits <= most_edits; ++edits) {
      widen(from_start, diagonals, -1, [&](Index k) -> Index& { return reach(k); });
      for (Index k = from_start.high; k >= from_start.low; k -= 2) {
        Index x = std::max(reach(k - 1) + 1, reach(k + 1));
        while (x < box.a_end && x - k < box.b_end && equal(x, x - k)) ++x;
        reach(k) = x;
        if (odd && from_end.holds(k) && remain(k) <= x) return {x, x - k};
      }
      widen(from_end, diagonals, beyond, [&](Index k) -> Index& { return remain(k); });
      for (Index k = from_end.high; k >= from_end.low; k -= 2) {
        Index x = std::min(remain(k - 1), remain(k + 1) - 1);
        while (x > box.a_begin && x - k > box.b_begin && equal(x - 1, x - k - 1)) --x;
        remain(k) = x;
        if (!odd && from_start.holds(k) && x <= reach(k)) return {x, x - k};
      }
    }
    return farthest(box, from_start);
  }

  /// The point within the box that lies farthest from its start.
  std::pair<Index, Index> farthest(const Box& box, const Range& from_start) {
    std::pair<Index, Index> best{box.a_begin, box.b_begin};
    for (Index k = from_start.high; k >= from_start.low; k -= 2) {
      const Index x = std::min({reach(k), box.a_end, box.b_end + k});
      if (x + (x - k) > best.first + best.second) best = {x, x - k};
    }
    return best;
  }

  static constexpr Index beyond = std::numeric_limits<Index>::max() / 2;

  std::span<const std::int64_t> a_, b_;
  Index origin_;  ///< slot of diagonal 0
  std::vector<Index> reach_, remain_;
  std::vector<std::pair<std::size_t, std::size_t>> pairs_;
};

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> align(std::span<const std::int64_t> a,
                                                       std::span<const std::int64_t> b) {
  return Aligner(a, b).run();
}

}  // namespace plimsoll
