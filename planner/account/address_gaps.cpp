// Gaps between the driver's segments (planner/account/address_gaps.hpp).  Rooms are multiples of 2 MiB below the size of a
// range but for what whole segments leave behind, so that there are few different ones.
#include "planner/account/address_gaps.hpp"

#include <iterator>

namespace plimsoll {

std::optional<std::int64_t> AddressGaps::take(std::int64_t size) {
  std::optional<std::int64_t> lowest;
  for (auto room = by_room_.lower_bound(size); room != by_room_.end(); ++room) {
    const std::int64_t address = *room->second.begin();
    if (!lowest || address < *lowest) lowest = address;
  }
  if (!lowest) return std::nullopt;
  const auto gap = gaps_.find(*lowest);
  const std::int64_t room = gap->second;
  unlist(gap);
  if (room > size) add_rest(*lowest + size, room - size);
  return lowest;
}

void AddressGaps::add(std::int64_t address, std::int64_t size) {
  const auto next = gaps_.lower_bound(address);
  if (next != gaps_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      address = previous->first;
      size += previous->second;
      unlist(previous);
    }
  }
  if (next != gaps_.end() && next->first == address + size) {
    size += next->second;
    unlist(next);
  }
  add_rest(address, size);
}

void AddressGaps::add_rest(std::int64_t address, std::int64_t size) {
  gaps_.emplace(address, size);
  by_room_[size].insert(address);
}

void AddressGaps::unlist(ByAddress::iterator gap) {
  const auto room = by_room_.find(gap->second);
  room->second.erase(gap->first);
  if (room->second.empty()) by_room_.erase(room);
  gaps_.erase(gap);
}

}  // namespace plimsoll
