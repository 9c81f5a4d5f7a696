// A build without MPI (runtime/mpi/mpi_world.hpp).
#include "planner/base/machine_error.hpp"
#include "runtime/mpi/mpi_world.hpp"

namespace plimsoll {

std::unique_ptr<Transport> connect_processes(std::chrono::duration<double>) {
  if (!started_as_process_of_job()) return nullptr;
  throw MachineError("this build has no MPI: start plimsoll-run alone, and its ranks are threads of it");
}

}  // namespace plimsoll
