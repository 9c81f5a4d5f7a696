// Norms of rows and of heads, rotary embedding (runtime/cuda/kernels.hpp).  All are bound by memory: every number is read once, 16
// bytes at a time, and stays in registers until its row's sum is known.
#include <algorithm>

#include "runtime/cuda/device_math.cuh"

namespace plimsoll::cuda {

namespace {

constexpr int most_row_threads = 512;  ///< of a block that takes rows

/// A block a row; a thread keeps `each` pieces of 8 numbers, blockDim pieces apart.
template <int each>
__global__ void norm_kernel(const Half* x, const Half* branch, const Half* w, Half* out, Half* y, float* rstd,
                            std::int64_t h, float eps) {
  const std::int64_t row = blockIdx.x * h;
  float v[each][8];
  float squares = 0;
#pragma unroll
  for (int piece = 0; piece < each; ++piece) {
    const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
    if (i >= h) break;
    widen(load8(x + row + i), v[piece]);
    if (branch != nullptr) {
      float b[8];
      widen(load8(branch + row + i), b);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[piece][j] += b[j];
      const Eight sum = narrow8(v[piece]);
      store8(out + row + i, sum);
      widen(sum, v[piece]);  // what the stream holds is what is normed
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v[piece][j] * v[piece][j];
  }
  const float r = rsqrtf(block_sum(squares) / static_cast<float>(h) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
#pragma unroll
  for (int piece = 0; piece < each; ++piece) {
    const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
    if (i >= h) break;
    float g[8];
    widen(load8(w + i), g);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] *= v[piece][j] * r;
    store8(y + row + i, narrow8(g));
  }
}

/// The numbers of a row that a thread reads, as they stand in memory: few registers, so that the next row can be on its way while
/// this one's sum is made.
template <int each>
struct RowRead {
  Eight dy[each], x[each], dstream[each];
  float rstd;
};
template <int each>
__device__ void read_row(RowRead<each>& to, const Half* dy, const Half* dstream, const Half* x, const float* rstd,
                         std::int64_t row, std::int64_t h) {
  to.rstd = rstd[row];
#pragma unroll
  for (int piece = 0; piece < each; ++piece) {
    const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
    if (i >= h) break;
    to.dy[piece] = load8(dy + row * h + i);
    to.x[piece] = load8(x + row * h + i);
    if (dstream != nullptr) to.dstream[piece] = load8(dstream + row * h + i);
  }
}

/// Each block takes every gridDim-th row; a thread keeps dw of its columns.  dx may stand where dstream does.
template <int each>
__global__ void __launch_bounds__(most_row_threads, each == 1 ? 2 : 1)
    norm_backward_kernel(const Half* __restrict__ dy, const Half* dstream, const Half* __restrict__ x,
                         const float* __restrict__ rstd, const Half* __restrict__ w, Half* dx,
                         float* __restrict__ partial, std::int64_t rows, std::int64_t h) {
  __shared__ float parts[2][32];  // in turns: who is ahead writes where nobody reads any more
  float dw[each][8] = {};
  Eight weights[each];
#pragma unroll
  for (int piece = 0; piece < each; ++piece) {
    const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
    if (i < h) weights[piece] = load8(w + i);
  }
  RowRead<each> next;
  read_row(next, dy, dstream, x, rstd, blockIdx.x, h);
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    const RowRead<each> now = next;
    if (row + gridDim.x < rows) read_row(next, dy, dstream, x, rstd, row + gridDim.x, h);
    float dot = 0;
#pragma unroll
    for (int piece = 0; piece < each; ++piece) {
      const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
      if (i >= h) break;
      float g[8], normed[8], scale[8];
      widen(now.dy[piece], g);
      widen(now.x[piece], normed);
      widen(weights[piece], scale);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        normed[j] *= now.rstd;
        dw[piece][j] += g[j] * normed[j];
        dot += scale[j] * g[j] * normed[j];
      }
    }
    dot = lanes_sum(dot);
    if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = dot;
    __syncthreads();
    float mean = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) mean += parts[turn][i];
    mean /= static_cast<float>(h);
#pragma unroll
    for (int piece = 0; piece < each; ++piece) {
      const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
      if (i >= h) break;
      float g[8], normed[8], scale[8], d[8] = {};
      widen(now.dy[piece], g);
      widen(now.x[piece], normed);
      widen(weights[piece], scale);
      if (dstream != nullptr) widen(now.dstream[piece], d);
#pragma unroll
      for (int j = 0; j < 8; ++j) d[j] += now.rstd * (scale[j] * g[j] - normed[j] * now.rstd * mean);
      store8(dx + row * h + i, narrow8(d));
    }
  }
#pragma unroll
  for (int piece = 0; piece < each; ++piece) {
    const std::int64_t i = 8 * (threadIdx.x + std::int64_t{piece} * blockDim.x);
    for (int j = 0; j < 8 && i < h; ++j) partial[blockIdx.x * h + i + j] = dw[piece][j];
  }
}

/// out (+)= sum over the parts; a block takes 32 columns, a warp every 32nd part.
__global__ void sum_partials(const float* partial, Half* out, std::int64_t columns, std::int64_t stride, int parts,
                             bool add) {
  __shared__ float sums[32][33];
  const std::int64_t i = blockIdx.x * std::int64_t{32} + threadIdx.x;
  float sum = 0;
  for (int part = threadIdx.y; part < parts && i < columns; part += 32) sum += partial[part * stride + i];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = lanes_sum(sums[threadIdx.x][threadIdx.y]);
  const std::int64_t column = blockIdx.x * std::int64_t{32} + threadIdx.y;
  if (threadIdx.x == 0 && column < columns) out[column] = narrow(sum + (add ? wide(out[column]) : 0.0F));
}

void launch_sum(const float* partial, Half* out, std::int64_t columns, std::int64_t stride, int parts, bool add,
                cudaStream_t stream) {
  sum_partials<<<static_cast<unsigned>((columns + 31) / 32), dim3(32, 32), 0, stream>>>(partial, out, columns, stride,
                                                                                        parts, add);
}

/// Angles of the eight elements from `first` on of a head's first or second half, at one position.
template <int d>
__device__ void angles(const HeadShape& shape, std::int64_t token, int first, float (&sine)[8], float (&cosine)[8]) {
  const auto position = static_cast<float>(token % shape.sequence);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    // Turns are taken off in two parts of 2 pi, then the hardware's sine is good to 2^-21: far below a bf16's 2^-9.
    const float angle = position * shape.frequencies[(first + j) % (d / 2)];
    const float turns = rintf(angle * 0.15915494F);
    const float rest = fmaf(turns, 1.7484555e-7F, fmaf(turns, -6.2831855F, angle));
    __sincosf(rest, &sine[j], &cosine[j]);
  }
}

/// Turns a head whose eighths lie in d / 8 lanes: element i pairs with i + d / 2, half the lanes away.
template <int d>
__device__ void turn(float (&v)[8], const float (&sine)[8], const float (&cosine)[8], bool second, bool back) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float other = __shfl_xor_sync(0xffffffffU, v[j], d / 16);
    v[j] = v[j] * cosine[j] + (second != back ? other : -other) * sine[j];
  }
}

/// Where a lane stands: a warp takes tokens, d / 8 lanes a head, the warp's groups of lanes every other head.
template <int d>
struct Place {
  static constexpr int lanes = d / 8, groups = 32 / lanes;
  int group = static_cast<int>(threadIdx.x) % 32 / lanes, piece = static_cast<int>(threadIdx.x) % lanes;
  std::int64_t warp = thread_index() / 32, warps = thread_count() / 32;
};

template <int d>
__global__ void rotary_kernel(Half* qkv, HeadShape shape, bool back) {
  const Place<d> at;
  const std::int64_t width = std::int64_t{shape.q + 2 * shape.kv} * d;
  for (std::int64_t t = at.warp; t < shape.tokens; t += at.warps) {
    float sine[8], cosine[8];
    angles<d>(shape, t, 8 * at.piece, sine, cosine);
    for (int first = 0; first < shape.q + shape.kv; first += at.groups) {
      const int head = first + at.group;
      const bool live = head < shape.q + shape.kv;
      Half* x = qkv + t * width + (live ? head : 0) * d + 8 * at.piece;
      float v[8];
      widen(load8(x), v);
      turn<d>(v, sine, cosine, at.piece >= at.lanes / 2, back);
      if (live) store8(x, narrow8(v));
    }
  }
}

template <int d>
__global__ void head_norm_kernel(const Half* qkv, const Half* wq, const Half* wk, Half* out, HeadShape shape) {
  const Place<d> at;
  const int heads = shape.q + shape.kv, all = heads + shape.kv;
  const std::int64_t width = std::int64_t{all} * d;
  float q[8], k[8];
  widen(load8(wq + 8 * at.piece), q);
  widen(load8(wk + 8 * at.piece), k);
  for (std::int64_t t = at.warp; t < shape.tokens; t += at.warps) {
    float sine[8], cosine[8];
    angles<d>(shape, t, 8 * at.piece, sine, cosine);
    for (int first = 0; first < all; first += at.groups) {
      const int head = first + at.group;
      const bool live = head < all;
      const std::int64_t place = t * width + (live ? head : 0) * d + 8 * at.piece;
      const Eight kept = load8(qkv + place);
      float v[8];
      widen(kept, v);
      float squares = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
      const float r = rsqrtf(lanes_sum<d / 8>(squares) / d + shape.eps);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] *= r * (head < shape.q ? q[j] : k[j]);
      turn<d>(v, sine, cosine, at.piece >= at.lanes / 2, false);
      if (live) store8(out + place, head < heads ? narrow8(v) : kept);
    }
  }
}

/// Partial sums of dwq | dwk by block; a lane keeps those of its eighth of a head.
template <int d>
__global__ void head_norm_backward_kernel(Half* gradient, const Half* qkv, const Half* wq, const Half* wk,
                                          float* partial, HeadShape shape) {
  __shared__ float sums[2 * d];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * d; i += static_cast<int>(blockDim.x)) sums[i] = 0;
  __syncthreads();
  const Place<d> at;
  const int heads = shape.q + shape.kv;
  const std::int64_t width = std::int64_t{heads + shape.kv} * d;
  float q[8], k[8], dq[8] = {}, dk[8] = {};
  widen(load8(wq + 8 * at.piece), q);
  widen(load8(wk + 8 * at.piece), k);
  for (std::int64_t t = at.warp; t < shape.tokens; t += at.warps) {
    float sine[8], cosine[8];
    angles<d>(shape, t, 8 * at.piece, sine, cosine);
    for (int first = 0; first < heads; first += at.groups) {
      const int head = first + at.group;
      const bool live = head < heads, query = head < shape.q;
      const std::int64_t place = t * width + (live ? head : 0) * d + 8 * at.piece;
      float x[8], g[8];
      widen(load8(qkv + place), x);
      widen(load8(gradient + place), g);
      turn<d>(g, sine, cosine, at.piece >= at.lanes / 2, true);
      float squares = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += x[j] * x[j];
      const float r = rsqrtf(lanes_sum<d / 8>(squares) / d + shape.eps);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[j] *= r;
        const float dw = live ? g[j] * x[j] : 0.0F;
        dq[j] += query ? dw : 0.0F;
        dk[j] += query ? 0.0F : dw;
        g[j] *= query ? q[j] : k[j];
        dot += g[j] * x[j];
      }
      const float mean = lanes_sum<d / 8>(dot) / d;
#pragma unroll
      for (int j = 0; j < 8; ++j) g[j] = r * (g[j] - x[j] * mean);
      if (live) store8(gradient + place, narrow8(g));
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int step = at.lanes; step < 32; step *= 2) {
      dq[j] += __shfl_xor_sync(0xffffffffU, dq[j], step);
      dk[j] += __shfl_xor_sync(0xffffffffU, dk[j], step);
    }
    if (at.group != 0) continue;
    atomicAdd(&sums[8 * at.piece + j], dq[j]);
    atomicAdd(&sums[d + 8 * at.piece + j], dk[j]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * d; i += static_cast<int>(blockDim.x))
    partial[blockIdx.x * 2 * d + i] = sums[i];
}

/// Threads for a row of h numbers, 8 a thread, and how many pieces each of them takes.
struct RowBlock {
  unsigned threads;
  std::int64_t each;
  explicit RowBlock(std::int64_t h) {
    const std::int64_t pieces = (h / 8 + 31) / 32 * 32;
    threads = static_cast<unsigned>(pieces < most_row_threads ? pieces : most_row_threads);
    each = (h / 8 + threads - 1) / threads;
  }
};

/// Calls one of the kernels made for heads of 16 to 256 numbers.
template <class Launch>
void by_head_size(int d, Launch launch) {
  switch (d) {
    case 16: return launch(std::integral_constant<int, 16>{});
    case 32: return launch(std::integral_constant<int, 32>{});
    case 64: return launch(std::integral_constant<int, 64>{});
    case 128: return launch(std::integral_constant<int, 128>{});
    default: return launch(std::integral_constant<int, 256>{});
  }
}
/// Calls one of the kernels made for 1 or 2 pieces a thread: rows of up to 8192 numbers.
template <class Launch>
void by_pieces(std::int64_t each, Launch launch) {
  if (each == 1) return launch(std::integral_constant<int, 1>{});
  launch(std::integral_constant<int, 2>{});
}

unsigned token_blocks(std::int64_t tokens) { return blocks_for(32 * tokens, norm_blocks); }

}  // namespace

void norm(const Half* x, const Half* branch, const Half* w, Half* stream_out, Half* y, float* rstd, NormShape shape,
          cudaStream_t stream) {
  const RowBlock block(shape.h);
  by_pieces(block.each, [&](auto each) {
    norm_kernel<decltype(each)::value><<<static_cast<unsigned>(shape.rows), block.threads, 0, stream>>>(
        x, branch, w, stream_out, y, rstd, shape.h, shape.eps);
  });
}
void norm_backward(const Half* dy, const Half* dstream, const Half* x, const float* rstd, const Half* w, Half* dx,
                   Half* dw, float* scratch, NormShape shape, bool add, cudaStream_t stream) {
  const RowBlock block(shape.h);
  int blocks = 0;
  by_pieces(block.each, [&](auto each) {
    const auto kernel = norm_backward_kernel<decltype(each)::value>;
    int resident = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(block.threads), 0);
    // As many blocks as are resident, or fewer, so that each takes as many rows.
    const std::int64_t most = std::clamp(processors * resident, 1, norm_blocks), turns = (shape.rows + most - 1) / most;
    blocks = static_cast<int>((shape.rows + turns - 1) / turns);
    kernel<<<blocks, block.threads, 0, stream>>>(dy, dstream, x, rstd, w, dx, scratch, shape.rows, shape.h);
  });
  launch_sum(scratch, dw, shape.h, shape.h, blocks, add, stream);
}
void rotary(Half* qkv, HeadShape shape, bool back, cudaStream_t stream) {
  by_head_size(shape.d, [&](auto d) {
    rotary_kernel<decltype(d)::value><<<token_blocks(shape.tokens), threads, 0, stream>>>(qkv, shape, back);
  });
}
void head_norm_rotary(const Half* qkv, const Half* wq, const Half* wk, Half* turned, HeadShape shape,
                      cudaStream_t stream) {
  by_head_size(shape.d, [&](auto d) {
    head_norm_kernel<decltype(d)::value>
        <<<token_blocks(shape.tokens), threads, 0, stream>>>(qkv, wq, wk, turned, shape);
  });
}
void head_norm_rotary_backward(Half* gradient, const Half* qkv, const Half* wq, const Half* wk, Half* dwq, Half* dwk,
                               float* scratch, HeadShape shape, bool add, cudaStream_t stream) {
  const unsigned blocks = blocks_for(32 * shape.tokens, norm_blocks / 2);  // several tokens a warp, or the sums cost
  by_head_size(shape.d, [&](auto d) {
    head_norm_backward_kernel<decltype(d)::value>
        <<<blocks, threads, 0, stream>>>(gradient, qkv, wq, wk, scratch, shape);
  });
  launch_sum(scratch, dwq, shape.d, 2 * shape.d, static_cast<int>(blocks), add, stream);
  launch_sum(scratch + shape.d, dwk, shape.d, 2 * shape.d, static_cast<int>(blocks), add, stream);
}

}  // namespace plimsoll::cuda
