// Are addresses given as a search of all gaps from the lowest one on would give them?
#include "planner/account/address_gaps.hpp"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace plimsoll {
namespace {

using testing::ElementsAre;
using testing::Pair;

TEST(AddressGaps, GiveTheLowestThatHoldsASizeAndKeepItsRest) {
  AddressGaps gaps;
  gaps.add_rest(100, 10);
  gaps.add_rest(200, 40);
  gaps.add_rest(300, 30);
  EXPECT_EQ(gaps.take(20), 200);
  EXPECT_EQ(gaps.take(20), 220);
  EXPECT_EQ(gaps.take(25), 300);
  EXPECT_EQ(gaps.take(25), std::nullopt);
  EXPECT_THAT(gaps.by_address(), ElementsAre(Pair(100, 10), Pair(325, 5)));
}

TEST(AddressGaps, JoinWhatIsFreeAgainButNotTheRestsOfRanges) {
  AddressGaps gaps;
  gaps.add_rest(100, 10);
  gaps.add_rest(110, 10);
  EXPECT_THAT(gaps.by_address(), ElementsAre(Pair(100, 10), Pair(110, 10)));
  gaps.add(120, 5);
  EXPECT_THAT(gaps.by_address(), ElementsAre(Pair(100, 10), Pair(110, 15)));
  gaps.add(90, 10);
  EXPECT_THAT(gaps.by_address(), ElementsAre(Pair(90, 20), Pair(110, 15)));
}

TEST(AddressGaps, AreFoundAsByLookingAtEachOfThem) {
  std::mt19937 random(7);
  AddressGaps gaps;
  std::map<std::int64_t, std::int64_t> plain;
  std::map<std::int64_t, std::int64_t> taken;
  std::int64_t end = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 16);
    if (random() % 3 == 0 && !taken.empty()) {
      const auto given_back = taken.begin();
      gaps.add(given_back->first, given_back->second);
      taken.erase(given_back);
      plain = gaps.by_address();
      continue;
    }
    auto first = plain.begin();
    while (first != plain.end() && first->second < size) ++first;
    const auto address = gaps.take(size);
    ASSERT_EQ(address, first == plain.end() ? std::nullopt : std::optional(first->first));
    if (!address) {
      gaps.add_rest(end, 20);
      end += 20;
    } else {
      taken[*address] = size;
    }
    plain = gaps.by_address();
  }
  EXPECT_GT(end, 0);
}

}  // namespace
}  // namespace plimsoll
