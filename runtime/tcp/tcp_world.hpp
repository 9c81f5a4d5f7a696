// Ranks as processes that a launcher without MPI started, torchrun or srun: how do they reach each other?  Rank 0 listens where
// the launcher says, the others come to it and learn each other's addresses; then every pair of ranks has a connection.
#pragma once

#include <chrono>
#include <memory>

#include "planner/base/rank_names.hpp"
#include "runtime/host/transport.hpp"

namespace plimsoll {

/// Waits until all ranks have come.
/// @throws MachineError naming those that did not within the timeout
std::unique_ptr<Transport> connect_by_tcp(const RankNames& names, std::chrono::duration<double> timeout);

}  // namespace plimsoll
