// How fast is the machine?  The prices of kernels, collectives, copies and host work on one kind of device, each with how it
// is known.  Read from calibration files (configs/README.md), which plimsoll-calibrate writes.
//
// Kernel rules: a GEMM by tiles and waves, a grouped GEMM and attention by rates that grow with their inner length, everything
// else by fixed + elements * per_element + bytes / bandwidth (a bandwidth of its own for what a cache holds).  A lone
// collective takes min over its pieces of latency + S / bandwidth (a piece per protocol), S = nccl-tests' full size.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "planner/spec/cluster.hpp"
#include "planner/spec/collective.hpp"

namespace plimsoll {

/// How one entry is known.
struct Provenance {
  Evidence evidence = Evidence::assumed;
  int samples = 0;
  double residual = 0;   ///< mean relative error of the fit; 0.1: 10 %
  double interval = 0;   ///< 95 % of predictions for points that the fit had not seen are this near; 0: not stated
  double range_low = 0;  ///< of the fitted variable (bytes, elements, FLOPs); 0, 0: not stated
  double range_high = 0;
  std::string source;
};

/// What a rule leaves over, by size: factors on its time at measured places, between which they are interpolated, and towards 1
/// away from them.  Places are log2 of up to three sizes.
struct Surface {
  struct Place {
    std::array<double, 3> log2_sizes{};
    double log_factor = 0;
  };
  double width = 0.5;   ///< octaves over which a place counts
  double shrink = 0.3;  ///< weight of "no correction"
  std::vector<Place> places;
};

/// t = launch + max(waves (2 tm tn k / (rate efficiency / SMs) + epilogue tm tn) + traffic B, B / memory rate)
struct GemmPrice {
  struct Tile {
    int m = 128, n = 128;
    double efficiency = 1;
  };
  double launch_s = 1.6e-6;
  /// cuBLAS hands out tiles by a counter where there are more than two waves of them (so in 15,088 products of 46 traces, all of
  /// them), and clears it first: a small kernel and one more gap.
  double memset_s = 0;
  double flops_per_s = 846e12;
  double epilogue_s_per_element = 1.3e-6 / 32768;
  double traffic_share = 0.066;  ///< of the bytes at memory_bytes_per_s that are not hidden
  double traffic_bytes_per_s = 4.2e12;
  double memory_bytes_per_s = 3.6e12;  ///< when the product is bound by memory
  double skinny_floor_s = 5e-6;        ///< min(m, n, k) <= 64
  double skinny_bytes_per_s = 2.6e12;
  double fp32_flops_per_s = 46e12;  ///< on CUDA cores, without TF32
  double fp32_fixed_s = 9.2e-6;     ///< of such a product, beyond its launch
  double fp32_bytes_per_s = 0;      ///< what a thin one is bound by; 0: by nothing
  double fp32_power = 0.6;  ///< of what tensor cores draw when busy: the weight of fp32 products in what sags clocks
  std::vector<Tile> tiles;
  /// Clocks sag under sustained matrix work, since power is capped.  With u = tensor-core FLOPs of the step over its time and
  /// over flops_per_s, what the SM clock bounds (products, attention, kernels priced by the element) takes 1 + (sag - 1)
  /// (u - sag_from) / (sag_full - sag_from) times as long, at least 1 and at most sag.  GPUs that step together wait for the one
  /// whose clock is lowest, and their links draw power: they sag as one alone would at sag_together more.
  double sag = 1.0, sag_from = 0.33, sag_full = 0.66, sag_together = 0;
  Surface surface;  ///< over m, n, k
  Provenance provenance;
};

/// Where the tiles are known (planner/spec/grouped_tiles.hpp), T of them with S steps in all and L in the longest, on a device's C
/// clusters: t = fixed + prepare + G group + max(ceil(T / C) one, (T / C - 1) one + L step + epilogue, B / memory rate), one being the
/// mean tile, S / T steps + epilogue, and a step 2 x 64 side^2 / (rate / C); G groups, B = bytes read and written.
/// Else t = fixed + prepare + FLOPs / (rate K / (K + half)), K = contraction length; many groups: rate * many_factor
struct GroupedGemmPrice {
  struct Tiled {
    double fixed_s = 0, group_s = 0;
    double flops_per_s = 0;  ///< of all clusters in the steps of full tiles; 0: no such rule
    double epilogue_s = 0;   ///< of a tile: filling its pipeline, writing the result
    double memory_bytes_per_s = 1e15;
  };
  Tiled large, small;
  double fixed_s = 4e-6, prepare_s = 1.9e-6;
  double flops_per_s = 735e12;
  double half_length = 90;
  int many_groups = 16;
  double many_factor = 0.93;
  Surface surface;  ///< over rows of one group, n, k
  Provenance provenance;
};

/// t = fixed + FLOPs / (rate s / (s + half)), by head size
struct AttentionPrice {
  struct Rate {
    int head_dim = 128;
    double flops_per_s = 660e12;
    double half_length = 750;
    double fixed_s = -1;  ///< < 0: that of all
  };
  double fixed_s = 6e-6;
  std::vector<Rate> forward, backward;
  double backward_s_per_element = 5.33e-12;  ///< per element of q: row sums, dq conversion, head reductions
  Provenance provenance;
};

/// t = fixed + elements * per_element + bytes / bandwidth (bandwidth 0: no such term).  As many bytes as a cache holds may go at a
/// bandwidth of their own: what lay there before must be written back to make room, what is written last need not be yet.
struct KernelPrice {
  double fixed_s = 1.35e-6;
  double s_per_element = 0;
  double bytes_per_s = 0;
  double cached_bytes = 0;  ///< the first of them, at cached_bytes_per_s; 0: all at bytes_per_s
  double cached_bytes_per_s = 0;
  Provenance provenance;
};

/// Tensors that still lie in the L2 cache make kernels priced by the element faster.
struct CachePrice {
  double bytes = 0;   ///< outputs of at most this size
  double factor = 1;  ///< on the time
};

struct CollectivePrice {
  struct Piece {
    double latency_s = 0;
    double bytes_per_s = 0;  ///< of the full size S
  };
  CollectiveKind kind = CollectiveKind::all_gather;
  Tier tier = Tier::nvlink;  ///< farthest tier that the group crosses
  int ranks = 2;
  std::vector<Piece> pieces;
  std::vector<std::pair<double, double>>
      points;  ///< measured: bytes, seconds, rising; inside them they count, not the pieces
  Provenance provenance;
};

struct HostPrices {
  double launch_forward_s = 29e-6, launch_backward_s = 30e-6, launch_optimizer_s = 14e-6;
  double launch_compiled_s = 6e-6;   ///< a fused kernel of a compiled layer: its launch, its share of guards and call
  double launch_repeated_s = 20e-6;  ///< of a call that launches several kernels in a loop, each after the first
  std::map<std::string, double> work_s;  ///< by HostWorkKind's name, per count
  double launch_latency_s = 6e-6;        ///< call to kernel on an idle stream
  double kernel_gap_s = 2e-6;            ///< from one kernel to the next of a full queue
  double kernel_gap_streams_s = 2e-6;    ///< the same where several streams have work
  double sync_s = 8e-6;
  int queue_depth = 1024;  ///< launches outstanding per lane before the host blocks
  double spread = 0.3;     ///< relative difference between hosts
  double cpu_adam_s_per_element = 0.4e-9;
  Provenance provenance;
};

/// By how much a compute kernel is slowed while a collective's kernel is resident, and the collective beside it.  Maps are by
/// KernelKind's name.
struct InterferencePrices {
  std::map<std::string, double> factor;           ///< "other" for the rest
  std::map<std::string, double> exchange_factor;  ///< beside an all-to-all; of kinds that are not in it: `factor`
  std::map<std::string, double>
      collective_beside;            ///< a collective; beside kinds that are not in it: collective_factor
  double collective_factor = 1.08;  ///< by bench: the mean of kernels that stream memory
  Provenance provenance;
};

/// t = fixed + bytes / bandwidth of one kind of copy.
struct CopyPrice {
  bool to_device = true, pinned = true;
  bool all_ranks = false;  ///< all ranks of the node copy at once
  double fixed_s = 3e-6, bytes_per_s = 50e9;
  std::vector<std::pair<double, double>> points;  ///< of the curve: bytes, seconds, rising; inside them they count
  Provenance provenance;
};

struct Calibration {
  std::string name, device, date, versions, source;
  GemmPrice gemm;
  GroupedGemmPrice grouped_gemm;
  AttentionPrice attention;
  std::map<std::string, KernelPrice> kernels;  ///< by KernelKind's name
  std::vector<CollectivePrice> collectives;
  HostPrices host;
  CachePrice cache;
  InterferencePrices interference;
  double copy_fixed_s = 3e-6, copy_bytes_per_s = 50e9;  ///< host to device and back, pinned
  Provenance copies;
  std::vector<CopyPrice> copy_prices;         ///< by direction and memory, where measured
  std::map<std::string, double> fixed_bytes;  ///< context, communicator, gemm_workspace: of device memory
};

}  // namespace plimsoll
