// Does the alignment find a longest common subsequence?  Against the textbook's table of lengths, on small random lists.
#include "planner/cli/align.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace plimsoll {
namespace {

using List = std::vector<std::int64_t>;

List random_list(std::mt19937& random, std::size_t most, std::int64_t values) {
  List list(random() % (most + 1));
  for (std::int64_t& value : list) value = static_cast<std::int64_t>(random()) % values;
  return list;
}

std::size_t longest(const List& a, const List& b) {
  std::vector<std::vector<std::size_t>> length(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      length[i][j] = a[i - 1] == b[j - 1] ? length[i - 1][j - 1] + 1 : std::max(length[i - 1][j], length[i][j - 1]);
    }
  }
  return length[a.size()][b.size()];
}

TEST(Align, FindsALongestCommonSubsequence) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 5000; ++trial) {
    const List a = random_list(random, 14, 1 + trial % 5);
    const List b = random_list(random, 14, 1 + trial % 5);
    const auto pairs = align(a, b);
    ASSERT_EQ(pairs.size(), longest(a, b));
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      ASSERT_EQ(a[pairs[i].first], b[pairs[i].second]);
      if (i == 0) continue;
      ASSERT_LT(pairs[i - 1].first, pairs[i].first);
      ASSERT_LT(pairs[i - 1].second, pairs[i].second);
    }
  }
}

TEST(Align, LongListsWithFewDifferencesKeepAllElseInCommon) {
  List a(50000);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::int64_t>(i * 7919 % 1000);
  List b = a;
  for (std::size_t i = 0; i < 10; ++i) b.insert(b.begin() + static_cast<std::ptrdiff_t>(i * 4000), -1);
  EXPECT_EQ(align(a, b).size(), a.size());
}

TEST(Align, ListsThatShareNothingEndSoon) {
  List a(20000), b(20000);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = 2 * static_cast<std::int64_t>(i), b[i] = a[i] + 1;
  EXPECT_TRUE(align(a, b).empty());
}

}  // namespace
}  // namespace plimsoll
