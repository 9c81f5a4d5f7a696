// The message of a step whose routing exceeds the plan's bound (runtime/core/row_bound.hpp).
#include "runtime/core/row_bound.hpp"

#include <fmt/format.h>

#include <cmath>

#include "planner/base/machine_error.hpp"

namespace plimsoll {

void check_row_bound(const ArrivingRows& rows, std::string_view buffer) {
  if (rows.arrive <= rows.room) return;
  const double mean = static_cast<double>(rows.leave);
  const double needed = std::ceil(static_cast<double>(rows.arrive) / mean * 100) / 100;
  throw MachineError(fmt::format(
      "{} rows arrive for this rank's experts, but its buffer \"{}\" has room for {} ({:.2f} x the mean of "
      "{}): the routing is more uneven than the plan states.  moe.capacity_factor={:.2f} holds this step, "
      "{} any routing; moe.drop_tokens=true drops what is beyond the capacity",
      rows.arrive, buffer, rows.room, static_cast<double>(rows.room) / mean, rows.leave, needed, rows.ranks));
}

}  // namespace plimsoll
