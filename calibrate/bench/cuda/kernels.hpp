// Own kernels for the access patterns that no library call has alone.  Each states what it reads and writes per element, from
// which its bytes follow; grids stride, blocks of 256 threads, 16-byte accesses where the pattern allows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace plimsoll::calibrate::cuda {

void fill_random_bf16(void* to, std::int64_t elements, unsigned seed, cudaStream_t stream);
void fill_random_fp32(void* to, std::int64_t elements, unsigned seed, cudaStream_t stream);

// bf16 unless said; elements are multiples of 8.
void launch_add(const void* a, const void* b, void* c, std::int64_t elements, cudaStream_t stream);  ///< 2 + 2 -> 2 B
void launch_silu(const void* a, void* b, std::int64_t elements, cudaStream_t stream);                ///< 2 -> 2 B
void launch_fill(void* a, std::int64_t elements, cudaStream_t stream);                               ///< -> 2 B
void launch_upcast(const void* a, void* b, std::int64_t elements, cudaStream_t stream);              ///< 2 -> 4 B
void launch_swiglu(const void* gate, const void* up, void* out, std::int64_t elements,
                   cudaStream_t stream);  ///< 4 -> 2 B
/// d_out, gate, up -> d_gate, d_up: 6 -> 4 B
void launch_swiglu_backward(const void* d_out, const void* gate, const void* up, void* d_gate, void* d_up,
                            std::int64_t elements, cudaStream_t stream);
/// RMSNorm of rows of `width`: 2 -> 2 B, and the weight once a row from the cache
void launch_norm(const void* x, const void* weight, void* y, std::int64_t rows, std::int64_t width,
                 cudaStream_t stream);
/// x, d_y -> d_x: 4 -> 2 B
void launch_norm_backward(const void* x, const void* weight, const void* d_y, void* d_x, std::int64_t rows,
                          std::int64_t width, cudaStream_t stream);
/// Rotates pairs (i, i + d/2) of heads of size d in place: 2 -> 2 B
void launch_rotary(void* x, const float* cosines, const float* sines, std::int64_t rows, std::int64_t heads,
                   std::int64_t d, cudaStream_t stream);
/// Rows of `width` out of a table: 2 -> 2 B
void launch_gather(const void* table, const std::int64_t* rows, void* out, std::int64_t count, std::int64_t width,
                   cudaStream_t stream);
/// Adds rows into a table of fp32 with atomics: 2 -> 4 + 4 B
void launch_scatter_add(const void* rows_in, const std::int64_t* rows, float* table, std::int64_t count,
                        std::int64_t width, cudaStream_t stream);
/// Cross entropy of fp32-accumulated rows: logits -> gradient in place, and a loss a row: reads 2 x 2 B, writes 2 B
void launch_softmax_loss(void* logits, const std::int64_t* labels, float* loss, std::int64_t rows, std::int64_t vocab,
                         cudaStream_t stream);
void launch_reduce_last(const float* x, float* sums, std::int64_t rows, std::int64_t width,
                        cudaStream_t stream);  ///< 4 B ->
void launch_reduce_rows(const void* x, float* sums, std::int64_t rows, std::int64_t width,
                        cudaStream_t stream);  ///< 2 B ->
/// Copies the second half of each row of `width` into a dense tensor, element by element: 2 -> 2 B
void launch_strided_copy(const void* x, void* y, std::int64_t rows, std::int64_t width, cudaStream_t stream);
/// AdamW: parameter, first and second moment fp32 in place, gradient fp32 read: 16 -> 12 B
void launch_adamw(float* parameters, const float* gradients, float* first, float* second, std::int64_t elements,
                  cudaStream_t stream);
/// Does nothing; one thread.
void launch_empty(cudaStream_t stream);
/// Keeps the stream busy for about `microseconds`, so that a queue can fill behind it.
void launch_delay(double microseconds, cudaStream_t stream);

}  // namespace plimsoll::calibrate::cuda
