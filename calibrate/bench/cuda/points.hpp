// From a point to launches on the device, one function a kind; each allocates what it needs and holds it in the closure.
#pragma once

#include <memory>

#include "calibrate/bench/cuda/device.hpp"

namespace plimsoll::calibrate::cuda {

/// A launch and what one call of it moves or computes.
struct Prepared {
  Launch launch;
  double bytes = 0;  ///< read and written; 0: not stated
};

/// cuBLASLt, the heuristics' first choice with a workspace of 32 MiB (as PyTorch on Hopper).
Prepared prepare_gemm(const Point& point);
/// cublasGemmGroupedBatchedEx, equal groups.
Prepared prepare_grouped_gemm(const Point& point);
/// cuDNN, causal.  @throws Unsupported in a build without cuDNN's front end
Prepared prepare_attention(const Point& point);
/// The kernels of kernels.hpp, and the runtime's copies and memsets, by label op.
Prepared prepare_kernel(const Point& point);

std::unique_ptr<Work> prepare_copy(const Point& point);
/// launch, launch_latency, kernel_gap, event, stream_wait, sync, cpu_adam
std::unique_ptr<Work> prepare_host_cost(const Point& point);

/// Bytes on the device before and after `acquire`.  @param keep what acquire made, freed with the work
std::unique_ptr<Work> prepare_fixed_bytes(const std::function<std::shared_ptr<void>()>& acquire);

/// Bytes of device memory in use, by the driver's count.
double used_bytes();

/// cuBLASLt's version, of the library that was loaded.
std::string library_versions();

}  // namespace plimsoll::calibrate::cuda
