// The part of the replay that deals with the driver: segments taken and given back, what happens at the capacity, garbage
// collection, and the mapping of expandable segments.  The rules are stated in allocator.hpp.
#include <algorithm>

#include "planner/account/allocator.hpp"
#include "planner/base/check.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t small_segment = 2 * mib;
constexpr std::int64_t large_segment = 20 * mib;
constexpr std::int64_t smallest_own_segment = 10 * mib;
constexpr std::int64_t segment_granularity = 2 * mib;
constexpr std::int64_t address_range = 32 * mib;

}  // namespace

bool CachingAllocator::within_capacity(std::int64_t size) const {
  return !rules_.capacity || now_.reserved.count + size <= rules_.capacity->count;
}

// The lowest gap that holds it, else a new range below all others, whose rest becomes a gap.
std::int64_t CachingAllocator::address_for(std::int64_t size) {
  if (const auto address = gaps_.take(size)) return *address;
  const std::int64_t range = round_up(size, address_range);
  next_address_ -= range;
  if (range > size) gaps_.add_rest(next_address_ + size, range - size);
  return next_address_;
}

// A block of at least `size` bytes from the driver, not listed as free; under pressure the cache is given back first.
std::uint32_t CachingAllocator::take_from_driver(std::uint32_t pool, std::int64_t size) {
  if (rules_.capacity && rules_.garbage_collection_threshold > 0) collect_garbage();
  std::uint32_t id = new_segment(pool, size, false);
  if (id == none && give_back_oversize(pool, size)) id = new_segment(pool, size, false);
  if (id == none) {
    give_back_all();
    id = new_segment(pool, size, true);
  }
  return id;
}

std::uint32_t CachingAllocator::new_segment(std::uint32_t pool, std::int64_t size, bool retry) {
  if (retry) ++retries_;
  if (rules_.expandable_segments) return expand(pool, size);
  const std::int64_t segment = pools_[pool].small            ? small_segment
                               : size < smallest_own_segment ? large_segment
                                                             : round_up(size, segment_granularity);
  if (!within_capacity(segment)) return none;
  now_.reserved.count += segment;
  peak_.reserved = std::max(peak_.reserved, now_.reserved);
  ++device_allocations_;
  return new_block(address_for(segment), segment, pool, State::free);
}

// Returns a wholly free, listed segment to the driver.
void CachingAllocator::give_back(std::uint32_t id) {
  unlist(id);
  now_.reserved.count -= blocks_[id].size;
  gaps_.add(blocks_[id].address, blocks_[id].size);
  blocks_[id] = Block{};
  unused_.push_back(id);
}

// Blocks beyond max_split_size serve no other request, so they go first: the smallest one that is large enough, else the
// largest ones until their sum is.  False if that does not reach `size`.
bool CachingAllocator::give_back_oversize(std::uint32_t pool, std::int64_t size) {
  const std::int64_t oversize = rules_.max_split_size.count;
  if (oversize == std::numeric_limits<std::int64_t>::max() || rules_.expandable_segments) return false;
  FreeBlocks& free = pools_[pool].free;
  const std::int64_t wanted = std::max(size, oversize);
  const FreeBlocks::Position fitting = free.lower_bound(wanted);
  if (!free.is_end(fitting)) {
    give_back(free.at(fitting).block);
    return true;
  }
  std::int64_t given = 0;
  while (given < wanted && !free.empty()) {
    const FreeBlocks::Entry largest = free.largest();
    if (largest.size < oversize) break;
    given += largest.size;
    give_back(largest.block);
  }
  return given >= wanted;
}

void CachingAllocator::give_back_all() {
  for (Pool& pool : pools_) {
    for (const FreeBlocks::Entry& entry : pool.free.entries()) {
      const Block& block = blocks_[entry.block];
      if (rules_.expandable_segments) {
        unmap(entry.block);
      } else if (block.previous == none && block.next == none) {
        give_back(entry.block);
      }
    }
  }
}

void CachingAllocator::empty_cache() { give_back_all(); }

// Once more than the threshold is reserved: gives back whole free large segments that have been unused for at least the
// average time (counted in searches of the large pools), again and again until the excess is gone.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(rules_.garbage_collection_threshold * static_cast<double>(rules_.capacity->count));
  const std::int64_t excess = now_.reserved.count - threshold;
  if (excess <= 0 || rules_.expandable_segments) return;
  std::vector<std::uint32_t> whole;
  std::int64_t total_age = 0;
  for (const Pool& pool : pools_) {
    if (pool.small) continue;
    for (const FreeBlocks::Entry& entry : pool.free.entries()) {
      const Block& block = blocks_[entry.block];
      if (block.previous != none || block.next != none) continue;
      whole.push_back(entry.block);
      total_age += large_searches_ - block.searches;
    }
  }
  std::int64_t given = 0;
  bool progress = true;
  while (given < excess && progress && !whole.empty()) {
    const double average = static_cast<double>(total_age) / static_cast<double>(whole.size());
    std::vector<std::uint32_t> younger;
    progress = false;
    for (const std::uint32_t id : whole) {
      const std::int64_t age = large_searches_ - blocks_[id].searches;
      if (static_cast<double>(age) < average) {
        younger.push_back(id);
        continue;
      }
      progress = true;
      total_age -= age;
      given += blocks_[id].size;
      give_back(id);
    }
    whole = std::move(younger);
  }
}

std::int64_t CachingAllocator::granule(const Pool& pool) const { return pool.small ? small_segment : large_segment; }

// Maps what a request still lacks at the lowest place that can hold it; the block is not listed as free.
std::uint32_t CachingAllocator::expand(std::uint32_t pool, std::int64_t size) {
  std::uint32_t id = growable_place(pool, size);
  if (blocks_[id].state == State::unmapped) {
    id = map(id, std::min(blocks_[id].size, size));
    if (id == none) return none;
  }
  while (blocks_[id].size < size) {
    const std::uint32_t tail = blocks_[id].next;
    id = map(tail, std::min(size - blocks_[id].size, blocks_[tail].size));
    if (id == none) return none;
  }
  unlist(id);
  return id;
}

// The lowest unmapped part, with a free block right before it, from which on `size` bytes in a row are free or unmapped; a
// new address range if there is none.
std::uint32_t CachingAllocator::growable_place(std::uint32_t pool, std::int64_t size) {
  const auto available = [&](std::uint32_t id) {
    return id != none && (blocks_[id].state == State::free || blocks_[id].state == State::unmapped);
  };
  for (std::uint32_t id : pools_[pool].unmapped) {
    if (available(blocks_[id].previous)) id = blocks_[id].previous;
    std::int64_t in_a_row = 0;
    for (std::uint32_t at = id; in_a_row < size && available(at); at = blocks_[at].next) in_a_row += blocks_[at].size;
    if (in_a_row >= size) return id;
  }
  // PyTorch reserves addresses for 9/8 of the device's memory, so that parts can be mapped again at the end.
  constexpr std::int64_t unbounded = std::int64_t{1} << 46;
  const std::int64_t memory = rules_.capacity ? rules_.capacity->count : unbounded;
  const std::int64_t range = round_up(std::max(memory + memory / 8, size), large_segment);
  next_address_ -= range;  // whole granules, as all addresses of a pool of expandable segments
  const std::uint32_t id = new_block(next_address_, range, pool, State::unmapped);
  pools_[pool].unmapped.push_back(id);
  return id;
}

// Maps the first `size` bytes of an unmapped block, rounded up to granules, and merges them with free neighbours; the result
// is listed as free.  None, and nothing changed, if the capacity forbids it.
std::uint32_t CachingAllocator::map(std::uint32_t id, std::int64_t size) {
  const std::uint32_t pool = blocks_[id].pool;
  const std::int64_t mapped = round_up(size, granule(pools_[pool]));
  if (!within_capacity(mapped)) return none;
  std::vector<std::uint32_t>& unmapped = pools_[pool].unmapped;
  const auto listed = std::find(unmapped.begin(), unmapped.end(), id);
  CHECK(listed != unmapped.end() && mapped <= blocks_[id].size,
        "an unmapped block is listed, and made of whole granules");
  if (mapped < blocks_[id].size) {
    const std::uint32_t rest =
        new_block(blocks_[id].address + mapped, blocks_[id].size - mapped, pool, State::unmapped);
    blocks_[rest].previous = id;
    blocks_[rest].next = blocks_[id].next;
    if (blocks_[rest].next != none) blocks_[blocks_[rest].next].previous = rest;
    blocks_[id].next = rest;
    blocks_[id].size = mapped;
    *listed = rest;
  } else {
    unmapped.erase(listed);
  }
  now_.reserved.count += mapped;
  peak_.reserved = std::max(peak_.reserved, now_.reserved);
  ++device_allocations_;
  blocks_[id].state = State::free;
  const std::uint32_t merged = merge_with_neighbours(id);
  list_as_free(merged);
  return merged;
}

// Gives the granules that lie wholly in a free, listed block back to the driver; what lies before and behind them stays
// free.
void CachingAllocator::unmap(std::uint32_t id) {
  const std::uint32_t pool = blocks_[id].pool;
  const std::int64_t size = granule(pools_[pool]);
  const std::int64_t begin = round_up(blocks_[id].address, size);
  const std::int64_t end = (blocks_[id].address + blocks_[id].size) / size * size;
  if (begin >= end) return;
  unlist(id);
  if (end < blocks_[id].address + blocks_[id].size) split(id, end - blocks_[id].address);
  std::uint32_t middle = id;
  if (begin > blocks_[id].address) {
    split(id, begin - blocks_[id].address);
    middle = blocks_[id].next;
    unlist(middle);
    list_as_free(id);
  }
  blocks_[middle].state = State::unmapped;
  now_.reserved.count -= end - begin;

  std::vector<std::uint32_t>& unmapped = pools_[pool].unmapped;
  const auto forget = [&](std::uint32_t block) { unmapped.erase(std::find(unmapped.begin(), unmapped.end(), block)); };
  const std::uint32_t next = blocks_[middle].next;
  if (next != none && blocks_[next].state == State::unmapped) {
    forget(next);
    absorb(middle, next);
  }
  const std::uint32_t previous = blocks_[middle].previous;
  if (previous != none && blocks_[previous].state == State::unmapped) {
    forget(previous);
    absorb(previous, middle);
    middle = previous;
  }
  const auto place = std::lower_bound(unmapped.begin(), unmapped.end(), middle, [&](std::uint32_t a, std::uint32_t b) {
    return blocks_[a].address < blocks_[b].address;
  });
  unmapped.insert(place, middle);
}

}  // namespace plimsoll
