// Norms, rotary embedding, activation, loss, embedding, flat shards (runtime/cuda/kernels.hpp).  All are bound by memory: a
// block takes a row or strides over elements, sums run in fp32 over warps, then over the block.
#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

namespace {

constexpr int threads = 256;

__device__ float wide(Half x) { return __bfloat162float(x); }
__device__ Half narrow(float x) { return __float2bfloat16(x); }

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// The sum over the block, in every thread.
__device__ float block_sum(float x) {
  __shared__ float parts[32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

unsigned blocks_for(std::int64_t n, std::int64_t most = 132 * 16) {
  const std::int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

__global__ void add_kernel(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* c, std::int64_t pairs) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < pairs;
       i += std::int64_t{gridDim.x} * blockDim.x)
    c[i] = __hadd2(a[i], b[i]);
}

__global__ void embedding_kernel(const std::int64_t* ids, const Half* table, Half* y, std::int64_t h) {
  const Half* from = table + ids[blockIdx.x] * h;
  for (std::int64_t i = threadIdx.x; i < h; i += blockDim.x) y[blockIdx.x * h + i] = from[i];
}

__global__ void count_tokens(const std::int64_t* ids, int* counts, std::int64_t tokens) {
  const std::int64_t t = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (t < tokens) atomicAdd(&counts[ids[t]], 1);
}
/// Exclusive sums of counts into starts and into next, by one block of 1024.
__global__ void starts_of_tokens(const int* counts, int* starts, std::int64_t vocab) {
  __shared__ int sums[1024];
  const std::int64_t each = (vocab + 1023) / 1024, first = threadIdx.x * each;
  int own = 0;
  for (std::int64_t i = first; i < first + each && i < vocab; ++i) own += counts[i];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < 1024; step *= 2) {
    const int before = threadIdx.x >= static_cast<unsigned>(step) ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  int at = sums[threadIdx.x] - own;
  for (std::int64_t i = first; i < first + each && i < vocab; ++i) {
    starts[i] = at;
    at += counts[i];
  }
  if (threadIdx.x == 1023) starts[vocab] = sums[1023];
}
__global__ void place_tokens(const std::int64_t* ids, const int* starts, int* counts, int* places,
                             std::int64_t tokens) {
  const std::int64_t t = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (t < tokens) places[starts[ids[t]] + atomicSub(&counts[ids[t]], 1) - 1] = static_cast<int>(t);
}
__global__ void sum_tokens(const Half* dy, const int* starts, const int* places, Half* table, std::int64_t h,
                           bool add) {
  const std::int64_t row = blockIdx.x;
  const int first = starts[row], end = starts[row + 1];
  if (add && first == end) return;
  for (std::int64_t i = threadIdx.x; i < h; i += blockDim.x) {
    float sum = add ? wide(table[row * h + i]) : 0.0F;
    for (int at = first; at < end; ++at) sum += wide(dy[places[at] * h + i]);
    table[row * h + i] = narrow(sum);
  }
}

__global__ void norm_kernel(const Half* x, const Half* branch, const Half* w, Half* out, Half* y, float* rstd,
                            std::int64_t h, float eps) {
  const std::int64_t row = blockIdx.x * h;
  float squares = 0;
  for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x) {
    float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x + row + i));
    if (branch != nullptr) {
      const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(branch + row + i));
      const __nv_bfloat162 sum = __floats2bfloat162_rn(v.x + b.x, v.y + b.y);
      *reinterpret_cast<__nv_bfloat162*>(out + row + i) = sum;
      v = __bfloat1622float2(sum);
    }
    squares += v.x * v.x + v.y * v.y;
  }
  const float r = rsqrtf(block_sum(squares) / static_cast<float>(h) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  const Half* stream = branch != nullptr ? out : x;
  for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x) {
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(stream + row + i));
    const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(w + i));
    *reinterpret_cast<__nv_bfloat162*>(y + row + i) = __floats2bfloat162_rn(v.x * r * g.x, v.y * r * g.y);
  }
}

/// Each block takes every gridDim-th row; a thread keeps dw of its columns (up to 8192 of them in 16 pairs).
__global__ void norm_backward_kernel(const Half* dy, const Half* dstream, const Half* x, const float* rstd,
                                     const Half* w, Half* dx, float* partial, std::int64_t rows, std::int64_t h) {
  constexpr int most = 16;
  float2 dw[most] = {};
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float r = rstd[row];
    float dot = 0;
    int n = 0;
    for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x, ++n) {
      const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(dy + row * h + i));
      const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x + row * h + i));
      const float2 s = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(w + i));
      dot += g.x * s.x * v.x * r + g.y * s.y * v.y * r;
      dw[n].x += g.x * v.x * r;
      dw[n].y += g.y * v.y * r;
    }
    const float mean = block_sum(dot) / static_cast<float>(h);
    for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x) {
      const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(dy + row * h + i));
      const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x + row * h + i));
      const float2 s = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(w + i));
      float2 d{r * (g.x * s.x - v.x * r * mean), r * (g.y * s.y - v.y * r * mean)};
      if (dstream != nullptr) {
        const float2 before = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(dstream + row * h + i));
        d.x += before.x;
        d.y += before.y;
      }
      *reinterpret_cast<__nv_bfloat162*>(dx + row * h + i) = __floats2bfloat162_rn(d.x, d.y);
    }
  }
  int n = 0;
  for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x, ++n) {
    partial[blockIdx.x * h + i] = dw[n].x;
    partial[blockIdx.x * h + i + 1] = dw[n].y;
  }
}

__global__ void sum_partials(const float* partial, Half* out, std::int64_t columns, std::int64_t stride, int parts,
                             bool add) {
  const std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (i >= columns) return;
  float sum = add ? wide(out[i]) : 0.0F;
  for (int part = 0; part < parts; ++part) sum += partial[part * stride + i];
  out[i] = narrow(sum);
}

/// A pair (i, i + d/2) turned by an angle.
__device__ float2 turned(float2 pair, float angle) {
  float s, c;
  sincosf(angle, &s, &c);
  return {pair.x * c - pair.y * s, pair.y * c + pair.x * s};
}

__global__ void rotary_kernel(Half* qkv, HeadShape shape, bool back) {
  const int width = (shape.q + 2 * shape.kv) * shape.d, half = shape.d / 2;
  const std::int64_t t = blockIdx.x;
  const auto position = static_cast<float>(t % shape.sequence);
  for (int i = threadIdx.x; i < (shape.q + shape.kv) * half; i += blockDim.x) {
    Half* at = qkv + t * width + i / half * shape.d + i % half;
    const float angle = position * shape.frequencies[i % half];
    const float2 v = turned({wide(at[0]), wide(at[half])}, back ? -angle : angle);
    at[0] = narrow(v.x);
    at[half] = narrow(v.y);
  }
}

/// A warp a head.
__global__ void head_norm_kernel(const Half* qkv, const Half* wq, const Half* wk, Half* out, HeadShape shape) {
  const int width = (shape.q + 2 * shape.kv) * shape.d, half = shape.d / 2, lane = threadIdx.x % 32;
  const std::int64_t t = blockIdx.x;
  for (int head = threadIdx.x / 32; head < shape.q + 2 * shape.kv; head += blockDim.x / 32) {
    const Half* x = qkv + t * width + head * shape.d;
    Half* y = out + t * width + head * shape.d;
    if (head >= shape.q + shape.kv) {
      for (int i = lane; i < shape.d; i += 32) y[i] = x[i];
      continue;
    }
    const Half* w = head < shape.q ? wq : wk;
    float squares = 0;
    for (int i = lane; i < shape.d; i += 32) squares += wide(x[i]) * wide(x[i]);
    const float r = rsqrtf(warp_sum(squares) / static_cast<float>(shape.d) + shape.eps);
    for (int i = lane; i < half; i += 32) {
      const float2 v = turned({wide(x[i]) * r * wide(w[i]), wide(x[i + half]) * r * wide(w[i + half])},
                              static_cast<float>(t % shape.sequence) * shape.frequencies[i]);
      y[i] = narrow(v.x);
      y[i + half] = narrow(v.y);
    }
  }
}

/// A warp takes heads of every gridDim-th token; partial sums of dwq | dwk by block, through shared memory.
__global__ void head_norm_backward_kernel(Half* gradient, const Half* qkv, const Half* wq, const Half* wk,
                                          float* partial, HeadShape shape) {
  extern __shared__ float dw[];
  const int width = (shape.q + 2 * shape.kv) * shape.d, half = shape.d / 2, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 2 * shape.d; i += blockDim.x) dw[i] = 0;
  __syncthreads();
  for (std::int64_t t = blockIdx.x; t < shape.tokens; t += gridDim.x) {
    for (int head = threadIdx.x / 32; head < shape.q + shape.kv; head += blockDim.x / 32) {
      const Half* x = qkv + t * width + head * shape.d;
      Half* g = gradient + t * width + head * shape.d;
      const Half* w = head < shape.q ? wq : wk;
      float* sums = dw + (head < shape.q ? 0 : shape.d);
      float squares = 0, dot = 0;
      for (int i = lane; i < shape.d; i += 32) squares += wide(x[i]) * wide(x[i]);
      const float r = rsqrtf(warp_sum(squares) / static_cast<float>(shape.d) + shape.eps);
      for (int i = lane; i < half; i += 32) {
        const float angle = -static_cast<float>(t % shape.sequence) * shape.frequencies[i];
        const float2 v = turned({wide(g[i]), wide(g[i + half])}, angle);
        dot += v.x * wide(w[i]) * wide(x[i]) * r + v.y * wide(w[i + half]) * wide(x[i + half]) * r;
        atomicAdd(&sums[i], v.x * wide(x[i]) * r);
        atomicAdd(&sums[i + half], v.y * wide(x[i + half]) * r);
      }
      const float mean = warp_sum(dot) / static_cast<float>(shape.d);
      for (int i = lane; i < half; i += 32) {
        const float angle = -static_cast<float>(t % shape.sequence) * shape.frequencies[i];
        const float2 v = turned({wide(g[i]), wide(g[i + half])}, angle);
        g[i] = narrow(r * (v.x * wide(w[i]) - wide(x[i]) * r * mean));
        g[i + half] = narrow(r * (v.y * wide(w[i + half]) - wide(x[i + half]) * r * mean));
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * shape.d; i += blockDim.x) partial[blockIdx.x * 2 * shape.d + i] = dw[i];
}

__global__ void swiglu_kernel(const Half* joined, const float* weights, Half* y, std::int64_t width) {
  const std::int64_t row = blockIdx.y;
  const float weight = weights != nullptr ? weights[row] : 1.0F;
  const std::int64_t i = 2 * (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x);
  if (i >= width) return;
  const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(joined + row * 2 * width + i));
  const float2 u = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(joined + row * 2 * width + width + i));
  *reinterpret_cast<__nv_bfloat162*>(y + row * width + i) =
      __floats2bfloat162_rn(g.x / (1 + __expf(-g.x)) * u.x * weight, g.y / (1 + __expf(-g.y)) * u.y * weight);
}

__global__ void swiglu_backward_kernel(const Half* dy, const Half* joined, const float* weights, Half* d,
                                       float* dweights, std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  const float weight = weights != nullptr ? weights[row] : 1.0F;
  float dot = 0;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = wide(joined[row * 2 * width + i]), u = wide(joined[row * 2 * width + width + i]);
    const float s = 1 / (1 + __expf(-g)), dyi = wide(dy[row * width + i]);
    dot += dyi * g * s * u;
    d[row * 2 * width + i] = narrow(dyi * weight * u * s * (1 + g * (1 - s)));
    d[row * 2 * width + width + i] = narrow(dyi * weight * g * s);
  }
  if (dweights == nullptr) return;
  dot = block_sum(dot);
  if (threadIdx.x == 0) dweights[row] = dot;
}

/// One pass for the maximum and the sum, one that writes the gradient.
__global__ void cross_entropy_kernel(Half* logits, const std::int64_t* labels, float* loss, float* report,
                                     std::int64_t vocab, float scale) {
  Half* row = logits + blockIdx.x * vocab;
  __shared__ float highest_parts[32];
  float highest = -INFINITY, sum = 0;
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x) {
    const float x = wide(row[i]);
    if (x > highest) {
      sum = sum * __expf(highest - x) + 1;
      highest = x;
    } else {
      sum += __expf(x - highest);
    }
  }
  float most = highest;
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, step));
  if (threadIdx.x % 32 == 0) highest_parts[threadIdx.x / 32] = most;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i) most = fmaxf(most, highest_parts[i]);
  sum = block_sum(highest == -INFINITY ? 0.0F : sum * __expf(highest - most));
  const float lse = most + logf(sum);
  const std::int64_t label = labels[blockIdx.x];
  const float at_label = wide(row[label]);
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < vocab; i += blockDim.x)
    row[i] = narrow((__expf(wide(row[i]) - lse) - (i == label ? 1.0F : 0.0F)) * scale);
  if (threadIdx.x != 0) return;
  atomicAdd(loss, (lse - at_label) * scale);
  atomicAdd(report + 1, (lse - at_label) * scale);  // report_slot::loss
}

__global__ void accumulate_kernel(const Half* part, float* shard, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x)
    shard[i] += wide(part[i]);
}

__global__ void square_sum_kernel(const float* x, float* report, std::int64_t n, float scale) {
  float sum = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += x[i] * x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(report, sum * scale);  // report_slot::squared_norm
}

__global__ void adamw_kernel(float* gradient, float* master, float* first, float* second, Half* weights,
                             const float* report, std::int64_t n, AdamStep s) {
  const float norm = sqrtf(report[0]);
  const bool finite = isfinite(norm);
  const float factor = s.clip > 0 && norm > s.clip ? s.clip / (norm + 1e-6F) : 1.0F;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const float g = gradient[i] * factor;
    gradient[i] = 0;
    if (!finite) continue;
    const float m = s.beta1 * first[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * second[i] + (1 - s.beta2) * g * g;
    float w = (master != nullptr ? master[i] : wide(weights[i])) * (1 - s.learning_rate * s.decay);
    w -= s.learning_rate * (m / s.correction1) / (sqrtf(v / s.correction2) + s.epsilon);
    first[i] = m;
    second[i] = v;
    if (master != nullptr) master[i] = w;
    weights[i] = narrow(w);
  }
}

unsigned rows_of(std::int64_t rows) { return static_cast<unsigned>(rows); }

}  // namespace

void add(const Half* a, const Half* b, Half* c, std::int64_t n, cudaStream_t stream) {
  add_kernel<<<blocks_for(n / 2), threads, 0, stream>>>(reinterpret_cast<const __nv_bfloat162*>(a),
                                                        reinterpret_cast<const __nv_bfloat162*>(b),
                                                        reinterpret_cast<__nv_bfloat162*>(c), n / 2);
}
void embedding(const std::int64_t* ids, const Half* table, Half* y, std::int64_t tokens, std::int64_t h,
               cudaStream_t stream) {
  embedding_kernel<<<rows_of(tokens), threads, 0, stream>>>(ids, table, y, h);
}
void embedding_backward(const Half* dy, const std::int64_t* ids, Half* dtable, int* scratch, std::int64_t tokens,
                        std::int64_t h, std::int64_t vocab, bool add, cudaStream_t stream) {
  int *counts = scratch, *starts = scratch + vocab, *places = starts + vocab + 1;
  cudaMemsetAsync(counts, 0, static_cast<std::size_t>(vocab) * sizeof(int), stream);
  const auto blocks = static_cast<unsigned>((tokens + threads - 1) / threads);
  count_tokens<<<blocks, threads, 0, stream>>>(ids, counts, tokens);
  starts_of_tokens<<<1, 1024, 0, stream>>>(counts, starts, vocab);
  place_tokens<<<blocks, threads, 0, stream>>>(ids, starts, counts, places, tokens);
  sum_tokens<<<rows_of(vocab), threads, 0, stream>>>(dy, starts, places, dtable, h, add);
}
void norm(const Half* x, const Half* branch, const Half* w, Half* stream_out, Half* y, float* rstd, NormShape shape,
          cudaStream_t stream) {
  norm_kernel<<<rows_of(shape.rows), threads, 0, stream>>>(x, branch, w, stream_out, y, rstd, shape.h, shape.eps);
}
void norm_backward(const Half* dy, const Half* dstream, const Half* x, const float* rstd, const Half* w, Half* dx,
                   Half* dw, float* scratch, NormShape shape, bool add, cudaStream_t stream) {
  norm_backward_kernel<<<norm_blocks, threads, 0, stream>>>(dy, dstream, x, rstd, w, dx, scratch, shape.rows, shape.h);
  sum_partials<<<blocks_for(shape.h), threads, 0, stream>>>(scratch, dw, shape.h, shape.h, norm_blocks, add);
}
void rotary(Half* qkv, HeadShape shape, bool back, cudaStream_t stream) {
  rotary_kernel<<<rows_of(shape.tokens), threads, 0, stream>>>(qkv, shape, back);
}
void head_norm_rotary(const Half* qkv, const Half* wq, const Half* wk, Half* turned, HeadShape shape,
                      cudaStream_t stream) {
  head_norm_kernel<<<rows_of(shape.tokens), threads, 0, stream>>>(qkv, wq, wk, turned, shape);
}
void head_norm_rotary_backward(Half* gradient, const Half* qkv, const Half* wq, const Half* wk, Half* dwq, Half* dwk,
                               float* scratch, HeadShape shape, bool add, cudaStream_t stream) {
  const int d = shape.d;
  head_norm_backward_kernel<<<norm_blocks, threads, 2 * d * sizeof(float), stream>>>(gradient, qkv, wq, wk, scratch,
                                                                                     shape);
  sum_partials<<<blocks_for(d), threads, 0, stream>>>(scratch, dwq, d, 2 * d, norm_blocks, add);
  sum_partials<<<blocks_for(d), threads, 0, stream>>>(scratch + d, dwk, d, 2 * d, norm_blocks, add);
}
void swiglu(const Half* joined, const float* weights, Half* y, std::int64_t rows, std::int64_t width,
            cudaStream_t stream) {
  if (rows == 0) return;
  constexpr std::int64_t most_rows = 65535;  // of a grid's second dimension
  const auto columns = static_cast<unsigned>((width / 2 + threads - 1) / threads);
  for (std::int64_t first = 0; first < rows; first += most_rows) {
    const std::int64_t some = rows - first < most_rows ? rows - first : most_rows;
    swiglu_kernel<<<dim3(columns, rows_of(some)), threads, 0, stream>>>(
        joined + first * 2 * width, weights != nullptr ? weights + first : nullptr, y + first * width, width);
  }
}
void swiglu_backward(const Half* dy, const Half* joined, const float* weights, Half* d, float* dweights,
                     std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  if (rows == 0) return;
  swiglu_backward_kernel<<<rows_of(rows), threads, 0, stream>>>(dy, joined, weights, d, dweights, width);
}
void cross_entropy(Half* logits, const std::int64_t* labels, float* loss, float* report, std::int64_t rows,
                   std::int64_t vocab, bool first, float scale, cudaStream_t stream) {
  if (first) cudaMemsetAsync(loss, 0, sizeof(float), stream);
  cross_entropy_kernel<<<rows_of(rows), 1024, 0, stream>>>(logits, labels, loss, report, vocab, scale);
}
void accumulate(const Half* part, float* shard, std::int64_t n, cudaStream_t stream) {
  accumulate_kernel<<<blocks_for(n), threads, 0, stream>>>(part, shard, n);
}
void square_sum(const float* x, float* report, std::int64_t n, float scale, cudaStream_t stream) {
  square_sum_kernel<<<blocks_for(n), threads, 0, stream>>>(x, report, n, scale);
}
void adamw(float* gradient, float* master, float* first, float* second, Half* weights, const float* report,
           std::int64_t n, AdamStep step, cudaStream_t stream) {
  adamw_kernel<<<blocks_for(n), threads, 0, stream>>>(gradient, master, first, second, weights, report, n, step);
}

}  // namespace plimsoll::cuda
