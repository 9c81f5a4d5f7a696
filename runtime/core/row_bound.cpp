// The message of a step whose routing exceeds the plan's bound (runtime/core/row_bound.hpp).
#include "runtime/core/row_bound.hpp"

#include <fmt/format.h>

#include <cmath>

#include "planner/base/machine_error.hpp"

namespace plimsoll {

void check_row_bound(const ArrivingRows& rows, std::string_view buffer) {
  if (rows.arrive <= rows.room) return;
  const std::string told = fmt::format("{} rows arrive for this rank's experts, but its buffer \"{}\" has room for {}",
                                       rows.arrive, buffer, rows.room);
  constexpr std::string_view uneven = "the routing is more uneven than the plan states";
  constexpr std::string_view otherwise = "moe.drop_tokens=true drops what is beyond the capacity";
  // A rank that sends nothing knows no mean, so no factor.
  if (rows.leave <= 0)
    throw MachineError(
        fmt::format("{}: {}.  moe.capacity_factor={} holds any routing; {}", told, uneven, rows.ranks, otherwise));
  const auto mean = static_cast<double>(rows.leave);
  const double needed = std::ceil(static_cast<double>(rows.arrive) / mean * 100) / 100;
  throw MachineError(
      fmt::format("{} ({:.2f} x the mean of {}): {}.  moe.capacity_factor={:.2f} holds this step, {} any routing; {}",
                  told, static_cast<double>(rows.room) / mean, rows.leave, uneven, needed, rows.ranks, otherwise));
}

}  // namespace plimsoll
