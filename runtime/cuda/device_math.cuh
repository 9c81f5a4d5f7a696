// What the kernels share: bf16 numbers read and written 16 bytes at a time, computed with in fp32; sums over warps and blocks.
#pragma once

#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

inline constexpr int threads = 256;     ///< of most blocks
inline constexpr int processors = 132;  ///< of a Hopper GPU; sizes the grids of kernels that stride

__device__ inline float wide(Half x) { return __bfloat162float(x); }
__device__ inline Half narrow(float x) { return __float2bfloat16(x); }

/// Eight numbers side by side, as one access.
struct alignas(16) Eight {
  __nv_bfloat162 pairs[4];
};
__device__ inline Eight load8(const Half* from) { return *reinterpret_cast<const Eight*>(from); }
__device__ inline void store8(Half* to, const Eight& values) { *reinterpret_cast<Eight*>(to) = values; }
__device__ inline void widen(const Eight& from, float (&to)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __bfloat1622float2(from.pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}
__device__ inline Eight narrow8(const float (&from)[8]) {
  Eight to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
  return to;
}

/// The sum over `width` lanes side by side (a power of two), in each of them.
template <int width = 32>
__device__ float lanes_sum(float x) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// The sum over the block, in every thread.
__device__ inline float block_sum(float x) {
  __shared__ float parts[32];
  x = lanes_sum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

/// Blocks for n items, a thread each, up to as many as are resident at once.
inline unsigned blocks_for(std::int64_t n, std::int64_t most = processors * 8) {
  const std::int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}
__device__ inline std::int64_t thread_index() { return blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; }
__device__ inline std::int64_t thread_count() { return std::int64_t{gridDim.x} * blockDim.x; }

}  // namespace plimsoll::cuda
