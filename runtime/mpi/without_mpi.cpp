// A build without MPI (runtime/mpi/mpi_world.hpp): what mpirun starts keeps together over TCP.
#include "planner/base/check.hpp"
#include "runtime/mpi/mpi_world.hpp"

namespace plimsoll {

bool started_by_mpi() { return false; }

std::unique_ptr<Transport> connect_by_mpi(std::chrono::duration<double>) {
  CHECK(false, "no process of this build is started by MPI");
}

}  // namespace plimsoll
