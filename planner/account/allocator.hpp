// What does PyTorch's CUDA caching allocator make of a list of allocations and frees?  A replay of its rules, event by
// event: which block serves a request, what is split, merged, kept and given back, and so what the counters `allocated` and
// `reserved` read.
//
// Rules (PyTorch 2.11, c10/cuda/CUDACachingAllocator.cpp, in own words):
//   round      r = the request rounded up to 512 bytes, at least 512; or up to one of d equal parts of its power-of-two
//              interval where roundup_power2_divisions is set
//   pool       small if r <= 1 MiB, else large; one of each per stream; nothing crosses
//   best fit   the smallest free block of at least r, the lowest address among equals
//   segment    else a new one from the driver: 2 MiB (small), 20 MiB (r < 10 MiB), else r rounded up to 2 MiB
//   split      if at least 512 bytes (small, expandable) or more than 1 MiB (large) are left over; otherwise the block keeps
//              them, and they count as allocated
//   free       merges with free neighbours of the same segment; the segment stays reserved
//   pressure   beyond the capacity: whole free segments go back to the driver, then the request is tried once more
// Expandable segments: one address range per stream and pool, mapped at its tail in granules of 2 MiB (small) or 20 MiB
// (large), split at 512 bytes; in best fit a block that can grow counts with what it can grow by.
//
// The driver puts a segment at the lowest address where a gap holds it, else into a new range of a multiple of 32 MiB right
// below all earlier ones (read off the addresses of 14 runs on H200: so 900 of 1000 segments; the rest stand beside
// allocations of other libraries, which are not known, as how much the driver's own bookkeeping takes is not).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/account/address_gaps.hpp"
#include "planner/account/allocator_rules.hpp"
#include "planner/account/free_blocks.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

/// A block in use.  Ids of freed blocks are used again.
enum class BlockId : std::uint32_t { empty = 0xffffffff };

struct AllocatorCounters {
  Bytes allocated;  ///< blocks in use, as torch.cuda.memory_allocated reads
  Bytes requested;  ///< what was asked for in them
  Bytes active;     ///< allocated, and blocks that wait for another stream
  Bytes reserved;   ///< segments (expandable: mapped granules)
};

struct BlockSnapshot {
  Bytes offset;  ///< from the start of the segment
  Bytes size;
  Bytes requested;  ///< 0 unless in use
  bool in_use = false;
};

struct SegmentSnapshot {
  std::int64_t address = 0;
  Bytes size;
  int stream = 0;
  bool small = false;
  std::vector<BlockSnapshot> blocks;  ///< by address; unmapped parts of a range are left out
};

/// The allocator of one device.  Copies are independent, so that a replay can branch.
class CachingAllocator {
 public:
  explicit CachingAllocator(AllocatorRules rules = {});

  /// A block for `size` >= 0 bytes; BlockId::empty for 0 bytes; nothing if out of memory, which needs a capacity.
  /// @param stream 0, 1, 2, ...: few and dense
  std::optional<BlockId> malloc(Bytes size, int stream = 0);
  void free(BlockId block);

  /// free() of a block that another stream still uses: `allocated` falls at once, the memory is reusable after reclaim().
  void retire(BlockId block);
  void reclaim(BlockId block);

  /// Gives whole free segments back to the driver (expandable: free granules).
  void empty_cache();

  Bytes size_of(BlockId block) const;  ///< counted as allocated; 0 for BlockId::empty

  const AllocatorCounters& now() const { return now_; }
  /// Highest value of each since the start or reset_peak().
  const AllocatorCounters& peak() const { return peak_; }
  void reset_peak() { peak_ = now_; }
  std::int64_t retries() const { return retries_; }  ///< requests tried again after the cache was given back
  std::int64_t device_allocations() const { return device_allocations_; }  ///< segments taken, granule runs mapped

  std::vector<SegmentSnapshot> snapshot() const;

  enum class State : std::uint8_t { unused, free, in_use, retired, unmapped };
  /// Where a block lies.
  struct Placed {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::uint32_t pool = 0;
    State state = State::unused;
    BlockId block = BlockId::empty;  ///< of those in use and retired
    bool operator==(const Placed&) const = default;
  };
  /// All blocks in the order of their segments' addresses, and where the driver goes on.  Two allocators of the same rules
  /// that agree in these serve all requests to come alike, unless garbage is collected.
  void place_blocks(std::vector<Placed>& blocks, std::int64_t& next_address) const;
  std::int64_t address_of(BlockId block) const;  ///< 0 for BlockId::empty

 private:
  static constexpr std::uint32_t none = 0xffffffff;
  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::int64_t searches = 0;      ///< large_searches_ when it became free: its age counts from there
    std::uint32_t previous = none;  ///< neighbours in the segment
    std::uint32_t next = none;
    std::uint32_t pool = 0;
    State state = State::unused;
  };
  struct Pool {
    FreeBlocks free;
    std::vector<std::uint32_t> unmapped;  ///< by address
    int stream = 0;
    bool small = false;
  };

  // allocator.cpp
  std::int64_t rounded(std::int64_t size) const;
  std::uint32_t pool_of(std::int64_t rounded_size, int stream);
  std::uint32_t take_free(Pool& pool, std::int64_t size);
  bool worth_splitting(const Block& block, std::int64_t size, bool small) const;
  void split(std::uint32_t id, std::int64_t size);
  void release(std::uint32_t id);
  std::uint32_t merge_with_neighbours(std::uint32_t id);
  void list_as_free(std::uint32_t id);
  void unlist(std::uint32_t id);
  std::uint32_t new_block(std::int64_t address, std::int64_t size, std::uint32_t pool, State state);
  void absorb(std::uint32_t id, std::uint32_t next);
  std::int64_t growable(const Block& block) const;

  // allocator_segments.cpp
  std::uint32_t take_from_driver(std::uint32_t pool, std::int64_t size);
  std::uint32_t new_segment(std::uint32_t pool, std::int64_t size, bool retry);
  std::int64_t address_for(std::int64_t size);
  bool within_capacity(std::int64_t size) const;
  void give_back(std::uint32_t id);
  bool give_back_oversize(std::uint32_t pool, std::int64_t size);
  void give_back_all();
  void collect_garbage();
  std::uint32_t expand(std::uint32_t pool, std::int64_t size);
  std::uint32_t growable_place(std::uint32_t pool, std::int64_t size);
  std::uint32_t map(std::uint32_t id, std::int64_t size);
  void unmap(std::uint32_t id);
  std::int64_t granule(const Pool& pool) const;

  AllocatorRules rules_;
  bool rounds_to_divisions_ = false;
  AllocatorCounters now_;
  AllocatorCounters peak_;
  std::int64_t retries_ = 0;
  std::int64_t device_allocations_ = 0;
  std::int64_t large_searches_ = 0;
  std::int64_t next_address_ = 0;  ///< the lower end of the lowest range so far
  AddressGaps gaps_;               ///< free parts of ranges
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> unused_;
  std::vector<Pool> pools_;  ///< 2 * stream: small, 2 * stream + 1: large
};

}  // namespace plimsoll
