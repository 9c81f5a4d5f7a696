// The bins of free_blocks.hpp: which bin a size belongs to, and the order within it.
#include "planner/account/free_blocks.hpp"

#include <algorithm>
#include <limits>

#include "planner/base/check.hpp"

namespace plimsoll {

// In units of 512 bytes: below 8 a bin each, then the three bits below the leading one tell the bin of an octave.
std::size_t FreeBlocks::bin_of(std::int64_t size) {
  const auto units = static_cast<std::uint64_t>(size) >> 9;
  if (units < (1u << bits_per_octave)) return units;
  const auto octave = static_cast<std::size_t>(std::bit_width(units)) - 1 - bits_per_octave;
  return ((octave + 1) << bits_per_octave) + ((units >> octave) & ((1u << bits_per_octave) - 1));
}

std::size_t FreeBlocks::next_filled(std::size_t from) const {
  for (std::size_t word = from / 64; word < filled_.size(); ++word) {
    const std::uint64_t above = word == from / 64 ? ~std::uint64_t{0} << (from % 64) : ~std::uint64_t{0};
    const std::uint64_t bits = filled_[word] & above;
    if (bits != 0) return 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
  }
  return bin_count;
}

// The first entry that is not less than the key.  Most bins hold a handful, where a scan beats a binary search.
std::size_t FreeBlocks::index_in(const std::vector<Entry>& bin, const Entry& key) {
  constexpr std::size_t short_bin = 16;
  if (bin.size() > short_bin) {
    return static_cast<std::size_t>(std::lower_bound(bin.begin(), bin.end(), key) - bin.begin());
  }
  std::size_t index = 0;
  while (index < bin.size() && bin[index] < key) ++index;
  return index;
}

FreeBlocks::Position FreeBlocks::lower_bound(std::int64_t size) const {
  const std::size_t bin = bin_of(size);
  const std::size_t index = index_in(bins_[bin], {size, std::numeric_limits<std::int64_t>::min(), 0});
  return index < bins_[bin].size() ? Position{bin, index} : Position{next_filled(bin + 1), 0};
}

const FreeBlocks::Entry& FreeBlocks::largest() const {
  CHECK(!empty(), "there is a free block");
  std::size_t word = filled_.size() - 1;
  while (filled_[word] == 0) --word;
  return bins_[64 * word + static_cast<std::size_t>(std::bit_width(filled_[word])) - 1].back();
}

std::vector<FreeBlocks::Entry> FreeBlocks::entries() const {
  std::vector<Entry> all;
  for (Position position = begin(); !is_end(position); position = next(position)) all.push_back(at(position));
  return all;
}

void FreeBlocks::insert(const Entry& entry) {
  const std::size_t number = bin_of(entry.size);
  std::vector<Entry>& bin = bins_[number];
  bin.insert(bin.begin() + static_cast<std::ptrdiff_t>(index_in(bin, entry)), entry);
  filled_[number / 64] |= std::uint64_t{1} << (number % 64);
}

void FreeBlocks::erase(std::int64_t size, std::int64_t address) {
  const std::size_t bin = bin_of(size);
  const std::size_t index = index_in(bins_[bin], {size, address, 0});
  CHECK(index < bins_[bin].size() && bins_[bin][index].size == size && bins_[bin][index].address == address,
        "a free block is listed");
  erase({bin, index});
}

void FreeBlocks::erase(Position position) {
  std::vector<Entry>& bin = bins_[position.bin];
  bin.erase(bin.begin() + static_cast<std::ptrdiff_t>(position.index));
  if (bin.empty()) filled_[position.bin / 64] &= ~(std::uint64_t{1} << (position.bin % 64));
}

}  // namespace plimsoll
