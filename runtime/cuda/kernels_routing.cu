// Router and movement of rows (runtime/cuda/kernels.hpp).  A warp takes a token; slots are counted by one block an expert in
// the order of tokens, so that they are the same in every run.
#include "runtime/cuda/kernels.hpp"

namespace plimsoll::cuda {

namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int most_each = most_experts / 32;  ///< experts of a lane
constexpr int most_choices = 16;

__device__ float wide(Half x) { return __bfloat162float(x); }

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

/// Probabilities of the lane's experts (lane, lane + 32, ...); returns the log of the sum of exponentials.
__device__ float softmax(const Half* logits, int experts, float* p) {
  const int lane = threadIdx.x % 32;
  float highest = -INFINITY;
  for (int j = 0; j < most_each; ++j) {
    const int e = lane + 32 * j;
    p[j] = e < experts ? wide(logits[e]) : -INFINITY;
    highest = fmaxf(highest, p[j]);
  }
  for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, step));
  float sum = 0;
  for (int j = 0; j < most_each; ++j) sum += expf(p[j] - highest);
  const float lse = highest + logf(warp_sum(sum));
  for (int j = 0; j < most_each; ++j) p[j] = expf(p[j] - lse);
  return lse;
}

/// The k most probable experts, the earlier one where two are equal; all lanes know them and their probabilities.
__device__ void choose(const float* p, int experts, int k, int* chosen, float* probability) {
  const int lane = threadIdx.x % 32;
  unsigned taken = 0;
  for (int choice = 0; choice < k; ++choice) {
    float best = -1;
    int expert = experts;
    for (int j = 0; j < most_each; ++j) {
      if ((taken >> j & 1U) == 0 && p[j] > best && lane + 32 * j < experts) {
        best = p[j];
        expert = lane + 32 * j;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffU, best, step);
      const int whose = __shfl_xor_sync(0xffffffffU, expert, step);
      if (other > best || (other == best && whose < expert)) {
        best = other;
        expert = whose;
      }
    }
    chosen[choice] = expert;
    probability[choice] = best;
    if (expert % 32 == lane) taken |= 1U << (expert / 32);
  }
}

__global__ void choose_kernel(const Half* logits, int* choices, float* weights, float* sums, int* counts, float* report,
                              RouterShape s) {
  __shared__ float share[most_experts];
  for (int e = threadIdx.x; e < s.experts; e += blockDim.x) share[e] = 0;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  float z = 0;
  for (std::int64_t t = blockIdx.x * std::int64_t{warps} + threadIdx.x / 32; t < s.tokens;
       t += std::int64_t{gridDim.x} * warps) {
    float p[most_each], probability[most_choices];
    int chosen[most_choices];
    const float lse = softmax(logits + t * s.experts, s.experts, p);
    z += lse * lse;
    for (int j = 0; j < most_each; ++j) {
      if (lane + 32 * j < s.experts) atomicAdd(&share[lane + 32 * j], p[j]);
    }
    choose(p, s.experts, s.k, chosen, probability);
    float total = 0;
    for (int j = 0; j < s.k; ++j) total += probability[j];
    if (lane == 0) {
      for (int j = 0; j < s.k; ++j) {
        choices[t * s.k + j] = chosen[j];
        weights[t * s.k + j] = probability[j] / (s.renormalise ? total : 1.0F);
        atomicAdd(&counts[s.experts + chosen[j]], 1);
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < s.experts; e += blockDim.x) atomicAdd(&sums[e], share[e]);
  if (s.reported != 0 && lane == 0 && z != 0)
    atomicAdd(report + 3, s.scale * s.z * z / static_cast<float>(s.tokens));  // report_slot::z_loss
}

/// Where each expert's slots begin, how many are kept, and what is reported: one block.
__global__ void count_kernel(int* counts, const float* sums, int* offsets, float* report, RouterShape s) {
  if (threadIdx.x != 0) return;
  int at = 0, dropped = 0;
  float balance = 0;
  const auto tokens = static_cast<float>(s.tokens);
  for (int e = 0; e < s.experts; ++e) {
    const int chosen = counts[s.experts + e];
    const int kept = s.capacity > 0 && chosen > s.capacity ? static_cast<int>(s.capacity) : chosen;
    offsets[e] = s.capacity > 0 ? e * static_cast<int>(s.capacity) : at;
    counts[e] = kept;
    at += chosen;
    dropped += chosen - kept;
    balance += static_cast<float>(chosen) / tokens * sums[e] / tokens;
    if (s.reported != 0) report[s.reported + e] += static_cast<float>(chosen);
  }
  if (s.reported == 0) return;
  report[2] += s.scale * s.balance * static_cast<float>(s.experts) * balance;  // report_slot::balance_loss
  report[4] += static_cast<float>(dropped);                                    // report_slot::dropped
}

/// A block an expert: walks all choices in order and numbers its own.
__global__ void slot_kernel(const int* choices, const float* chosen_weights, const int* offsets, int* slots,
                            float* weights, std::int64_t n, std::int64_t capacity) {
  __shared__ int before[warps];
  const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int done = 0;
  for (std::int64_t first = 0; first < n; first += threads) {
    const std::int64_t i = first + threadIdx.x;
    const bool mine = i < n && choices[i] == expert;
    const unsigned votes = __ballot_sync(0xffffffffU, mine);
    if (lane == 0) before[warp] = __popc(votes);
    __syncthreads();
    int rank = done + __popc(votes & ((1U << lane) - 1));
    int all = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) rank += before[w];
      all += before[w];
    }
    if (mine) {
      const bool kept = capacity == 0 || rank < capacity;
      const int slot = offsets[expert] + rank;
      slots[i] = kept ? slot : -1;
      if (kept) weights[slot] = chosen_weights[i];
    }
    done += all;
    __syncthreads();
  }
}

__global__ void route_backward_kernel(const float* dweights, const int* slots, const Half* logits, const int* counts,
                                      Half* dlogits, RouterShape s) {
  const int lane = threadIdx.x % 32;
  const std::int64_t t = blockIdx.x * std::int64_t{warps} + threadIdx.x / 32;
  if (t >= s.tokens) return;
  float p[most_each], d[most_each], probability[most_choices], dw[most_choices];
  int chosen[most_choices];
  const float lse = softmax(logits + t * s.experts, s.experts, p);
  choose(p, s.experts, s.k, chosen, probability);
  const auto tokens = static_cast<float>(s.tokens);
  for (int j = 0; j < most_each; ++j) {
    const int e = lane + 32 * j;
    d[j] = e < s.experts ? s.scale * s.balance * static_cast<float>(s.experts) *
                               static_cast<float>(counts[s.experts + e]) / tokens / tokens
                         : 0.0F;
  }
  float total = 0, mean = 0;
  for (int j = 0; j < s.k; ++j) {
    const int slot = slots[t * s.k + j];
    dw[j] = slot < 0 ? 0.0F : dweights[slot];
    total += probability[j];
  }
  if (!s.renormalise) total = 1;
  for (int j = 0; j < s.k && s.renormalise; ++j) mean += dw[j] * probability[j] / total;
  for (int j = 0; j < s.k; ++j) {
    if (chosen[j] % 32 == lane) d[chosen[j] / 32] += (dw[j] - mean) / total;
  }
  float dot = 0;
  for (int j = 0; j < most_each; ++j) dot += p[j] * d[j];
  dot = warp_sum(dot);
  const float z = s.scale * s.z * 2 / tokens * lse;
  for (int j = 0; j < most_each; ++j) {
    if (lane + 32 * j < s.experts) dlogits[t * s.experts + lane + 32 * j] = __float2bfloat16(p[j] * (d[j] - dot + z));
  }
}

__global__ void scatter_kernel(const Half* x, const int* slots, Half* rows, std::int64_t h, int k) {
  const int slot = slots[blockIdx.x];
  if (slot < 0) return;
  const Half* from = x + blockIdx.x / k * h;
  for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x)
    *reinterpret_cast<__nv_bfloat162*>(rows + slot * h + i) = *reinterpret_cast<const __nv_bfloat162*>(from + i);
}

__global__ void gather_kernel(const Half* rows, const int* slots, Half* y, std::int64_t h, int k) {
  const std::int64_t t = blockIdx.x;
  for (std::int64_t i = 2 * threadIdx.x; i < h; i += 2 * blockDim.x) {
    float2 sum{0, 0};
    for (int j = 0; j < k; ++j) {
      const int slot = slots[t * k + j];
      if (slot < 0) continue;
      const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(rows + slot * h + i));
      sum.x += v.x;
      sum.y += v.y;
    }
    *reinterpret_cast<__nv_bfloat162*>(y + t * h + i) = __floats2bfloat162_rn(sum.x, sum.y);
  }
}

}  // namespace

void route(const Half* logits, int* slots, float* weights, int* counts, float* report, void* scratch, RouterShape shape,
           cudaStream_t stream) {
  const std::int64_t n = shape.tokens * shape.k;
  const auto experts = static_cast<std::size_t>(shape.experts);
  int* choices = static_cast<int*>(scratch);
  auto* chosen_weights = reinterpret_cast<float*>(choices + n);
  float* sums = chosen_weights + n;
  int* offsets = reinterpret_cast<int*>(sums + shape.experts);
  cudaMemsetAsync(counts, 0, 2 * experts * sizeof(int), stream);
  cudaMemsetAsync(sums, 0, experts * sizeof(float), stream);
  if (shape.capacity > 0)
    cudaMemsetAsync(weights, 0, experts * static_cast<std::size_t>(shape.capacity) * sizeof(float), stream);
  choose_kernel<<<264, threads, 0, stream>>>(logits, choices, chosen_weights, sums, counts, report, shape);
  count_kernel<<<1, 32, 0, stream>>>(counts, sums, offsets, report, shape);
  slot_kernel<<<static_cast<unsigned>(shape.experts), threads, 0, stream>>>(choices, chosen_weights, offsets, slots,
                                                                            weights, n, shape.capacity);
}
void route_backward(const float* dweights, const int* slots, const Half* logits, const int* counts, Half* dlogits,
                    RouterShape shape, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((shape.tokens + warps - 1) / warps);
  route_backward_kernel<<<blocks, threads, 0, stream>>>(dweights, slots, logits, counts, dlogits, shape);
}
void scatter_rows(const Half* x, const int* slots, Half* rows, std::int64_t tokens, std::int64_t h, int k,
                  cudaStream_t stream) {
  scatter_kernel<<<static_cast<unsigned>(tokens * k), threads, 0, stream>>>(x, slots, rows, h, k);
}
void gather_rows(const Half* rows, const int* slots, Half* y, std::int64_t tokens, std::int64_t h, int k,
                 cudaStream_t stream) {
  gather_kernel<<<static_cast<unsigned>(tokens), threads, 0, stream>>>(rows, slots, y, h, k);
}

}  // namespace plimsoll::cuda
