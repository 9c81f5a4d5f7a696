// The CUDA backend, where this build has one.
#pragma once

#include <memory>

#include "runtime/core/backend.hpp"
#include "runtime/host/transport.hpp"

namespace plimsoll {

/// A backend on the CUDA device of this rank; the transport carries what the devices need to find each other.
/// @throws MachineError if this build has no CUDA backend, or there is no device
std::unique_ptr<Backend> make_cuda_backend(const StepProgram& program, Transport& transport, double timeout_s);

}  // namespace plimsoll
