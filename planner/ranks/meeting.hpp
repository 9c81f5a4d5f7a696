// How do the processes of a job find each other without MPI?  Rank 0 listens where the launcher says; the others come to it and
// say who they are.  That is a star; for messages between all pairs each rank also learns where the others listen, and connects.
#pragma once

#include <vector>

#include "planner/base/rank_names.hpp"
#include "planner/ranks/socket.hpp"

namespace plimsoll {

/// Waits until all ranks have come to rank 0.
/// @return by rank; on rank 0 a socket to each other, on the others one to rank 0
/// @throws MachineError naming those that did not come within the timeout
std::vector<Socket> connect_to_first(const RankNames& names, Timeout timeout);

/// The same, and a connection between every two ranks.
/// @return by rank; none to itself
std::vector<Socket> connect_all(const RankNames& names, Timeout timeout);

}  // namespace plimsoll
