// The CUDA backend of this build (runtime/cli/cuda_backend.hpp).
#include "runtime/cli/cuda_backend.hpp"
#include "runtime/cuda/cuda_backend.hpp"

namespace plimsoll {

std::unique_ptr<Backend> make_cuda_backend(const StepProgram& program, Transport& transport, double timeout_s) {
  return std::make_unique<CudaBackend>(program, transport, timeout_s);
}

}  // namespace plimsoll
