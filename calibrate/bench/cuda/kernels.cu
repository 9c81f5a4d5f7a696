// The kernels of calibrate/bench/cuda/kernels.hpp.
#include "calibrate/bench/cuda/kernels.hpp"

#include <cuda_bf16.h>

namespace plimsoll::calibrate::cuda {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256;
constexpr int most_blocks = 132 * 16;  // enough to fill any device so far; the kernels stride over the rest

int blocks_for(std::int64_t items) {
  const std::int64_t blocks = (items + threads - 1) / threads;
  return static_cast<int>(blocks < 1 ? 1 : blocks > most_blocks ? most_blocks : blocks);
}

/// Eight bf16 in one 16-byte access.
struct alignas(16) Pack {
  bf16 v[8];
};

__device__ float uniform(std::uint64_t index, unsigned seed) {
  // Finaliser of MurmurHash3 over the index (public domain constants), to [-1, 1).
  std::uint64_t h = index * 0x9e3779b97f4a7c15ULL + seed;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  return static_cast<float>(static_cast<std::int64_t>(h) >> 40) * (1.0F / 8388608.0F);
}

template <class T>
__global__ void random_kernel(T* to, std::int64_t n, unsigned seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += step)
    to[i] = static_cast<T>(uniform(static_cast<std::uint64_t>(i), seed));
}

/// Applies `op` to packs of up to three inputs, giving up to two outputs.
template <int In, int Out, class Op>
__global__ void packed_kernel(const Pack* a, const Pack* b, const Pack* c, Pack* d, Pack* e, std::int64_t packs,
                              Op op) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < packs; i += step) {
    Pack x{}, y{}, z{}, u, v;
    if constexpr (In > 0) x = a[i];
    if constexpr (In > 1) y = b[i];
    if constexpr (In > 2) z = c[i];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float second = 0;
      u.v[j] =
          __float2bfloat16(op(__bfloat162float(x.v[j]), __bfloat162float(y.v[j]), __bfloat162float(z.v[j]), second));
      v.v[j] = __float2bfloat16(second);
    }
    d[i] = u;
    if constexpr (Out > 1) e[i] = v;
  }
}

template <int In, int Out, class Op>
void packed(const void* a, const void* b, const void* c, void* d, void* e, std::int64_t elements, cudaStream_t stream,
            Op op) {
  const std::int64_t packs = elements / 8;
  packed_kernel<In, Out><<<blocks_for(packs), threads, 0, stream>>>(
      static_cast<const Pack*>(a), static_cast<const Pack*>(b), static_cast<const Pack*>(c), static_cast<Pack*>(d),
      static_cast<Pack*>(e), packs, op);
}

__global__ void upcast_kernel(const Pack* a, float4* b, std::int64_t packs) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < packs; i += step) {
    const Pack x = a[i];
    b[2 * i] = make_float4(__bfloat162float(x.v[0]), __bfloat162float(x.v[1]), __bfloat162float(x.v[2]),
                           __bfloat162float(x.v[3]));
    b[2 * i + 1] = make_float4(__bfloat162float(x.v[4]), __bfloat162float(x.v[5]), __bfloat162float(x.v[6]),
                               __bfloat162float(x.v[7]));
  }
}

/// The sum over a block, on every thread.
__device__ float block_sum(float value) {
  __shared__ float parts[threads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  __syncthreads();  // parts may still be read from the call before
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < threads / 32; ++i) sum += parts[i];
  return sum;
}

__device__ float block_max(float value) {
  __shared__ float parts[threads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float most = parts[0];
  for (int i = 1; i < threads / 32; ++i) most = fmaxf(most, parts[i]);
  return most;
}

/// A block a row: y = w x / sqrt(mean(x^2) + eps).
__global__ void norm_kernel(const Pack* x, const Pack* w, Pack* y, std::int64_t rows, std::int64_t packs) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pack* in = x + row * packs;
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      const Pack p = in[i];
      for (int j = 0; j < 8; ++j) squares += __bfloat162float(p.v[j]) * __bfloat162float(p.v[j]);
    }
    const float scale = rsqrtf(block_sum(squares) / static_cast<float>(8 * packs) + 1e-6F);
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      const Pack p = in[i], q = w[i];
      Pack r;
      for (int j = 0; j < 8; ++j)
        r.v[j] = __float2bfloat16(__bfloat162float(p.v[j]) * scale * __bfloat162float(q.v[j]));
      y[row * packs + i] = r;
    }
  }
}

/// dx = s (g - x (x . g) s^2 / width), g = w dy, s = 1 / rms.
__global__ void norm_backward_kernel(const Pack* x, const Pack* w, const Pack* dy, Pack* dx, std::int64_t rows,
                                     std::int64_t packs) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float squares = 0, dot = 0;
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      const Pack p = x[row * packs + i], q = w[i], g = dy[row * packs + i];
      for (int j = 0; j < 8; ++j) {
        const float v = __bfloat162float(p.v[j]);
        squares += v * v;
        dot += v * __bfloat162float(q.v[j]) * __bfloat162float(g.v[j]);
      }
    }
    const auto width = static_cast<float>(8 * packs);
    const float scale = rsqrtf(block_sum(squares) / width + 1e-6F);
    const float pull = block_sum(dot) * scale * scale / width;
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      const Pack p = x[row * packs + i], q = w[i], g = dy[row * packs + i];
      Pack r;
      for (int j = 0; j < 8; ++j)
        r.v[j] = __float2bfloat16(
            scale * (__bfloat162float(q.v[j]) * __bfloat162float(g.v[j]) - __bfloat162float(p.v[j]) * pull));
      dx[row * packs + i] = r;
    }
  }
}

/// A thread rotates eight pairs of one head.
__global__ void rotary_kernel(Pack* x, const float* cosines, const float* sines, std::int64_t items, std::int64_t heads,
                              std::int64_t half_packs) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < items; i += step) {
    const std::int64_t pack = i % half_packs, head = i / half_packs, row = head / heads;
    Pack* first = x + head * 2 * half_packs + pack;
    Pack a = first[0], b = first[half_packs];
    for (int j = 0; j < 8; ++j) {
      const std::int64_t at = row % 4096 * half_packs * 8 + pack * 8 + j;
      const float c = cosines[at], s = sines[at], u = __bfloat162float(a.v[j]), v = __bfloat162float(b.v[j]);
      a.v[j] = __float2bfloat16(u * c - v * s);
      b.v[j] = __float2bfloat16(v * c + u * s);
    }
    first[0] = a;
    first[half_packs] = b;
  }
}

__global__ void gather_kernel(const Pack* table, const std::int64_t* rows, Pack* out, std::int64_t items,
                              std::int64_t packs) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < items; i += step)
    out[i] = table[rows[i / packs] * packs + i % packs];
}

__global__ void scatter_add_kernel(const bf16* in, const std::int64_t* rows, float* table, std::int64_t items,
                                   std::int64_t width) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < items; i += step)
    atomicAdd(table + rows[i / width] * width + i % width, __bfloat162float(in[i]));
}

/// A block a row, online maximum and sum in one pass, the gradient in a second.
__global__ void softmax_loss_kernel(Pack* logits, const std::int64_t* labels, float* loss, std::int64_t rows,
                                    std::int64_t packs) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    Pack* line = logits + row * packs;
    float most = -1e30F, sum = 0;
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      const Pack p = line[i];
      float here = most;
      for (int j = 0; j < 8; ++j) here = fmaxf(here, __bfloat162float(p.v[j]));
      sum *= __expf(most - here);
      most = here;
      for (int j = 0; j < 8; ++j) sum += __expf(__bfloat162float(p.v[j]) - most);
    }
    const float highest = block_max(most);
    const float total = block_sum(sum * __expf(most - highest));
    const std::int64_t label = labels[row];
    if (threadIdx.x == 0) loss[row] = __logf(total) + highest - __bfloat162float(line[label / 8].v[label % 8]);
    __syncthreads();
    for (std::int64_t i = threadIdx.x; i < packs; i += threads) {
      Pack p = line[i];
      for (int j = 0; j < 8; ++j) {
        const float probability = __expf(__bfloat162float(p.v[j]) - highest) / total;
        p.v[j] = __float2bfloat16(probability - (8 * i + j == label ? 1.0F : 0.0F));
      }
      line[i] = p;
    }
  }
}

__global__ void reduce_last_kernel(const float4* x, float* sums, std::int64_t rows, std::int64_t quads) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < quads; i += threads) {
      const float4 v = x[row * quads + i];
      sum += v.x + v.y + v.z + v.w;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[row] = sum;
  }
}

/// A thread walks down its column within a slab of rows; slabs meet in atomics.
__global__ void reduce_rows_kernel(const bf16* x, float* sums, std::int64_t rows, std::int64_t width,
                                   std::int64_t slab) {
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (column >= width) return;
  const std::int64_t first = blockIdx.y * slab, last = first + slab < rows ? first + slab : rows;
  float sum = 0;
  for (std::int64_t row = first; row < last; ++row) sum += __bfloat162float(x[row * width + column]);
  atomicAdd(sums + column, sum);
}

__global__ void strided_copy_kernel(const bf16* x, bf16* y, std::int64_t items, std::int64_t half) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < items; i += step)
    y[i] = x[i / half * 2 * half + half + i % half];
}

__global__ void adamw_kernel(float4* p, const float4* g, float4* m, float4* v, std::int64_t quads) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < quads; i += step) {
    float4 a = p[i], b = g[i], c = m[i], d = v[i];
    float *ap = &a.x, *bp = &b.x, *cp = &c.x, *dp = &d.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      cp[j] = 0.9F * cp[j] + 0.1F * bp[j];
      dp[j] = 0.999F * dp[j] + 0.001F * bp[j] * bp[j];
      ap[j] -= 1e-4F * (cp[j] / (sqrtf(dp[j]) + 1e-8F) + 0.01F * ap[j]);
    }
    p[i] = a;
    m[i] = c;
    v[i] = d;
  }
}

__global__ void empty_kernel() {}

__global__ void delay_kernel(std::uint64_t nanoseconds) {
  std::uint64_t start = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

int row_blocks(std::int64_t rows) { return static_cast<int>(rows < most_blocks ? rows : most_blocks); }

}  // namespace

void fill_random_bf16(void* to, std::int64_t n, unsigned seed, cudaStream_t stream) {
  random_kernel<<<blocks_for(n), threads, 0, stream>>>(static_cast<bf16*>(to), n, seed);
}
void fill_random_fp32(void* to, std::int64_t n, unsigned seed, cudaStream_t stream) {
  random_kernel<<<blocks_for(n), threads, 0, stream>>>(static_cast<float*>(to), n, seed);
}
void launch_add(const void* a, const void* b, void* c, std::int64_t n, cudaStream_t stream) {
  packed<2, 1>(a, b, nullptr, c, nullptr, n, stream, [] __device__(float x, float y, float, float&) { return x + y; });
}
void launch_silu(const void* a, void* b, std::int64_t n, cudaStream_t stream) {
  packed<1, 1>(a, nullptr, nullptr, b, nullptr, n, stream,
               [] __device__(float x, float, float, float&) { return x / (1.0F + __expf(-x)); });
}
void launch_fill(void* a, std::int64_t n, cudaStream_t stream) {
  packed<0, 1>(nullptr, nullptr, nullptr, a, nullptr, n, stream,
               [] __device__(float, float, float, float&) { return 1.0F; });
}
void launch_upcast(const void* a, void* b, std::int64_t n, cudaStream_t stream) {
  upcast_kernel<<<blocks_for(n / 8), threads, 0, stream>>>(static_cast<const Pack*>(a), static_cast<float4*>(b), n / 8);
}
void launch_swiglu(const void* gate, const void* up, void* out, std::int64_t n, cudaStream_t stream) {
  packed<2, 1>(gate, up, nullptr, out, nullptr, n, stream,
               [] __device__(float x, float y, float, float&) { return x / (1.0F + __expf(-x)) * y; });
}
void launch_swiglu_backward(const void* d_out, const void* gate, const void* up, void* d_gate, void* d_up,
                            std::int64_t n, cudaStream_t stream) {
  packed<3, 2>(d_out, gate, up, d_gate, d_up, n, stream, [] __device__(float d, float x, float y, float& second) {
    const float s = 1.0F / (1.0F + __expf(-x));
    second = d * x * s;
    return d * y * s * (1.0F + x * (1.0F - s));
  });
}
void launch_norm(const void* x, const void* w, void* y, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  norm_kernel<<<row_blocks(rows), threads, 0, stream>>>(static_cast<const Pack*>(x), static_cast<const Pack*>(w),
                                                        static_cast<Pack*>(y), rows, width / 8);
}
void launch_norm_backward(const void* x, const void* w, const void* dy, void* dx, std::int64_t rows, std::int64_t width,
                          cudaStream_t stream) {
  norm_backward_kernel<<<row_blocks(rows), threads, 0, stream>>>(
      static_cast<const Pack*>(x), static_cast<const Pack*>(w), static_cast<const Pack*>(dy), static_cast<Pack*>(dx),
      rows, width / 8);
}
void launch_rotary(void* x, const float* cosines, const float* sines, std::int64_t rows, std::int64_t heads,
                   std::int64_t d, cudaStream_t stream) {
  const std::int64_t items = rows * heads * (d / 16);
  rotary_kernel<<<blocks_for(items), threads, 0, stream>>>(static_cast<Pack*>(x), cosines, sines, items, heads, d / 16);
}
void launch_gather(const void* table, const std::int64_t* rows, void* out, std::int64_t count, std::int64_t width,
                   cudaStream_t stream) {
  const std::int64_t items = count * width / 8;
  gather_kernel<<<blocks_for(items), threads, 0, stream>>>(static_cast<const Pack*>(table), rows,
                                                           static_cast<Pack*>(out), items, width / 8);
}
void launch_scatter_add(const void* in, const std::int64_t* rows, float* table, std::int64_t count, std::int64_t width,
                        cudaStream_t stream) {
  const std::int64_t items = count * width;
  scatter_add_kernel<<<blocks_for(items), threads, 0, stream>>>(static_cast<const bf16*>(in), rows, table, items,
                                                                width);
}
void launch_softmax_loss(void* logits, const std::int64_t* labels, float* loss, std::int64_t rows, std::int64_t vocab,
                         cudaStream_t stream) {
  softmax_loss_kernel<<<row_blocks(rows), threads, 0, stream>>>(static_cast<Pack*>(logits), labels, loss, rows,
                                                                vocab / 8);
}
void launch_reduce_last(const float* x, float* sums, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  reduce_last_kernel<<<row_blocks(rows), threads, 0, stream>>>(reinterpret_cast<const float4*>(x), sums, rows,
                                                               width / 4);
}
void launch_reduce_rows(const void* x, float* sums, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  constexpr std::int64_t slab = 64;
  const dim3 grid(static_cast<unsigned>((width + threads - 1) / threads),
                  static_cast<unsigned>((rows + slab - 1) / slab));
  reduce_rows_kernel<<<grid, threads, 0, stream>>>(static_cast<const bf16*>(x), sums, rows, width, slab);
}
void launch_strided_copy(const void* x, void* y, std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  const std::int64_t items = rows * (width / 2);
  strided_copy_kernel<<<blocks_for(items), threads, 0, stream>>>(static_cast<const bf16*>(x), static_cast<bf16*>(y),
                                                                 items, width / 2);
}
void launch_adamw(float* p, const float* g, float* m, float* v, std::int64_t n, cudaStream_t stream) {
  adamw_kernel<<<blocks_for(n / 4), threads, 0, stream>>>(
      reinterpret_cast<float4*>(p), reinterpret_cast<const float4*>(g), reinterpret_cast<float4*>(m),
      reinterpret_cast<float4*>(v), n / 4);
}
void launch_empty(cudaStream_t stream) { empty_kernel<<<1, 1, 0, stream>>>(); }
void launch_delay(double microseconds, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(static_cast<std::uint64_t>(microseconds * 1000));
}

}  // namespace plimsoll::calibrate::cuda
