// A build without CUDA or NCCL (runtime/cli/cuda_backend.hpp).
#include "planner/base/machine_error.hpp"
#include "runtime/cli/cuda_backend.hpp"

namespace plimsoll {

std::unique_ptr<Backend> make_cuda_backend(const StepProgram&, Transport&, double) {
  throw MachineError("this build has no CUDA backend: it was left out for want of nvcc or NCCL");
}

}  // namespace plimsoll
