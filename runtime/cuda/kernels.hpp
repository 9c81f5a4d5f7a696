// The routines that no library has, as launches on a stream: bf16 activations, fp32 arithmetic.  Each kernel is the formula
// of its host counterpart (runtime/host); sizes as in planner/step/call.hpp.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace plimsoll::cuda {

using Half = __nv_bfloat16;  ///< 16-bit numbers of this backend

void add(const Half* a, const Half* b, Half* c, std::int64_t n, cudaStream_t stream);
void embedding(const std::int64_t* ids, const Half* table, Half* y, std::int64_t tokens, std::int64_t h,
               cudaStream_t stream);
/// @param scratch [1 + 3 V + N] ints
void embedding_backward(const Half* dy, const std::int64_t* ids, Half* dtable, int* scratch, std::int64_t tokens,
                        std::int64_t h, std::int64_t vocab, bool add, cudaStream_t stream);

struct NormShape {
  std::int64_t rows, h;
  float eps;
};
/// @param branch null: none; stream_out is then not written
void norm(const Half* x, const Half* branch, const Half* w, Half* stream_out, Half* y, float* rstd, NormShape shape,
          cudaStream_t stream);
/// Blocks whose partial sums of dw the scratch holds: [norm_blocks, h] floats.
inline constexpr int norm_blocks = 1056;
void norm_backward(const Half* dy, const Half* dstream, const Half* x, const float* rstd, const Half* w, Half* dx,
                   Half* dw, float* scratch, NormShape shape, bool add, cudaStream_t stream);

struct HeadShape {
  std::int64_t tokens;
  int q, kv, d, sequence;
  float eps;
  const float* frequencies;  ///< on the device, d / 2
};
void rotary(Half* qkv, HeadShape shape, bool back, cudaStream_t stream);
void head_norm_rotary(const Half* qkv, const Half* wq, const Half* wk, Half* turned, HeadShape shape,
                      cudaStream_t stream);
/// @param scratch [norm_blocks, 2 d] floats
void head_norm_rotary_backward(Half* gradient, const Half* qkv, const Half* wq, const Half* wk, Half* dwq, Half* dwk,
                               float* scratch, HeadShape shape, bool add, cudaStream_t stream);

/// Rows of a buffer that hold something: the sum of counts on the device, or all where there are none.
struct LiveRows {
  std::int64_t most;
  const int* counts;
  int count_numel;
};
/// @param weights one per row, or null
void swiglu(const Half* joined, const float* weights, Half* y, LiveRows rows, std::int64_t width, cudaStream_t stream);
void swiglu_backward(const Half* dy, const Half* joined, const float* weights, Half* d, float* dweights, LiveRows rows,
                     std::int64_t width, cudaStream_t stream);

/// @param loss,report where scale times the sum of the losses is added; loss is set to 0 before, if first
void cross_entropy(Half* logits, const std::int64_t* labels, float* loss, float* report, std::int64_t rows,
                   std::int64_t vocab, bool first, float scale, cudaStream_t stream);

struct RouterShape {
  std::int64_t tokens;
  int experts, k;
  std::int64_t capacity;
  bool renormalise;
  std::int64_t reported;
  float scale, balance, z;
};
inline constexpr int most_experts = 256, most_choices = 16;  ///< of a router; choices of a token
/// Bytes of route's scratch.
std::size_t route_scratch(const RouterShape& shape);
void route(const Half* logits, int* slots, float* weights, int* counts, float* report, void* scratch, RouterShape shape,
           cudaStream_t stream);
void route_backward(const float* dweights, const int* slots, const Half* logits, const int* counts, Half* dlogits,
                    RouterShape shape, cudaStream_t stream);
void scatter_rows(const Half* x, const int* slots, Half* rows, std::int64_t tokens, std::int64_t h, int k,
                  cudaStream_t stream);
void gather_rows(const Half* rows, const int* slots, Half* y, std::int64_t tokens, std::int64_t h, int k,
                 cudaStream_t stream);

struct RegroupShape {
  std::int64_t most;  ///< rows of the buffers
  std::int64_t row_bytes;
  int experts, sources;
  std::int64_t segment;  ///< rows of each source and expert; 0: as counted
  bool back;
};
/// @param counts [sources, experts] on the device, if segment is 0
void regroup(const void* from, void* to, const int* counts, RegroupShape shape, cudaStream_t stream);

/// sum[n] = parts[count, n] added in order, in fp32; rows of parts are `stride` apart.
void sum_parts(const float* parts, std::int64_t stride, int count, float* sum, std::int64_t n, cudaStream_t stream);
void sum_parts(const Half* parts, std::int64_t stride, int count, Half* sum, std::int64_t n, cudaStream_t stream);
/// Loads these sums: the driver may wait for the device when a kernel is first launched.
void load_sums();
/// shard += part (+ other), or = if it is the first; then report's squared norm += scale x sum shard^2.
/// @param other null: there is one part; report null: no norm
void accumulate(const Half* part, const Half* other, float* shard, float* report, std::int64_t n, bool first,
                float scale, cudaStream_t stream);

/// w <- keep w - step m / (sqrt(v per_correction2) + epsilon).
struct AdamStep {
  float clip, beta1, beta2, epsilon;
  float keep;             ///< 1 - learning rate x weight decay
  float step;             ///< learning rate / (1 - beta1^t)
  float per_correction2;  ///< 1 / (1 - beta2^t)
  bool clears;            ///< the gradient, when it has been read
};
/// @param master null: the weights are their own master, in bf16
void adamw(float* gradient, float* master, float* first, float* second, Half* weights, const float* report,
           std::int64_t n, AdamStep step, cudaStream_t stream);

}  // namespace plimsoll::cuda
