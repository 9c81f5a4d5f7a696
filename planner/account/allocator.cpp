// The part of the replay that works within segments: rounding, best fit, splitting, merging, counting.  The rules are
// stated in allocator.hpp.
#include "planner/account/allocator.hpp"

#include <algorithm>
#include <bit>

#include "planner/base/check.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t smallest_block = 512;
constexpr std::int64_t small_request = mib;

// Rounds up to the next of `divisions` equal parts of the power-of-two interval that holds the size.
std::int64_t round_to_division(std::int64_t size, std::int64_t divisions) {
  const auto value = static_cast<std::uint64_t>(size);
  if (std::has_single_bit(value)) return size;
  const auto floor = static_cast<std::int64_t>(std::bit_floor(value));
  const std::int64_t part = floor >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
  return part == 0 ? 2 * floor : round_up(size, part);
}

}  // namespace

CachingAllocator::CachingAllocator(AllocatorRules rules) : rules_(rules) {
  // Addresses fall from the middle of the range, so that they never run out.
  next_address_ = std::numeric_limits<std::int64_t>::max() / 2 / (20 * mib) * (20 * mib);
  if (rules_.address_gap.count > 0) gaps_.add_rest(next_address_, rules_.address_gap.count);
  rounds_to_divisions_ = std::any_of(rules_.roundup_power2_divisions.begin(), rules_.roundup_power2_divisions.end(),
                                     [](std::int64_t divisions) { return divisions > 1; });
  blocks_.reserve(1024);
}

std::optional<BlockId> CachingAllocator::malloc(Bytes size, int stream) {
  CHECK(size.count >= 0 && stream >= 0, "an allocation has a size and a stream");
  if (size.count == 0) return BlockId::empty;
  const std::int64_t needed = rounded(size.count);
  const std::uint32_t pool = pool_of(needed, stream);
  std::uint32_t id = take_free(pools_[pool], needed);
  if (id == none) id = take_from_driver(pool, needed);
  if (id == none) return std::nullopt;
  if (worth_splitting(blocks_[id], needed, pools_[pool].small)) split(id, needed);

  Block& block = blocks_[id];
  block.state = State::in_use;
  block.requested = size.count;
  now_.allocated.count += block.size;
  now_.active.count += block.size;
  now_.requested += size;
  peak_.allocated = std::max(peak_.allocated, now_.allocated);
  peak_.active = std::max(peak_.active, now_.active);
  peak_.requested = std::max(peak_.requested, now_.requested);
  return BlockId{id};
}

void CachingAllocator::free(BlockId block) {
  if (block == BlockId::empty) return;
  retire(block);
  reclaim(block);
}

void CachingAllocator::retire(BlockId block) {
  if (block == BlockId::empty) return;
  Block& retired = blocks_[static_cast<std::uint32_t>(block)];
  CHECK(retired.state == State::in_use, "only a block in use can be freed");
  retired.state = State::retired;
  now_.allocated.count -= retired.size;
  now_.requested.count -= retired.requested;
}

void CachingAllocator::reclaim(BlockId block) {
  if (block == BlockId::empty) return;
  const auto id = static_cast<std::uint32_t>(block);
  CHECK(blocks_[id].state == State::retired, "only a retired block can be reclaimed");
  now_.active.count -= blocks_[id].size;
  release(id);
}

Bytes CachingAllocator::size_of(BlockId block) const {
  return Bytes(block == BlockId::empty ? 0 : blocks_[static_cast<std::uint32_t>(block)].size);
}

std::int64_t CachingAllocator::rounded(std::int64_t size) const {
  if (size <= smallest_block) return smallest_block;
  if (rounds_to_divisions_) {
    const int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size))) - 1;
    const int interval = std::clamp(log2 - 20, 0, static_cast<int>(rules_.roundup_power2_divisions.size()) - 1);
    const std::int64_t divisions = rules_.roundup_power2_divisions[static_cast<std::size_t>(interval)];
    if (divisions > 1 && size > smallest_block * divisions) return round_to_division(size, divisions);
  }
  return round_up(size, smallest_block);
}

std::uint32_t CachingAllocator::pool_of(std::int64_t rounded_size, int stream) {
  const bool small = rounded_size <= small_request;
  const auto index = static_cast<std::uint32_t>(2 * stream + (small ? 0 : 1));
  while (pools_.size() <= index) {
    Pool pool;
    pool.stream = static_cast<int>(pools_.size() / 2);
    pool.small = pools_.size() % 2 == 0;
    pools_.push_back(std::move(pool));
  }
  return index;
}

// A block and what it can grow by: an unmapped part right behind it.
std::int64_t CachingAllocator::growable(const Block& block) const {
  const bool at_tail = block.next != none && blocks_[block.next].state == State::unmapped;
  return block.size + (at_tail ? blocks_[block.next].size : 0);
}

// Takes the best fitting free block off the pool's list; none if there is none, or if max_split_size forbids it.
std::uint32_t CachingAllocator::take_free(Pool& pool, std::int64_t size) {
  if (!pool.small) ++large_searches_;
  FreeBlocks::Position best = pool.free.lower_bound(size);
  if (pool.free.is_end(best)) return none;
  if (rules_.expandable_segments) {
    const auto can_hold = [&](FreeBlocks::Position position) {
      return growable(blocks_[pool.free.at(position).block]);
    };
    for (auto next = pool.free.next(best); !pool.free.is_end(next) && can_hold(next) < can_hold(best);) {
      best = next;
      next = pool.free.next(best);
    }
  }
  const FreeBlocks::Entry entry = pool.free.at(best);
  const std::int64_t oversize = rules_.max_split_size.count;
  if (size < oversize && entry.size >= oversize) return none;
  if (size >= oversize && entry.size - size >= rules_.max_non_split_rounding.count) return none;
  pool.free.erase(best);
  return entry.block;
}

bool CachingAllocator::worth_splitting(const Block& block, std::int64_t size, bool small) const {
  const std::int64_t remainder = block.size - size;
  if (small || rules_.expandable_segments) return remainder >= smallest_block;
  return size < rules_.max_split_size.count && remainder > small_request;
}

// The block keeps its lower `size` bytes; the rest becomes a free block.
void CachingAllocator::split(std::uint32_t id, std::int64_t size) {
  const std::uint32_t rest =
      new_block(blocks_[id].address + size, blocks_[id].size - size, blocks_[id].pool, State::free);
  Block& block = blocks_[id];
  blocks_[rest].previous = id;
  blocks_[rest].next = block.next;
  if (block.next != none) blocks_[block.next].previous = rest;
  block.next = rest;
  block.size = size;
  list_as_free(rest);
}

void CachingAllocator::release(std::uint32_t id) {
  blocks_[id].state = State::free;
  blocks_[id].requested = 0;
  list_as_free(merge_with_neighbours(id));
}

// Merges a free block that is not listed with its free neighbours, which are; the result is not listed.
std::uint32_t CachingAllocator::merge_with_neighbours(std::uint32_t id) {
  const std::uint32_t next = blocks_[id].next;
  if (next != none && blocks_[next].state == State::free) {
    unlist(next);
    absorb(id, next);
  }
  const std::uint32_t previous = blocks_[id].previous;
  if (previous != none && blocks_[previous].state == State::free) {
    unlist(previous);
    absorb(previous, id);
    return previous;
  }
  return id;
}

void CachingAllocator::list_as_free(std::uint32_t id) {
  Block& block = blocks_[id];
  block.searches = large_searches_;
  pools_[block.pool].free.insert({block.size, block.address, id});
}

void CachingAllocator::unlist(std::uint32_t id) {
  pools_[blocks_[id].pool].free.erase(blocks_[id].size, blocks_[id].address);
}

// Joins the block `next` to its lower neighbour `id`; its id is free to be used again.
void CachingAllocator::absorb(std::uint32_t id, std::uint32_t next) {
  Block& lower = blocks_[id];
  const Block& upper = blocks_[next];
  lower.size += upper.size;
  lower.next = upper.next;
  if (upper.next != none) blocks_[upper.next].previous = id;
  blocks_[next] = Block{};
  unused_.push_back(next);
}

std::uint32_t CachingAllocator::new_block(std::int64_t address, std::int64_t size, std::uint32_t pool, State state) {
  Block block;
  block.address = address;
  block.size = size;
  block.pool = pool;
  block.state = state;
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<std::uint32_t>(blocks_.size() - 1);
  }
  const std::uint32_t id = unused_.back();
  unused_.pop_back();
  blocks_[id] = block;
  return id;
}

std::int64_t CachingAllocator::address_of(BlockId block) const {
  return block == BlockId::empty ? 0 : blocks_[static_cast<std::uint32_t>(block)].address;
}

void CachingAllocator::place_blocks(std::vector<Placed>& blocks, std::int64_t& next_address) const {
  std::vector<std::pair<std::int64_t, std::uint32_t>> segments;
  for (std::uint32_t id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (block.state != State::unused && block.previous == none) segments.emplace_back(block.address, id);
  }
  std::sort(segments.begin(), segments.end());
  blocks.reserve(blocks_.size() - unused_.size());
  for (const auto& [address, first] : segments) {
    for (std::uint32_t id = first; id != none; id = blocks_[id].next) {
      const Block& block = blocks_[id];
      const bool held = block.state == State::in_use || block.state == State::retired;
      blocks.push_back({block.address, block.size, block.pool, block.state, held ? BlockId{id} : BlockId::empty});
    }
  }
  for (const auto& [address, size] : gaps_.by_address())
    blocks.push_back({address, size, 0, State::unused, BlockId::empty});
  next_address = next_address_;
}

std::vector<SegmentSnapshot> CachingAllocator::snapshot() const {
  std::vector<SegmentSnapshot> segments;
  for (const Block& first : blocks_) {
    if (first.state == State::unused || first.previous != none) continue;
    SegmentSnapshot segment;
    segment.address = first.address;
    segment.stream = pools_[first.pool].stream;
    segment.small = pools_[first.pool].small;
    for (const Block* block = &first;; block = &blocks_[block->next]) {
      if (block->state != State::unmapped) {
        segment.blocks.push_back({Bytes(block->address - first.address), Bytes(block->size), Bytes(block->requested),
                                  block->state != State::free});
        segment.size.count += block->size;
      }
      if (block->next == none) break;
    }
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentSnapshot& a, const SegmentSnapshot& b) { return a.address < b.address; });
  return segments;
}

}  // namespace plimsoll
