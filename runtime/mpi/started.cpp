// What mpirun and srun tell their processes (runtime/mpi/mpi_world.hpp).
#include <cstdlib>

#include "runtime/mpi/mpi_world.hpp"

namespace plimsoll {

bool started_as_process_of_job() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace plimsoll
