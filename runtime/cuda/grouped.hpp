// One product an expert over rows that stand side by side, in one launch (Routine::grouped_product): CUTLASS's grouped kernels
// for Hopper.  How many rows each expert has stands on the device and stays there: the host need not know it.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

/// Routine::grouped_product.  n and k are multiples of 8: rows begin at 16 bytes, as the copy engine of tiles asks.
struct GroupedShape {
  int form;
  std::int64_t n, k;
  int experts, sources;
  std::int64_t segment;  ///< rows of each source and expert; 0: as counted
  bool add;
};

class Grouped {
 public:
  Grouped();
  ~Grouped();
  Grouped(const Grouped&) = delete;
  Grouped& operator=(const Grouped&) = delete;
  /// @param counts [sources, experts] on the device; null where segment says them
  /// @throws MachineError if a kernel refuses the shape
  void run(const GroupedShape& shape, const int* counts, const Half* a, const Half* b, Half* y, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll::cuda
