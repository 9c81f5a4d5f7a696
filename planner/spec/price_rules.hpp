// How long does one kernel or collective take alone, by a calibration's rule?  The equations of planner/spec/calibration.hpp
// as functions, so that the simulator, which predicts with them, and the fits, which determine their coefficients, mean the
// same.  All return seconds; `sag` (>= 1) stretches what the SM clock bounds.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/quantity.hpp"
#include "planner/spec/calibration.hpp"
#include "planner/spec/grouped_tiles.hpp"

namespace plimsoll {

/// Of a tier's published bandwidth, where no curve of a collective is known: assumed.
inline constexpr double share_of_links_without_curve = 0.85;

/// Copies between peers: of the links' published bandwidth what one member's copies reach while all copy, and what the flags of
/// one collective take, which come and go twice.  Measured on two H200, 2026-11-30: 390 of 450 GB/s, 12 us for the first byte of a
/// copy, 5.5 us a turn of flags, two turns (202 MB a member: 541 us, predicted 542); other devices: assumed.
inline constexpr double peer_copy_share_of_links = 0.867;
inline constexpr double peer_copy_fixed_s = 23e-6;

/// C[m,n] = A[m,k] B[k,n]: t = launch + memset + max(min over tiles of waves (2 tm tn k / (rate e / SMs) + epilogue tm tn)
/// + share B / traffic rate, B / memory rate), waves = ceil(tiles of the result / SMs), B = bytes of A, B and C; the memset with
/// more than two waves.
/// In fp32, on CUDA cores, t = launch + max(min(fixed, half a wave of 64 x 64 tiles) + 2 m n k / rate, B / memory rate):
/// rows of an expert are any number, so that the last wave is half full in the mean, and products of few tiles are split along k;
/// those of an adapter or a router, a few columns wide, wait for the memory.
/// @param multiprocessors of the device, >= 1
double gemm_seconds(const GemmPrice& price, int multiprocessors, double m, double n, double k, DType dtype,
                    double sag = 1);

/// How far clocks sag between not at all (0) and as far as they do (1), in a step whose tensor-core FLOPs over its time and the
/// rate are `u`, on so many GPUs: (u + together - from) / (full - from), together being 0 for one.
double sag_share(const GemmPrice& price, double u, int gpus);

/// The factor of a surface: exp(sum_i w_i f_i / (sum_i w_i + shrink)), w_i = exp(-|log2 sizes - place_i|^2 / (2 width^2)).
double surface_factor(const Surface& surface, double a, double b, double c);

/// Groups of one contraction length in one launch: t = fixed + prepare + FLOPs / (rate k / (k + half)).
/// @param m rows of all groups
double grouped_gemm_seconds(const GroupedGemmPrice& price, std::int64_t groups, double m, double n, double k,
                            double sag = 1);

/// The same by the tiles that its groups are cut into.
/// @param tiles at least one; @param bytes read and written
double tiled_grouped_seconds(const GroupedGemmPrice& price, int multiprocessors, std::int64_t groups,
                             const GroupedTiles& tiles, double bytes, double sag = 1);

/// t = fixed + FLOPs / (rate s / (s + half)) by the nearest head size; backward also a time per element of q.
/// @param batch sequences times heads; @param length query length s
/// @param flops of this kernel (causal: half the square)
double attention_seconds(const AttentionPrice& price, bool backward, double batch, double length, double head_dim,
                         double flops, double sag = 1);

/// t = fixed + elements * per_element + bytes / bandwidth; with a cache of C bytes
/// t = fixed + elements * per_element + min(bytes, C) / its bandwidth + max(0, bytes - C) / bandwidth.
/// @param elements of the output; @param bytes read and written; @param output_bytes decides what the cache still holds
double pointwise_seconds(const KernelPrice& price, const CachePrice& cache, double elements, double bytes,
                         double output_bytes, double sag = 1);

/// A lone collective of full size S: t = min over pieces of latency + S / bandwidth.  Infinity without pieces.
double collective_seconds(const std::vector<CollectivePrice::Piece>& pieces, double bytes);
/// The same from measured points: between two of them on a straight line of logarithms; outside, the pieces through the
/// nearest point.  Without points the pieces alone.
double collective_seconds(const CollectivePrice& price, double bytes);

/// A copy between host and device: t = fixed + bytes / bandwidth, or between measured points likewise.
double copy_seconds(const CopyPrice& price, double bytes);

}  // namespace plimsoll
