// Do the rows that the routers of a group send to this rank's experts fit into the buffers that the plan gave them?
//
// Dropless routing fixes no number.  The arena has room for B = capacity_factor x N k rows, N k being what each rank sends and,
// in the mean, receives (planner/step/layers/routing.cpp).  Rows beyond B are neither dropped nor spilled: the step ends before
// they travel, on every rank, with what would have held them.  No routing needs more than ep x N k.
#pragma once

#include <cstdint>
#include <string_view>

namespace plimsoll {

/// One exchange of rows, seen from one rank.
struct ArrivingRows {
  std::int64_t arrive = 0, room = 0;  ///< rows
  std::int64_t leave = 0;             ///< rows that this rank sends: N k on the way to the experts
  std::int64_t ranks = 1;             ///< ep
};

/// @throws MachineError if more rows arrive than the buffer has room for; names it and, unless this rank sends none, the factor that holds them
void check_row_bound(const ArrivingRows& rows, std::string_view buffer);

}  // namespace plimsoll
