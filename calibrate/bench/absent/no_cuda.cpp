// In place of the CUDA backend in a build without CUDA.
#include "calibrate/bench/backend.hpp"
#include "calibrate/probe/probe.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {

std::unique_ptr<Backend> make_cuda_backend(Ranks& /*ranks*/) {
  throw MachineError(
      "this build has no CUDA backend: nvcc or NCCL was missing when it was configured; --backend host measures this "
      "machine's cores");
}

std::optional<ProbedDevices> probe_devices() { return {}; }

}  // namespace plimsoll::calibrate
