// Ranks as MPI processes: was this process started by mpirun or srun, and how does it reach the others?
#pragma once

#include <chrono>
#include <memory>

#include "runtime/host/transport.hpp"

namespace plimsoll {

/// The connection of this process to its job; null if it was started alone.  Ends the whole job where a peer does not answer
/// within the timeout.
/// @throws MachineError if it was started as one of several, but this build has no MPI
std::unique_ptr<Transport> connect_processes(std::chrono::duration<double> timeout);

/// True if the environment says that this is one of several processes of a job.
bool started_as_process_of_job();

}  // namespace plimsoll
