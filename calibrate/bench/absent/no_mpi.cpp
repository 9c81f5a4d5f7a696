// In place of the MPI collectives in a build without MPI.
#include "calibrate/bench/host/host_collectives.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {

std::unique_ptr<HostCollectives> make_mpi_collectives() {
  throw MachineError("this build has no MPI, so that the host backend measures in one process only");
}

}  // namespace plimsoll::calibrate
