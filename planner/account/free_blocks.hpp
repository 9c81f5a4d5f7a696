// Which free block fits best?  The free blocks of one pool in the order (size, address), for best fit with the lowest
// address among equals.
//
// A replay spends most of its time here, so nothing is a tree: blocks stand in bins by size, eight bins to each power of
// two, each an array with the best fit at its end, where most come and go; a bit per bin tells which are filled.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll {

class FreeBlocks {
 public:
  struct Entry {
    std::int64_t size = 0;  ///< a multiple of 512
    std::int64_t address = 0;
    std::uint32_t block = 0;
    bool operator<(const Entry& other) const {
      return size != other.size ? size < other.size : address < other.address;
    }
  };
  /// Valid until the next insertion or erasure.
  struct Position {
    std::size_t bin = 0;
    std::size_t index = 0;
  };

  bool empty() const { return is_end(begin()); }
  Position begin() const { return first_from(0); }
  bool is_end(Position position) const { return position.bin == bin_count; }
  const Entry& at(Position position) const { return bins_[position.bin][position.index]; }
  Position next(Position position) const {
    return position.index > 0 ? Position{position.bin, position.index - 1} : first_from(position.bin + 1);
  }
  /// The smallest block of at least `size` bytes, the lowest address among equals; is_end() if there is none.
  Position lower_bound(std::int64_t size) const;
  /// The largest block; there is one.
  const Entry& largest() const;
  /// All entries in order.
  std::vector<Entry> entries() const;

  void insert(const Entry& entry);
  /// Erases the block of that size and address, which is present.
  void erase(std::int64_t size, std::int64_t address);
  void erase(Position position);

 private:
  static constexpr int bits_per_octave = 3;
  static constexpr std::size_t bin_count = 448;  ///< seven words; the last bin in use is 423, for sizes below 2^63

  static std::size_t bin_of(std::int64_t size);
  Position first_from(std::size_t bin) const;
  static std::size_t count_above(const std::vector<Entry>& bin, const Entry& key);

  // Within a bin the order falls, so that the smallest block, the lowest among equals, is the last.
  std::vector<std::vector<Entry>> bins_ = std::vector<std::vector<Entry>>(bin_count);
  std::array<std::uint64_t, bin_count / 64> filled_{};
};

}  // namespace plimsoll
