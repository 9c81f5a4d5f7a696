// In which rows is a device's memory shown?  From the categories at the peak of a steady step to what nvidia-smi shows.
#pragma once

#include <string>
#include <vector>

#include "planner/account/ledger.hpp"

namespace plimsoll {

struct LedgerRow {
  enum class Kind : std::uint8_t {
    category,
    unused,     ///< in the pool, but no tensor's
    allocated,  ///< a sum: of the categories and what blocks keep beyond them
    outside,    ///< beside the pool
    device      ///< the sum of all
  };
  std::string name;
  std::string number;  ///< as explain_number() knows it; "" where it is no number of its own
  Bytes bytes;
  Kind kind = Kind::category;
};

/// Top to bottom; categories without bytes too.
std::vector<LedgerRow> rows_at_peak(const Ledger& ledger);

}  // namespace plimsoll
