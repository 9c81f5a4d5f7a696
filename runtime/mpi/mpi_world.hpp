// Ranks as MPI processes: was this process started by mpirun or by srun with PMIx, and how does it reach the others?
#pragma once

#include <chrono>
#include <memory>

#include "runtime/host/transport.hpp"

namespace plimsoll {

/// True if the environment says that this is one of several processes of an MPI job, and this build can join it.
bool started_by_mpi();

/// The connection of this process to its job.  Ends the whole job where a peer does not answer within the timeout.
std::unique_ptr<Transport> connect_by_mpi(std::chrono::duration<double> timeout);

}  // namespace plimsoll
