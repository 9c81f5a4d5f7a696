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

// The smallest entry of the first filled bin from this one on.
FreeBlocks::Position FreeBlocks::first_from(std::size_t bin) const {
  for (std::size_t word = bin / 64; word < filled_.size(); ++word) {
    const std::uint64_t above = word == bin / 64 ? ~std::uint64_t{0} << (bin % 64) : ~std::uint64_t{0};
    const std::uint64_t bits = filled_[word] & above;
    if (bits == 0) continue;
    const std::size_t found = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
    return {found, bins_[found].size() - 1};
  }
  return {bin_count, 0};
}

// How many entries are not less than the key.  Most bins hold a handful, where a scan beats a binary search.
std::size_t FreeBlocks::count_above(const std::vector<Entry>& bin, const Entry& key) {
  constexpr std::size_t short_bin = 16;
  std::size_t count = bin.size();
  if (count > short_bin) {
    const auto falls = [](const Entry& a, const Entry& b) { return b < a; };
    return static_cast<std::size_t>(std::upper_bound(bin.begin(), bin.end(), key, falls) - bin.begin());
  }
  while (count > 0 && bin[count - 1] < key) --count;
  return count;
}

FreeBlocks::Position FreeBlocks::lower_bound(std::int64_t size) const {
  const std::size_t bin = bin_of(size);
  const std::size_t count = count_above(bins_[bin], {size, std::numeric_limits<std::int64_t>::min(), 0});
  return count > 0 ? Position{bin, count - 1} : first_from(bin + 1);
}

const FreeBlocks::Entry& FreeBlocks::largest() const {
  CHECK(!empty(), "there is a free block");
  std::size_t word = filled_.size() - 1;
  while (filled_[word] == 0) --word;
  return bins_[64 * word + static_cast<std::size_t>(std::bit_width(filled_[word])) - 1].front();
}

std::vector<FreeBlocks::Entry> FreeBlocks::entries() const {
  std::vector<Entry> all;
  for (Position position = begin(); !is_end(position); position = next(position)) all.push_back(at(position));
  return all;
}

void FreeBlocks::insert(const Entry& entry) {
  const std::size_t number = bin_of(entry.size);
  std::vector<Entry>& bin = bins_[number];
  const std::size_t place = count_above(bin, entry);
  constexpr std::size_t few = 16;  // moved one by one sooner than in bulk
  if (bin.size() - place > few) {
    bin.insert(bin.begin() + static_cast<std::ptrdiff_t>(place), entry);
  } else {
    bin.push_back(entry);
    for (std::size_t i = bin.size() - 1; i > place; --i) bin[i] = bin[i - 1];
    bin[place] = entry;
  }
  filled_[number / 64] |= std::uint64_t{1} << (number % 64);
}

void FreeBlocks::erase(std::int64_t size, std::int64_t address) {
  const std::size_t bin = bin_of(size);
  const std::size_t count = count_above(bins_[bin], {size, address, 0});
  CHECK(count > 0 && bins_[bin][count - 1].size == size && bins_[bin][count - 1].address == address,
        "a free block is listed");
  erase({bin, count - 1});
}

void FreeBlocks::erase(Position position) {
  std::vector<Entry>& bin = bins_[position.bin];
  bin.erase(bin.begin() + static_cast<std::ptrdiff_t>(position.index));
  if (bin.empty()) filled_[position.bin / 64] &= ~(std::uint64_t{1} << (position.bin % 64));
}

}  // namespace plimsoll
