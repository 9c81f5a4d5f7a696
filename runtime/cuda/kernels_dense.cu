// Activation, loss, embedding, flat shards (runtime/cuda/kernels.hpp).  All are bound by memory: accesses of 16 bytes wherever
// sizes allow, several in flight, sums in fp32.
#include <type_traits>

#include "runtime/cuda/device_math.cuh"

namespace plimsoll::cuda {

namespace {

__global__ void add_kernel(const Half* a, const Half* b, Half* c, std::int64_t pieces) {
  for (std::int64_t i = thread_index(); i < pieces; i += thread_count()) {
    float x[8], y[8];
    widen(load8(a + 8 * i), x);
    widen(load8(b + 8 * i), y);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += y[j];
    store8(c + 8 * i, narrow8(x));
  }
}

__global__ void embedding_kernel(const std::int64_t* ids, const Half* table, Half* y, std::int64_t h) {
  const Half* from = table + ids[blockIdx.x] * h;
  for (std::int64_t i = 8 * threadIdx.x; i < h; i += 8 * blockDim.x) store8(y + blockIdx.x * h + i, load8(from + i));
}

__global__ void count_tokens(const std::int64_t* ids, int* counts, std::int64_t tokens) {
  const std::int64_t t = thread_index();
  if (t < tokens) atomicAdd(&counts[ids[t]], 1);
}
/// Each token's places begin where the cursor stands; in which order does not matter.
__global__ void begin_tokens(int* counts, int* starts, int* ends, int* cursor, std::int64_t vocab) {
  const std::int64_t token = thread_index();
  if (token >= vocab) return;
  const int count = counts[token];
  const int start = count > 0 ? atomicAdd(cursor, count) : 0;
  starts[token] = start;
  ends[token] = start + count;
}
__global__ void place_tokens(const std::int64_t* ids, const int* starts, int* counts, int* places,
                             std::int64_t tokens) {
  const std::int64_t t = thread_index();
  if (t < tokens) places[starts[ids[t]] + atomicSub(&counts[ids[t]], 1) - 1] = static_cast<int>(t);
}
__global__ void sum_tokens(const Half* dy, const int* starts, const int* ends, const int* places, Half* table,
                           std::int64_t h, bool add) {
  const std::int64_t row = blockIdx.x;
  const int first = starts[row], end = ends[row];
  if (add && first == end) return;
  for (std::int64_t i = 8 * threadIdx.x; i < h; i += 8 * blockDim.x) {
    float sum[8] = {};
    if (add) widen(load8(table + row * h + i), sum);
    for (int at = first; at < end; ++at) {
      float d[8];
      widen(load8(dy + places[at] * h + i), d);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[j] += d[j];
    }
    store8(table + row * h + i, narrow8(sum));
  }
}

/// Rows that hold something: all, or the sum of the counts.
__device__ std::int64_t live_rows(const LiveRows& rows) {
  if (rows.counts == nullptr) return rows.most;
  __shared__ int live;
  if (threadIdx.x < 32) {
    int sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < rows.count_numel; i += 32) sum += rows.counts[i];
    sum = __reduce_add_sync(0xffffffffU, sum);
    if (threadIdx.x == 0) live = sum;
  }
  __syncthreads();
  return live;
}

__device__ float sigmoid(float x) { return 1 / (1 + __expf(-x)); }

/// A warp a row.
__global__ void swiglu_kernel(const Half* joined, const float* weights, Half* y, LiveRows live, std::int64_t width) {
  const std::int64_t rows = live_rows(live), warps = thread_count() / 32;
  for (std::int64_t row = thread_index() / 32; row < rows; row += warps) {
    const float weight = weights != nullptr ? weights[row] : 1.0F;
    const Half* from = joined + row * 2 * width;
#pragma unroll 2
    for (std::int64_t i = 8 * (threadIdx.x % 32); i < width; i += 256) {
      float g[8], u[8];
      widen(load8(from + i), g);
      widen(load8(from + width + i), u);
#pragma unroll
      for (int j = 0; j < 8; ++j) g[j] = g[j] * sigmoid(g[j]) * u[j] * weight;
      store8(y + row * width + i, narrow8(g));
    }
  }
}

__global__ void swiglu_backward_kernel(const Half* dy, const Half* joined, const float* weights, Half* d,
                                       float* dweights, LiveRows live, std::int64_t width) {
  const std::int64_t rows = live_rows(live), warps = thread_count() / 32;
  for (std::int64_t row = thread_index() / 32; row < rows; row += warps) {
    const float weight = weights != nullptr ? weights[row] : 1.0F;
    const Half* from = joined + row * 2 * width;
    float dot = 0;
#pragma unroll 2
    for (std::int64_t i = 8 * (threadIdx.x % 32); i < width; i += 256) {
      float g[8], u[8], out[8];
      widen(load8(from + i), g);
      widen(load8(from + width + i), u);
      widen(load8(dy + row * width + i), out);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float s = sigmoid(g[j]), activated = g[j] * s;
        dot += out[j] * activated * u[j];
        out[j] *= weight;
        g[j] = out[j] * u[j] * s * (1 + g[j] * (1 - s));
        u[j] = out[j] * activated;
      }
      store8(d + row * 2 * width + i, narrow8(g));
      store8(d + row * 2 * width + width + i, narrow8(u));
    }
    if (dweights == nullptr) continue;
    dot = lanes_sum(dot);
    if (threadIdx.x % 32 == 0) dweights[row] = dot;
  }
}

/// `each` numbers of a row: 8, or 1 where rows do not begin at 16 bytes.
template <int each>
__device__ void load(const Half* from, float (&to)[each]) {
  if constexpr (each == 8) {
    widen(load8(from), to);
  } else {
    to[0] = wide(from[0]);
  }
}

/// A block a row: one pass for the maximum and the sum, one that writes the gradient.
template <int each>
__global__ void cross_entropy_kernel(Half* logits, const std::int64_t* labels, float* loss, float* report,
                                     std::int64_t vocab, float scale) {
  Half* row = logits + blockIdx.x * vocab;
  __shared__ float highest_parts[32];
  float highest = -INFINITY, sum = 0;
#pragma unroll 4
  for (std::int64_t i = each * threadIdx.x; i < vocab; i += each * blockDim.x) {
    float x[each], most = highest;
    load<each>(row + i, x);
#pragma unroll
    for (int j = 0; j < each; ++j) most = fmaxf(most, x[j]);
    sum *= __expf(highest - most);  // 0 while nothing has been seen
    highest = most;
#pragma unroll
    for (int j = 0; j < each; ++j) sum += __expf(x[j] - highest);
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
#pragma unroll 4
  for (std::int64_t i = each * threadIdx.x; i < vocab; i += each * blockDim.x) {
    float x[each];
    load<each>(row + i, x);
#pragma unroll
    for (int j = 0; j < each; ++j) x[j] = (__expf(x[j] - lse) - (i + j == label ? 1.0F : 0.0F)) * scale;
    if constexpr (each == 8) {
      store8(row + i, narrow8(x));
    } else {
      row[i] = narrow(x[0]);
    }
  }
  if (threadIdx.x != 0) return;
  atomicAdd(loss, (lse - at_label) * scale);
  atomicAdd(report + 1, (lse - at_label) * scale);  // report_slot::loss
}

/// Several numbers of a flat shard: 4, or 1 where its size is no multiple of 4.
template <int each>
struct Wide {
  float v[each];
};
template <int each>
__device__ Wide<each> load_floats(const float* from) {
  if constexpr (each == 4) {
    const auto four = *reinterpret_cast<const float4*>(from);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    return {{*from}};
  }
}
template <int each>
__device__ void store_floats(float* to, const Wide<each>& from) {
  if constexpr (each == 4) {
    *reinterpret_cast<float4*>(to) = {from.v[0], from.v[1], from.v[2], from.v[3]};
  } else {
    *to = from.v[0];
  }
}
template <int each>
__device__ Wide<each> load_halves(const Half* from) {
  if constexpr (each == 4) {
    const auto bits = *reinterpret_cast<const uint2*>(from);
    const float2 first = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.x));
    const float2 second = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits.y));
    return {{first.x, first.y, second.x, second.y}};
  } else {
    return {{wide(*from)}};
  }
}
template <int each>
__device__ void store_halves(Half* to, const Wide<each>& from) {
  if constexpr (each == 4) {
    uint2 bits;
    reinterpret_cast<__nv_bfloat162&>(bits.x) = __floats2bfloat162_rn(from.v[0], from.v[1]);
    reinterpret_cast<__nv_bfloat162&>(bits.y) = __floats2bfloat162_rn(from.v[2], from.v[3]);
    *reinterpret_cast<uint2*>(to) = bits;
  } else {
    *to = narrow(from.v[0]);
  }
}

template <class Number>
__global__ void sum_parts_kernel(const Number* parts, std::int64_t stride, int count, Number* sum, std::int64_t n) {
  for (std::int64_t i = thread_index(); i < n; i += thread_count()) {
    float total = 0;
    for (int part = 0; part < count; ++part) total += static_cast<float>(parts[part * stride + i]);
    sum[i] = static_cast<Number>(total);
  }
}

/// Numbers of a shard: 8 at a time, or 1 where its size is no multiple of 8.
template <int each>
__device__ void add_floats(const float* from, float (&to)[each]) {
  if constexpr (each == 8) {
    const auto low = load_floats<4>(from), high = load_floats<4>(from + 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[j] += low.v[j];
      to[4 + j] += high.v[j];
    }
  } else {
    to[0] += *from;
  }
}

template <int each, bool two, bool first>
__global__ void accumulate_kernel(const Half* __restrict__ part, const Half* __restrict__ other,
                                  float* __restrict__ shard, float* __restrict__ report, std::int64_t n, float scale) {
  float squares = 0;
#pragma unroll 2
  for (std::int64_t i = each * thread_index(); i < n; i += each * thread_count()) {
    float sum[each];
    load<each>(part + i, sum);
    if constexpr (two) {
      float more[each];
      load<each>(other + i, more);
#pragma unroll
      for (int j = 0; j < each; ++j) sum[j] += more[j];
    }
    if constexpr (!first) add_floats<each>(shard + i, sum);
    if constexpr (each == 8) {
      store_floats<4>(shard + i, {{sum[0], sum[1], sum[2], sum[3]}});
      store_floats<4>(shard + i + 4, {{sum[4], sum[5], sum[6], sum[7]}});
    } else {
      shard[i] = sum[0];
    }
#pragma unroll
    for (int j = 0; j < each; ++j) squares += sum[j] * sum[j];
  }
  if (report == nullptr) return;
  squares = block_sum(squares);
  if (threadIdx.x == 0) atomicAdd(report, squares * scale);  // report_slot::squared_norm
}

__device__ float square_root(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

/// 0 for any number, but not before the number is there: a store to a line that is still on its way makes the memory wait.  On an
/// H200 an update whose gradients are cleared at once takes 1.6 times as long.
__device__ float cleared(float x) {
  float zero;
  asm("{ .reg .f32 low; min.f32 low, %1, 0f00000000; max.f32 %0, low, 0f00000000; }" : "=f"(zero) : "f"(x));
  return zero;
}

/// A thread takes one piece.  Quotient and root are the hardware's (2 units in the last place): exact ones
/// branch, and what an element's update loses by it is far below its weight's rounding to 16 bits.
template <int each>
__global__ void adamw_kernel(float* __restrict__ gradient, float* __restrict__ master, float* __restrict__ first,
                             float* __restrict__ second, Half* __restrict__ weights, const float* __restrict__ report,
                             std::int64_t n, AdamStep s) {
  const std::int64_t i = each * thread_index();
  if (i >= n) return;
  const auto g = load_floats<each>(gradient + i);
  auto m = load_floats<each>(first + i), v = load_floats<each>(second + i);
  auto w = master != nullptr ? load_floats<each>(master + i) : load_halves<each>(weights + i);
  const float norm = square_root(report[0]);
  const float factor = s.clip > 0 && norm > s.clip ? __fdividef(s.clip, norm + 1e-6F) : 1.0F;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const float clipped = g.v[j] * factor;
    m.v[j] = s.beta1 * m.v[j] + (1 - s.beta1) * clipped;
    v.v[j] = s.beta2 * v.v[j] + (1 - s.beta2) * clipped * clipped;
    w.v[j] = w.v[j] * s.keep - __fdividef(s.step * m.v[j], square_root(v.v[j] * s.per_correction2) + s.epsilon);
  }
  if (s.clears) {
    Wide<each> zero;
#pragma unroll
    for (int j = 0; j < each; ++j) zero.v[j] = cleared(g.v[j]);
    store_floats<each>(gradient + i, zero);
  }
  if (!isfinite(norm)) return;
  store_floats<each>(first + i, m);
  store_floats<each>(second + i, v);
  if (master != nullptr) store_floats<each>(master + i, w);
  store_halves<each>(weights + i, w);
}

unsigned rows_of(std::int64_t rows) { return static_cast<unsigned>(rows); }
/// Threads that take a row of h numbers, 8 each.
unsigned row_threads(std::int64_t h) {
  return h >= 8 * threads ? threads : static_cast<unsigned>((h / 8 + 31) / 32 * 32);
}

}  // namespace

void add(const Half* a, const Half* b, Half* c, std::int64_t n, cudaStream_t stream) {
  add_kernel<<<blocks_for(n / 8), threads, 0, stream>>>(a, b, c, n / 8);
}
void embedding(const std::int64_t* ids, const Half* table, Half* y, std::int64_t tokens, std::int64_t h,
               cudaStream_t stream) {
  embedding_kernel<<<rows_of(tokens), row_threads(h), 0, stream>>>(ids, table, y, h);
}
void embedding_backward(const Half* dy, const std::int64_t* ids, Half* dtable, int* scratch, std::int64_t tokens,
                        std::int64_t h, std::int64_t vocab, bool add, cudaStream_t stream) {
  int *cursor = scratch, *counts = scratch + 1, *starts = counts + vocab, *ends = starts + vocab,
      *places = ends + vocab;
  cudaMemsetAsync(scratch, 0, static_cast<std::size_t>(1 + vocab) * sizeof(int), stream);
  const auto blocks = rows_of((tokens + threads - 1) / threads);
  count_tokens<<<blocks, threads, 0, stream>>>(ids, counts, tokens);
  begin_tokens<<<rows_of((vocab + threads - 1) / threads), threads, 0, stream>>>(counts, starts, ends, cursor, vocab);
  place_tokens<<<blocks, threads, 0, stream>>>(ids, starts, counts, places, tokens);
  sum_tokens<<<rows_of(vocab), row_threads(h), 0, stream>>>(dy, starts, ends, places, dtable, h, add);
}
void swiglu(const Half* joined, const float* weights, Half* y, LiveRows rows, std::int64_t width, cudaStream_t stream) {
  swiglu_kernel<<<blocks_for(32 * rows.most), threads, 0, stream>>>(joined, weights, y, rows, width);
}
void swiglu_backward(const Half* dy, const Half* joined, const float* weights, Half* d, float* dweights, LiveRows rows,
                     std::int64_t width, cudaStream_t stream) {
  swiglu_backward_kernel<<<blocks_for(32 * rows.most), threads, 0, stream>>>(dy, joined, weights, d, dweights, rows,
                                                                             width);
}
void cross_entropy(Half* logits, const std::int64_t* labels, float* loss, float* report, std::int64_t rows,
                   std::int64_t vocab, bool first, float scale, cudaStream_t stream) {
  if (first) cudaMemsetAsync(loss, 0, sizeof(float), stream);
  const auto kernel = vocab % 8 == 0 ? cross_entropy_kernel<8> : cross_entropy_kernel<1>;
  kernel<<<rows_of(rows), 1024, 0, stream>>>(logits, labels, loss, report, vocab, scale);
}
void sum_parts(const float* parts, std::int64_t stride, int count, float* sum, std::int64_t n, cudaStream_t stream) {
  sum_parts_kernel<<<blocks_for(n), threads, 0, stream>>>(parts, stride, count, sum, n);
}
void sum_parts(const Half* parts, std::int64_t stride, int count, Half* sum, std::int64_t n, cudaStream_t stream) {
  sum_parts_kernel<<<blocks_for(n), threads, 0, stream>>>(parts, stride, count, sum, n);
}
void load_sums() {
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, sum_parts_kernel<float>);
  cudaFuncGetAttributes(&attributes, sum_parts_kernel<Half>);
}
void accumulate(const Half* part, const Half* other, float* shard, float* report, std::int64_t n, bool first,
                float scale, cudaStream_t stream) {
  const auto launch = [&](auto each, auto two, auto as_first) {
    accumulate_kernel<decltype(each)::value, decltype(two)::value, decltype(as_first)::value>
        <<<blocks_for(n / decltype(each)::value), threads, 0, stream>>>(part, other, shard, report, n, scale);
  };
  const auto by_order = [&](auto each, auto two) {
    first ? launch(each, two, std::true_type{}) : launch(each, two, std::false_type{});
  };
  const auto by_parts = [&](auto each) {
    other != nullptr ? by_order(each, std::true_type{}) : by_order(each, std::false_type{});
  };
  // A rank's own part begins where its shard does in the whole: at 16 bytes if the shard's size is a multiple of 8.
  n % 8 == 0 ? by_parts(std::integral_constant<int, 8>{}) : by_parts(std::integral_constant<int, 1>{});
}
void adamw(float* gradient, float* master, float* first, float* second, Half* weights, const float* report,
           std::int64_t n, AdamStep step, cudaStream_t stream) {
  const auto kernel = n % 4 == 0 ? adamw_kernel<4> : adamw_kernel<1>;
  kernel<<<rows_of((n + threads - 1) / threads / (n % 4 == 0 ? 4 : 1) + 1), threads, 0, stream>>>(
      gradient, master, first, second, weights, report, n, step);
}

}  // namespace plimsoll::cuda
