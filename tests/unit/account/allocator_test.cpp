// The replay of the caching allocator against its rules, one by one, and against steps measured on a device.
#include "planner/account/allocator.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll {
namespace {

constexpr std::int64_t kib = 1024;
constexpr std::int64_t mib = 1024 * kib;

// Allocates, where the test knows that there is room.
BlockId take(CachingAllocator& allocator, std::int64_t size, int stream = 0) {
  const std::optional<BlockId> block = allocator.malloc(Bytes(size), stream);
  EXPECT_TRUE(block.has_value());
  return block.value_or(BlockId::empty);
}

std::int64_t reserved_for(std::int64_t size) {
  CachingAllocator allocator;
  take(allocator, size);
  return allocator.now().reserved.count;
}

TEST(Allocator, RoundsRequestsUpTo512Bytes) {
  CachingAllocator allocator;
  EXPECT_EQ(allocator.size_of(take(allocator, 1)), Bytes(512));
  EXPECT_EQ(allocator.size_of(take(allocator, 512)), Bytes(512));
  EXPECT_EQ(allocator.size_of(take(allocator, 513)), Bytes(1024));
  EXPECT_EQ(allocator.now().allocated, Bytes(2048));
  EXPECT_EQ(allocator.now().requested, Bytes(1 + 512 + 513));
}

TEST(Allocator, NothingIsABlockOfNoBytes) {
  CachingAllocator allocator;
  EXPECT_EQ(take(allocator, 0), BlockId::empty);
  allocator.free(BlockId::empty);
  EXPECT_EQ(allocator.size_of(BlockId::empty), Bytes(0));
  EXPECT_EQ(allocator.now().reserved, Bytes(0));
}

TEST(Allocator, TakesSegmentsByTheSizeOfTheRequest) {
  EXPECT_EQ(reserved_for(512), 2 * mib);
  EXPECT_EQ(reserved_for(mib), 2 * mib);
  EXPECT_EQ(reserved_for(mib + 1), 20 * mib);
  EXPECT_EQ(reserved_for(3 * mib / 2), 20 * mib);
  EXPECT_EQ(reserved_for(10 * mib - 512), 20 * mib);
  EXPECT_EQ(reserved_for(10 * mib), 10 * mib);
  EXPECT_EQ(reserved_for(10 * mib + mib / 10), 12 * mib);
}

TEST(Allocator, CountsARemainderOfUpToOneMibAsAllocated) {
  CachingAllocator allocator;
  EXPECT_EQ(allocator.size_of(take(allocator, 501 * mib)), Bytes(502 * mib));              // 1 MiB left: not split off
  EXPECT_EQ(allocator.size_of(take(allocator, 501 * mib - 512)), Bytes(501 * mib - 512));  // more than 1 MiB left
  EXPECT_EQ(allocator.now().requested, Bytes(1002 * mib - 512));
}

TEST(Allocator, SplitsSmallBlocksFrom512BytesOn) {
  CachingAllocator allocator;
  take(allocator, mib);
  take(allocator, mib - 512);
  take(allocator, 512);  // the last 512 bytes of the same segment
  EXPECT_EQ(allocator.now().reserved, Bytes(2 * mib));
  EXPECT_EQ(allocator.now().allocated, Bytes(2 * mib));
}

TEST(Allocator, NeverMergesAcrossSegments) {
  CachingAllocator allocator;
  std::vector<BlockId> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(allocator, 16 * mib));
  for (const BlockId block : blocks) allocator.free(block);
  for (int i = 0; i < 4; ++i) take(allocator, 32 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes(256 * mib));
  EXPECT_EQ(allocator.device_allocations(), 12);
}

TEST(Allocator, MergesNeighboursOfASegment) {
  CachingAllocator allocator;
  const BlockId a = take(allocator, 5 * mib);
  const BlockId b = take(allocator, 5 * mib);
  const BlockId c = take(allocator, 5 * mib);
  allocator.free(a);
  allocator.free(c);
  EXPECT_EQ(allocator.snapshot()[0].blocks.size(), 3u);  // a | b | c and the rest
  allocator.free(b);
  EXPECT_EQ(allocator.snapshot()[0].blocks.size(), 1u);
  take(allocator, 20 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes(20 * mib));
}

TEST(Allocator, ASmallTensorPinsItsSegment) {
  CachingAllocator allocator;
  const BlockId large = take(allocator, mib);
  const BlockId tiny = take(allocator, 512);
  allocator.free(large);
  allocator.empty_cache();
  EXPECT_EQ(allocator.now().reserved, Bytes(2 * mib));
  allocator.free(tiny);
  EXPECT_EQ(allocator.now().reserved, Bytes(2 * mib));
  allocator.empty_cache();
  EXPECT_EQ(allocator.now().reserved, Bytes(0));
  EXPECT_TRUE(allocator.snapshot().empty());
}

TEST(Allocator, StreamsDoNotShareBlocks) {
  CachingAllocator allocator;
  allocator.free(take(allocator, 16 * mib, 0));
  take(allocator, 16 * mib, 1);
  EXPECT_EQ(allocator.now().reserved, Bytes(32 * mib));
  take(allocator, 16 * mib, 0);
  EXPECT_EQ(allocator.now().reserved, Bytes(32 * mib));
}

TEST(Allocator, TakesTheSmallestHoleThatFits) {
  CachingAllocator allocator;
  const BlockId large = take(allocator, 40 * mib);
  const BlockId small = take(allocator, 30 * mib);
  allocator.free(large);
  allocator.free(small);
  take(allocator, 29 * mib);
  const auto segments = allocator.snapshot();
  ASSERT_EQ(segments.size(), 2u);
  for (const SegmentSnapshot& segment : segments) {
    EXPECT_EQ(segment.blocks[0].in_use, segment.size == Bytes(30 * mib));
  }
}

AllocatorRules with_gap(Bytes address_gap) {
  AllocatorRules rules;
  rules.address_gap = address_gap;
  return rules;
}

// A segment of 16 MiB leaves half of its range of 32 MiB to the next one, which lies above it therefore; a third takes a
// new range below both.
TEST(Allocator, TakesTheLowestOfEqualHoles) {
  CachingAllocator allocator(with_gap(Bytes(0)));
  const BlockId first = take(allocator, 16 * mib);
  const BlockId above = take(allocator, 16 * mib);
  const BlockId below = take(allocator, 16 * mib);
  EXPECT_EQ(allocator.address_of(above) - allocator.address_of(first), 16 * mib);
  EXPECT_EQ(allocator.address_of(first) - allocator.address_of(below), 32 * mib);
  allocator.free(first);
  allocator.free(above);
  EXPECT_EQ(take(allocator, 16 * mib), first);
  allocator.free(below);
  EXPECT_EQ(take(allocator, 16 * mib), below);
}

TEST(Allocator, TakesWhatIsFreeAboveTheFirstRangeIfItHoldsTheSegment) {
  CachingAllocator allocator(with_gap(Bytes(16 * mib)));
  const BlockId large = take(allocator, 20 * mib);
  const BlockId fits = take(allocator, 16 * mib);
  EXPECT_EQ(allocator.address_of(fits) - allocator.address_of(large), 32 * mib);
}

TEST(Allocator, TakesAddressesAgainThatWereGivenBack) {
  CachingAllocator allocator(with_gap(Bytes(0)));
  const BlockId lower = take(allocator, 16 * mib);
  const BlockId upper = take(allocator, 16 * mib);
  const std::int64_t address = allocator.address_of(lower);
  allocator.free(upper);
  allocator.free(lower);
  allocator.empty_cache();
  EXPECT_EQ(allocator.address_of(take(allocator, 32 * mib)), address);
}

TEST(Allocator, CountsRetiredBlocksAsActiveUntilReclaimed) {
  CachingAllocator allocator;
  const BlockId block = take(allocator, 16 * mib);
  allocator.retire(block);
  EXPECT_EQ(allocator.now().allocated, Bytes(0));
  EXPECT_EQ(allocator.now().active, Bytes(16 * mib));
  const BlockId other = take(allocator, 16 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes(32 * mib));
  allocator.reclaim(block);
  EXPECT_EQ(allocator.now().active, Bytes(16 * mib));
  allocator.free(other);
  EXPECT_EQ(allocator.peak().allocated, Bytes(16 * mib));
  EXPECT_EQ(allocator.peak().active, Bytes(32 * mib));
}

TEST(Allocator, PeaksStartAnewFromTheCurrentValues) {
  CachingAllocator allocator;
  const BlockId large = take(allocator, 100 * mib);
  take(allocator, 16 * mib);
  allocator.free(large);
  allocator.reset_peak();
  EXPECT_EQ(allocator.peak().allocated, Bytes(16 * mib));
  EXPECT_EQ(allocator.peak().reserved, Bytes(116 * mib));
}

TEST(Allocator, RoundsUpToPartsOfAPowerOfTwo) {
  AllocatorRules rules;
  rules.roundup_power2_divisions.fill(4);
  rules.roundup_power2_divisions[1] = 8;  // 2 MiB up to 4 MiB
  CachingAllocator allocator(rules);
  EXPECT_EQ(allocator.size_of(take(allocator, 1200)), Bytes(1536));  // four blocks of 512 or less: as ever
  EXPECT_EQ(allocator.size_of(take(allocator, 600 * kib)), Bytes(640 * kib));
  EXPECT_EQ(allocator.size_of(take(allocator, 1200 * kib)), Bytes(1280 * kib));
  EXPECT_EQ(allocator.size_of(take(allocator, 2049 * kib)), Bytes(2304 * kib));
  EXPECT_EQ(allocator.size_of(take(allocator, 4 * mib)), Bytes(4 * mib));
}

TEST(Allocator, DoesNotSplitBeyondMaxSplitSize) {
  AllocatorRules rules;
  rules.max_split_size = Bytes(100 * mib);
  CachingAllocator allocator(rules);
  allocator.free(take(allocator, 200 * mib));
  take(allocator, 50 * mib);  // may not use the oversize block
  EXPECT_EQ(allocator.now().reserved, Bytes(250 * mib));
  take(allocator, 180 * mib);  // 20 MiB less is too much to waste
  EXPECT_EQ(allocator.now().reserved, Bytes(430 * mib));
  EXPECT_EQ(allocator.size_of(take(allocator, 181 * mib)), Bytes(200 * mib));
  EXPECT_EQ(allocator.now().reserved, Bytes(430 * mib));
}

TEST(Allocator, GivesTheCacheBackAtTheCapacityAndTriesAgain) {
  AllocatorRules rules;
  rules.capacity = Bytes(100 * mib);
  CachingAllocator allocator(rules);
  allocator.free(take(allocator, 60 * mib));
  take(allocator, 30 * mib);  // in the hole of the first
  EXPECT_EQ(allocator.now().reserved, Bytes(60 * mib));
  const BlockId second = take(allocator, 40 * mib);
  allocator.free(second);
  EXPECT_EQ(allocator.retries(), 0);
  EXPECT_FALSE(allocator.malloc(Bytes(41 * mib)).has_value());  // the 40 MiB segment goes, and 42 are still too many
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.now().reserved, Bytes(60 * mib));
  EXPECT_EQ(allocator.now().allocated, Bytes(30 * mib));
  take(allocator, 40 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes(100 * mib));
  EXPECT_EQ(allocator.retries(), 1);
}

TEST(Allocator, ARetryThatSucceedsReservesTheRequest) {
  AllocatorRules rules;
  rules.capacity = Bytes(100 * mib);
  CachingAllocator allocator(rules);
  allocator.free(take(allocator, 60 * mib));
  take(allocator, 80 * mib);
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.now().reserved, Bytes(80 * mib));
  EXPECT_EQ(allocator.peak().reserved, Bytes(80 * mib));
}

TEST(Allocator, GivesOversizeBlocksBackBeforeTheWholeCache) {
  AllocatorRules rules;
  rules.capacity = Bytes(300 * mib);
  rules.max_split_size = Bytes(100 * mib);
  CachingAllocator allocator(rules);
  const BlockId small = take(allocator, 40 * mib);
  const BlockId large = take(allocator, 200 * mib);
  allocator.free(small);
  allocator.free(large);
  take(allocator, 120 * mib);  // the 200 MiB block goes, the 40 MiB one stays cached
  EXPECT_EQ(allocator.now().reserved, Bytes(160 * mib));
  EXPECT_EQ(allocator.retries(), 0);
}

TEST(Allocator, CollectsOldSegmentsBeyondTheThreshold) {
  AllocatorRules rules;
  rules.capacity = Bytes(1000 * mib);
  rules.garbage_collection_threshold = 0.1;
  CachingAllocator allocator(rules);
  take(allocator, 2 * mib, 1);
  const BlockId old = take(allocator, 30 * mib);
  const BlockId young = take(allocator, 32 * mib);
  allocator.free(old);
  for (int i = 0; i < 10; ++i) allocator.free(take(allocator, 2 * mib, 1));
  allocator.free(young);
  take(allocator, 40 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes((20 + 30 + 32 + 40) * mib));
  take(allocator, 60 * mib);  // 22 MiB beyond the threshold: the older of the two unused segments goes
  EXPECT_EQ(allocator.now().reserved, Bytes((20 + 32 + 40 + 60) * mib));
  EXPECT_EQ(allocator.retries(), 0);
}

TEST(Allocator, ExpandableSegmentsReuseHolesOfAnySize) {
  AllocatorRules rules;
  rules.expandable_segments = true;
  CachingAllocator allocator(rules);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(allocator, 16 * mib));
  EXPECT_EQ(allocator.now().reserved, Bytes(140 * mib));  // 128 MiB in granules of 20
  for (const BlockId block : blocks) allocator.free(block);
  for (int i = 0; i < 4; ++i) take(allocator, 32 * mib);
  EXPECT_EQ(allocator.now().reserved, Bytes(140 * mib));
  EXPECT_EQ(allocator.now().allocated, Bytes(128 * mib));
}

TEST(Allocator, ExpandableSegmentsSplitAt512Bytes) {
  AllocatorRules rules;
  rules.expandable_segments = true;
  CachingAllocator allocator(rules);
  EXPECT_EQ(allocator.size_of(take(allocator, 501 * mib + 1)), Bytes(501 * mib + 512));
  take(allocator, 100);
  EXPECT_EQ(allocator.now().reserved, Bytes(520 * mib + 2 * mib));  // large and small granules
}

TEST(Allocator, ExpandableSegmentsPreferAHoleToTheTailThatCanGrow) {
  AllocatorRules rules;
  rules.expandable_segments = true;
  CachingAllocator allocator(rules);
  const BlockId hole = take(allocator, 16 * mib);
  take(allocator, 12 * mib);  // 28 of 40 MiB: a tail of 12 MiB
  allocator.free(hole);
  take(allocator, 11 * mib);  // the tail fits better, but counts with what it can grow by
  const auto segments = allocator.snapshot();
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_TRUE(segments[0].blocks.front().in_use);
  EXPECT_EQ(segments[0].blocks.front().size, Bytes(11 * mib));
}

TEST(Allocator, ExpandableSegmentsMoveGranulesUnderPressure) {
  AllocatorRules rules;
  rules.expandable_segments = true;
  rules.capacity = Bytes(100 * mib);
  CachingAllocator allocator(rules);
  const BlockId first = take(allocator, 40 * mib);
  take(allocator, 20 * mib);
  take(allocator, 20 * mib);
  allocator.free(first);
  take(allocator, 50 * mib);  // 40 MiB at the front are unmapped, 60 mapped at the tail
  EXPECT_EQ(allocator.retries(), 1);
  EXPECT_EQ(allocator.now().reserved, Bytes(100 * mib));
  EXPECT_FALSE(allocator.malloc(Bytes(20 * mib)).has_value());
  take(allocator, 10 * mib);  // the rest of the last granule
  EXPECT_EQ(allocator.now().allocated, Bytes(100 * mib));
}

TEST(Allocator, ExpandableSegmentsGiveBackOnlyWholeGranules) {
  AllocatorRules rules;
  rules.expandable_segments = true;
  CachingAllocator allocator(rules);
  const BlockId a = take(allocator, 30 * mib);
  const BlockId b = take(allocator, 60 * mib);
  take(allocator, 10 * mib);
  allocator.free(b);  // from 30 to 90 of 100 MiB: granules 2 and 3 are wholly free
  allocator.empty_cache();
  EXPECT_EQ(allocator.now().reserved, Bytes(60 * mib));
  take(allocator, 10 * mib);  // from 80 to 90: what lies before the gap can grow, so it counts as larger
  EXPECT_EQ(allocator.now().reserved, Bytes(60 * mib));
  allocator.free(a);
  take(allocator, 60 * mib);  // the first 40 MiB grow into the gap by one granule
  EXPECT_EQ(allocator.now().reserved, Bytes(80 * mib));
}

TEST(Allocator, CopiesAreIndependent) {
  CachingAllocator allocator;
  const BlockId block = take(allocator, 16 * mib);
  CachingAllocator copy = allocator;
  copy.free(block);
  EXPECT_EQ(copy.now().allocated, Bytes(0));
  EXPECT_EQ(allocator.now().allocated, Bytes(16 * mib));
}

// What must hold after any event: blocks tile their segments, no two free neighbours are left unmerged, the counters are
// the sums.
void expect_consistent(const CachingAllocator& allocator) {
  Bytes reserved, in_use;
  std::int64_t end_of_previous = 0;
  for (const SegmentSnapshot& segment : allocator.snapshot()) {
    EXPECT_GE(segment.address, end_of_previous);
    end_of_previous = segment.address + segment.size.count;
    reserved += segment.size;
    Bytes sum;
    bool previous_free = false;
    for (const BlockSnapshot& block : segment.blocks) {
      EXPECT_EQ(block.offset, sum);
      sum += block.size;
      if (block.in_use) in_use += block.size;
      EXPECT_FALSE(previous_free && !block.in_use);
      previous_free = !block.in_use;
    }
    EXPECT_EQ(sum, segment.size);
  }
  EXPECT_EQ(reserved, allocator.now().reserved);
  EXPECT_EQ(in_use, allocator.now().active);
}

TEST(Allocator, StaysConsistentOverRandomEvents) {
  AllocatorRules rules;
  rules.capacity = Bytes(2000 * mib);
  CachingAllocator allocator(rules);
  std::mt19937 random(7);
  std::vector<BlockId> live;
  for (int event = 0; event < 4000; ++event) {
    if (live.empty() || random() % 100 < 52) {
      const std::int64_t size = std::int64_t{1} << (random() % 27);
      const auto block =
          allocator.malloc(Bytes(size + static_cast<std::int64_t>(random() % 1000)), static_cast<int>(random() % 3));
      if (block) live.push_back(*block);
    } else {
      std::swap(live[random() % live.size()], live.back());
      allocator.free(live.back());
      live.pop_back();
    }
    if (event % 97 == 0) expect_consistent(allocator);
  }
  for (const BlockId block : live) allocator.free(block);
  EXPECT_EQ(allocator.now().allocated, Bytes(0));
  EXPECT_EQ(allocator.now().requested, Bytes(0));
  allocator.empty_cache();
  EXPECT_EQ(allocator.now().reserved, Bytes(0));
}

}  // namespace
}  // namespace plimsoll
