// A failing call of CUDA, cuBLAS or NCCL becomes a MachineError that names it.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstddef>
#include <memory>

#include "planner/base/machine_error.hpp"

namespace plimsoll::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw MachineError(fmt::format("CUDA: {}: {}", what, cudaGetErrorString(status)));
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw MachineError(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}
inline void check(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) throw MachineError(fmt::format("NCCL: {}: {}", what, ncclGetErrorString(status)));
}

/// Page-locked host memory: copies to and from it do not make the host wait.
inline std::shared_ptr<std::byte> pinned(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "pinned memory");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
}

/// Device memory outside the arena: workspaces of libraries.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { cudaFree(data_); }
  /// At least so many bytes; grows by waiting for the device.
  void* of(std::size_t bytes) {
    if (bytes > size_) {
      check(cudaDeviceSynchronize(), "waiting before a workspace grows");
      cudaFree(data_);
      data_ = nullptr;
      size_ = 0;
      check(cudaMalloc(&data_, bytes), "allocating a workspace");
      size_ = bytes;
    }
    return data_;
  }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace plimsoll::cuda
