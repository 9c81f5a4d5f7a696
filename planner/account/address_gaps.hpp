// Which addresses of the driver's ranges are free?  The gaps in the order of their addresses, and by their room, so that the
// lowest one that holds a size is found without looking at those that are too small: a model of many thousand parameters
// leaves as many.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace plimsoll {

class AddressGaps {
 public:
  using ByAddress = std::map<std::int64_t, std::int64_t>;

  /// Takes `size` bytes from the lower end of the lowest gap that holds them; nothing if none does.
  std::optional<std::int64_t> take(std::int64_t size);
  /// The rest of a new range: a gap of its own, whatever is beside it.
  void add_rest(std::int64_t address, std::int64_t size);
  /// Addresses that are free again; they join the gaps beside them.
  void add(std::int64_t address, std::int64_t size);
  const ByAddress& by_address() const { return gaps_; }

 private:
  void unlist(ByAddress::iterator gap);

  ByAddress gaps_;                                          ///< address and room
  std::map<std::int64_t, std::set<std::int64_t>> by_room_;  ///< room and addresses; no set is empty
};

}  // namespace plimsoll
