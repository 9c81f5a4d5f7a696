// Matrix products in bf16 with fp32 sums: cuBLASLt, whose algorithm for each shape is chosen by timing the best candidates
// once.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

/// y[m,n] (+)= op(A)[m,k] op(B)[k,n], row-major.
struct ProductShape {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed, add;
  auto operator<=>(const ProductShape&) const = default;
};

class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void run(const ProductShape& shape, const Half* a, const Half* b, Half* y, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll::cuda
