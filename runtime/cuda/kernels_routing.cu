// Router and movement of rows (runtime/cuda/kernels.hpp).  A warp takes a token.  Slots follow the order of tokens, so that they
// are the same in every run: blocks of `together` tokens count their choices by expert, one block adds the counts up, then each
// choice takes the place that its expert, its block and its rank in the block give it.
#include "runtime/cuda/device_math.cuh"

namespace plimsoll::cuda {

namespace {

constexpr int warps = threads / 32;
constexpr int together = 32;  ///< tokens of a block

/// Probabilities of the lane's experts (lane, lane + 32, ...); returns the log of the sum of exponentials.
template <int each>
__device__ float softmax(const Half* logits, int experts, float (&p)[each]) {
  const int lane = threadIdx.x % 32;
  float highest = -INFINITY;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int e = lane + 32 * j;
    p[j] = e < experts ? wide(logits[e]) : -INFINITY;
    highest = fmaxf(highest, p[j]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, step));
  float sum = 0;
#pragma unroll
  for (int j = 0; j < each; ++j) sum += expf(p[j] - highest);
  const float lse = highest + logf(lanes_sum(sum));
#pragma unroll
  for (int j = 0; j < each; ++j) p[j] = fmaxf(expf(p[j] - lse), 0.0F);  // NaN becomes 0, so that a choice is an expert
  return lse;
}

/// The most probable expert that is not taken, the earlier one where two are equal; all lanes know it and its probability.
template <int each>
__device__ int choose(const float (&p)[each], int experts, unsigned& taken, float& probability) {
  const int lane = threadIdx.x % 32;
  float best = -1;
  int expert = experts;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    if ((taken >> j & 1U) == 0 && p[j] > best && lane + 32 * j < experts) {
      best = p[j];
      expert = lane + 32 * j;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, best, step);
    const int whose = __shfl_xor_sync(0xffffffffU, expert, step);
    if (other > best || (other == best && whose < expert)) {
      best = other;
      expert = whose;
    }
  }
  if (expert % 32 == lane) taken |= 1U << (expert / 32);
  probability = best;
  return expert;
}

/// Where route keeps what its kernels hand on (route_scratch in kernels.hpp).
struct RouteScratch {
  int* choices;       ///< [N, k]
  float* weights;     ///< [N, k]
  float* sums;        ///< [E], of probabilities
  int* offsets;       ///< [E]
  int* block_counts;  ///< [E, blocks]: choices by block of tokens, then those before the block
  int blocks;
};

template <int each>
__global__ void choose_kernel(const Half* logits, RouteScratch to, float* report, RouterShape s) {
  __shared__ float share[most_experts];
  __shared__ int chosen[most_experts];
  for (int e = threadIdx.x; e < s.experts; e += threads) {
    share[e] = 0;
    chosen[e] = 0;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  float z = 0;
  const std::int64_t first = blockIdx.x * std::int64_t{together};
  for (std::int64_t t = first + threadIdx.x / 32; t < first + together && t < s.tokens; t += warps) {
    float p[each];
    const float lse = softmax<each>(logits + t * s.experts, s.experts, p);
    z += lse * lse;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      if (lane + 32 * j < s.experts) atomicAdd(&share[lane + 32 * j], p[j]);
    }
    unsigned taken = 0;
    float total = 0, own = 0;
    for (int j = 0; j < s.k; ++j) {  // lane j keeps choice j
      float probability;
      const int expert = choose<each>(p, s.experts, taken, probability);
      total += probability;
      if (lane != j) continue;
      own = probability;
      to.choices[t * s.k + j] = expert;
      atomicAdd(&chosen[expert], 1);
    }
    if (lane < s.k) to.weights[t * s.k + lane] = own / (s.renormalise ? total : 1.0F);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < s.experts; e += threads) {
    atomicAdd(&to.sums[e], share[e]);
    to.block_counts[e * to.blocks + blockIdx.x] = chosen[e];
  }
  if (s.reported != 0 && lane == 0 && z != 0)
    atomicAdd(report + 3, s.scale * s.z * z / static_cast<float>(s.tokens));  // report_slot::z_loss
}

/// A warp an expert adds up the blocks; then where each expert's slots begin, how many are kept, and what is reported.
__global__ void count_kernel(RouteScratch at, int* counts, float* report, RouterShape s) {
  __shared__ int starts[most_experts];
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e < s.experts; e += blockDim.x / 32) {
    int before = 0;
    for (int first = 0; first < at.blocks; first += 32) {
      const int block = first + lane;
      const int own = block < at.blocks ? at.block_counts[e * at.blocks + block] : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int lower = __shfl_up_sync(0xffffffffU, sum, step);
        if (lane >= step) sum += lower;
      }
      if (block < at.blocks) at.block_counts[e * at.blocks + block] = before + sum - own;
      before += __shfl_sync(0xffffffffU, sum, 31);
    }
    if (lane == 0) starts[e] = before;
  }
  __syncthreads();
  const int e = static_cast<int>(threadIdx.x), capacity = static_cast<int>(s.capacity);
  int before = 0;
  const int chosen = e < s.experts ? starts[e] : 0;
  for (int i = 0; i < e && e < s.experts; ++i) before += starts[i];
  const int kept = s.capacity > 0 && chosen > capacity ? capacity : chosen;
  float balance = 0;
  if (e < s.experts) {
    at.offsets[e] = s.capacity > 0 ? e * capacity : before;
    counts[e] = kept;
    counts[s.experts + e] = chosen;
    const auto tokens = static_cast<float>(s.tokens);
    balance = static_cast<float>(chosen) / tokens * at.sums[e] / tokens;
    if (s.reported != 0) report[s.reported + e] += static_cast<float>(chosen);
  }
  if (s.reported == 0) return;
  balance = block_sum(balance);
  const float dropped = block_sum(static_cast<float>(chosen - kept));
  if (threadIdx.x != 0) return;
  report[2] += s.scale * s.balance * static_cast<float>(s.experts) * balance;  // report_slot::balance_loss
  report[4] += dropped;                                                        // report_slot::dropped
}

/// Each choice's slot: its expert's first, the choices before its block, its rank among those of the block.
__global__ void slot_kernel(RouteScratch at, int* slots, float* weights, std::int64_t n, int k, std::int64_t capacity) {
  __shared__ int chosen[together * most_choices];
  const std::int64_t first = blockIdx.x * std::int64_t{together} * k;
  const int own = static_cast<int>(n - first < together * k ? n - first : together * k);
  for (int i = threadIdx.x; i < own; i += threads) chosen[i] = at.choices[first + i];
  __syncthreads();
  for (int i = threadIdx.x; i < own; i += threads) {
    const int expert = chosen[i];
    int rank = at.block_counts[expert * at.blocks + blockIdx.x];
    for (int before = 0; before < i; ++before) rank += chosen[before] == expert ? 1 : 0;
    const bool kept = capacity == 0 || rank < capacity;
    const int slot = at.offsets[expert] + rank;
    slots[first + i] = kept ? slot : -1;
    if (kept) weights[slot] = at.weights[first + i];
  }
}

template <int each>
__global__ void route_backward_kernel(const float* dweights, const int* slots, const Half* logits, const int* counts,
                                      Half* dlogits, RouterShape s) {
  const int lane = threadIdx.x % 32;
  const std::int64_t t = thread_index() / 32;
  if (t >= s.tokens) return;
  const int slot = lane < s.k ? slots[t * s.k + lane] : -1;
  const float arriving = slot < 0 ? 0.0F : dweights[slot];
  float p[each], d[each];
  const float lse = softmax<each>(logits + t * s.experts, s.experts, p);
  const auto tokens = static_cast<float>(s.tokens);
#pragma unroll
  for (int j = 0; j < each; ++j) {
    const int e = lane + 32 * j;
    d[j] = e < s.experts ? s.scale * s.balance * static_cast<float>(s.experts) *
                               static_cast<float>(counts[s.experts + e]) / tokens / tokens
                         : 0.0F;
  }
  unsigned taken = 0;
  int expert = -1;  // lane j keeps choice j
  float own = 0, total = 0;
  for (int j = 0; j < s.k; ++j) {
    float probability;
    const int found = choose<each>(p, s.experts, taken, probability);
    total += probability;
    if (lane != j) continue;
    expert = found;
    own = probability;
  }
  if (!s.renormalise) total = 1;
  const float mean = s.renormalise ? lanes_sum(lane < s.k ? arriving * own / total : 0.0F) : 0.0F;
  for (int choice = 0; choice < s.k; ++choice) {
    const int whose = __shfl_sync(0xffffffffU, expert, choice);
    const float pull = (__shfl_sync(0xffffffffU, arriving, choice) - mean) / total;
#pragma unroll
    for (int j = 0; j < each; ++j) {
      if (whose == lane + 32 * j) d[j] += pull;
    }
  }
  float dot = 0;
#pragma unroll
  for (int j = 0; j < each; ++j) dot += p[j] * d[j];
  dot = lanes_sum(dot);
  const float z = s.scale * s.z * 2 / tokens * lse;
#pragma unroll
  for (int j = 0; j < each; ++j) {
    if (lane + 32 * j < s.experts) dlogits[t * s.experts + lane + 32 * j] = narrow(p[j] * (d[j] - dot + z));
  }
}

/// A warp reads a token's row once and writes it to its slots.
__global__ void scatter_kernel(const Half* x, const int* slots, Half* rows, std::int64_t tokens, std::int64_t h,
                               int k) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t t = thread_index() / 32; t < tokens; t += thread_count() / 32) {
    const int own = lane < k ? slots[t * k + lane] : -1;
    for (std::int64_t first = 0; first < h; first += 256) {
      const std::int64_t i = first + 8 * lane;
      const Eight values = i < h ? load8(x + t * h + i) : Eight{};
      for (int j = 0; j < k; ++j) {
        const std::int64_t slot = __shfl_sync(0xffffffffU, own, j);
        if (slot >= 0 && i < h) store8(rows + slot * h + i, values);
      }
    }
  }
}

__global__ void gather_kernel(const Half* rows, const int* slots, Half* y, std::int64_t tokens, std::int64_t h, int k) {
  const int lane = threadIdx.x % 32;
  for (std::int64_t t = thread_index() / 32; t < tokens; t += thread_count() / 32) {
    const int own = lane < k ? slots[t * k + lane] : -1;
    for (std::int64_t first = 0; first < h; first += 256) {
      const std::int64_t i = first + 8 * lane;
      float sum[8] = {};
#pragma unroll 4
      for (int j = 0; j < k; ++j) {
        const std::int64_t slot = __shfl_sync(0xffffffffU, own, j);
        if (slot < 0 || i >= h) continue;
        float v[8];
        widen(load8(rows + slot * h + i), v);
#pragma unroll
        for (int piece = 0; piece < 8; ++piece) sum[piece] += v[piece];
      }
      if (i < h) store8(y + t * h + i, narrow8(sum));
    }
  }
}

/// Rows by (source, expert) to rows by (expert, source), or back; a row is `units` words of the type.
template <class Word>
__global__ void regroup_kernel(const Word* from, Word* to, const int* counts, RegroupShape s, std::int64_t units) {
  __shared__ int rows[most_experts], arrival[most_experts], by_expert[most_experts + 1];
  const int pieces = s.sources * s.experts;
  // Piece q is (expert q / sources, source q % sources), counted as [source, expert].
  for (int q = threadIdx.x; q < pieces; q += threads) {
    const int piece = q % s.sources * s.experts + q / s.sources;
    rows[q] = counts != nullptr ? counts[piece] : static_cast<int>(s.segment);
  }
  __syncthreads();
  for (int q = threadIdx.x; q <= pieces; q += threads) {
    int before = 0, arrived = 0;
    for (int other = 0; other < pieces; ++other) {
      if (other < q) before += rows[other];
      const int mine = q % s.sources * s.experts + q / s.sources;
      if (q < pieces && other % s.sources * s.experts + other / s.sources < mine) arrived += rows[other];
    }
    by_expert[q] = before;
    if (q < pieces) arrival[q] = arrived;
  }
  __syncthreads();
  const std::int64_t words = by_expert[pieces] * units;
  for (std::int64_t i = thread_index(); i < words; i += thread_count()) {
    const auto row = static_cast<int>(i / units);
    int low = 0, high = pieces;  // the last piece that begins at or before the row and is not empty
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (by_expert[middle] <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const std::int64_t other = (arrival[low] + row - by_expert[low]) * units + i % units;
    if (s.back) {
      to[other] = from[i];
    } else {
      to[i] = from[other];
    }
  }
}

/// Calls one of the kernels made for up to 32, 64, 128 and 256 experts.
template <class Launch>
void by_experts(int experts, Launch launch) {
  if (experts <= 32) return launch(std::integral_constant<int, 1>{});
  if (experts <= 64) return launch(std::integral_constant<int, 2>{});
  if (experts <= 128) return launch(std::integral_constant<int, 4>{});
  launch(std::integral_constant<int, 8>{});
}

std::int64_t blocks_of(const RouterShape& s) { return (s.tokens + together - 1) / together; }

}  // namespace

std::size_t route_scratch(const RouterShape& s) {
  return static_cast<std::size_t>(2 * s.tokens * s.k + s.experts * (2 + blocks_of(s))) * sizeof(int);
}

void route(const Half* logits, int* slots, float* weights, int* counts, float* report, void* scratch, RouterShape shape,
           cudaStream_t stream) {
  const std::int64_t n = shape.tokens * shape.k;
  const auto experts = static_cast<std::size_t>(shape.experts);
  RouteScratch at{};
  at.choices = static_cast<int*>(scratch);
  at.weights = reinterpret_cast<float*>(at.choices + n);
  at.sums = at.weights + n;
  at.offsets = reinterpret_cast<int*>(at.sums + shape.experts);
  at.block_counts = at.offsets + shape.experts;
  at.blocks = static_cast<int>(blocks_of(shape));
  cudaMemsetAsync(at.sums, 0, experts * sizeof(float), stream);
  if (shape.capacity > 0)
    cudaMemsetAsync(weights, 0, experts * static_cast<std::size_t>(shape.capacity) * sizeof(float), stream);
  by_experts(shape.experts, [&](auto each) {
    choose_kernel<decltype(each)::value>
        <<<static_cast<unsigned>(at.blocks), threads, 0, stream>>>(logits, at, report, shape);
  });
  count_kernel<<<1, 1024, 0, stream>>>(at, counts, report, shape);
  slot_kernel<<<static_cast<unsigned>(at.blocks), threads, 0, stream>>>(at, slots, weights, n, shape.k, shape.capacity);
}
void route_backward(const float* dweights, const int* slots, const Half* logits, const int* counts, Half* dlogits,
                    RouterShape shape, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((shape.tokens + warps - 1) / warps);
  by_experts(shape.experts, [&](auto each) {
    route_backward_kernel<decltype(each)::value>
        <<<blocks, threads, 0, stream>>>(dweights, slots, logits, counts, dlogits, shape);
  });
}
void scatter_rows(const Half* x, const int* slots, Half* rows, std::int64_t tokens, std::int64_t h, int k,
                  cudaStream_t stream) {
  scatter_kernel<<<blocks_for(32 * tokens), threads, 0, stream>>>(x, slots, rows, tokens, h, k);
}
void gather_rows(const Half* rows, const int* slots, Half* y, std::int64_t tokens, std::int64_t h, int k,
                 cudaStream_t stream) {
  gather_kernel<<<blocks_for(32 * tokens), threads, 0, stream>>>(rows, slots, y, tokens, h, k);
}
void regroup(const void* from, void* to, const int* counts, RegroupShape shape, cudaStream_t stream) {
  if (shape.row_bytes % 16 == 0) {
    const std::int64_t units = shape.row_bytes / 16;
    regroup_kernel<<<blocks_for(shape.most * units, processors * 4), threads, 0, stream>>>(
        static_cast<const uint4*>(from), static_cast<uint4*>(to), counts, shape, units);
  } else {
    const std::int64_t units = shape.row_bytes / 4;
    regroup_kernel<<<blocks_for(shape.most * units, processors * 4), threads, 0, stream>>>(
        static_cast<const float*>(from), static_cast<float*>(to), counts, shape, units);
  }
}

}  // namespace plimsoll::cuda
