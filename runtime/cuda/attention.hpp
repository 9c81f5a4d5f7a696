// Causal grouped-query attention by cuDNN, on q, k and v joined in rows of (A + 2 K) d.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

struct AttentionShape {
  std::int64_t batch, sequence, q, kv, d;
  auto operator<=>(const AttentionShape&) const = default;
};

class Attention {
 public:
  Attention();
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  /// @param lse [b, A, S] here, though the program counts it as [N, A]
  void forward(const AttentionShape& shape, Half* qkv, Half* out, float* lse, cudaStream_t stream);
  void backward(const AttentionShape& shape, Half* d_out, Half* qkv, float* lse, Half* out, Half* d_qkv,
                cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll::cuda
