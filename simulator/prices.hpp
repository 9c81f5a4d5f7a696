// How long does one op take alone?  Kernels, collectives, copies and host work priced by a calibration.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "planner/spec/calibration.hpp"
#include "planner/spec/topology.hpp"
#include "planner/step/program.hpp"
#include "simulator/fair_share.hpp"

namespace plimsoll {

/// Simulated time: picoseconds, so that sums are exact and runs repeat.
using SimTime = std::int64_t;
constexpr SimTime to_sim(double seconds) {
  return static_cast<SimTime>(seconds * 1e12 + 0.5);  // NOLINT(bugprone-incorrect-roundings): no time is negative
}
constexpr double to_seconds(SimTime time) { return static_cast<double>(time) * 1e-12; }

/// A lone collective: its time, and what it asks of the links while it runs.
struct CollectiveCost {
  SimTime time = 0;
  Tier tier = Tier::nvlink;  ///< farthest that it crosses
  Demand demand{};           ///< of a GPU's bandwidth to each tier
  Evidence evidence = Evidence::assumed;
};

class Prices {
 public:
  Prices(const Calibration& calibration, const ClusterSpec& cluster, const StepProgram& program, double sag);

  SimTime kernel(const Kernel& kernel) const;
  /// What draws power: FLOPs of products and attention over their calibrated rate, those in fp32 weighted by their power.
  double matrix_seconds(const Kernel& kernel) const;
  /// By how much a kernel is stretched while a collective runs beside it; exchange: an all-to-all.
  double interference(KernelKind kind, bool exchange) const {
    return (exchange ? exchange_interference_ : interference_)[static_cast<std::size_t>(kind)];
  }
  /// By how much a collective is stretched beside such a kernel.
  double collective_interference(KernelKind kind) const {
    return collective_interference_[static_cast<std::size_t>(kind)];
  }
  CollectiveCost collective(const Collective& collective, int rank) const;
  SimTime copy(const HostCopy& copy) const;
  SimTime launch(Issuer issuer, KernelKind kind) const;
  /// All launches of a kernel: of products for each expert the first is an operation called, the others are a loop within it.
  /// Those of compiled code have a price of their own, whatever they do.
  SimTime launch(Issuer issuer, const Kernel& kernel) const;
  SimTime host_work(const HostWork& work) const;
  SimTime launch_latency() const { return to_sim(calibration_.host.launch_latency_s); }
  SimTime kernel_gap() const { return kernel_gap_; }
  /// True if the memory, not the SMs, bounds the kernel.
  static bool memory_bound(KernelKind kind);
  /// By how much copies on the copy-in lane and memory-bound kernels on the compute lane stretch each other: FSDP2's lose 0.34 to
  /// 0.46 of their speed, the kernels 0.3 (contiguous) to 0.6 (casts, strided), in traced steps on H200.
  static constexpr double copy_in_interference = 1.5;
  SimTime sync() const { return to_sim(calibration_.host.sync_s); }
  int queue_depth() const { return calibration_.host.queue_depth; }

 private:
  /// A collective of copy engines: they take no multiprocessor from what computes beside them.
  CollectiveCost by_copies(const Collective& collective, int members) const;
  /// @param linear where it is one of a linear layer: which
  double product_seconds(double m, double n, double k, DType dtype, LinearProduct linear = LinearProduct::none) const;
  const KernelPrice* unaligned_price(double m, double n, double k, LinearProduct linear) const;
  double batched_seconds(const Kernel& kernel) const;
  double grouped_seconds(const Kernel& kernel) const;
  SimTime gap_of(const StepProgram& program) const;
  double kernel_seconds(const Kernel& kernel) const;

  const Calibration& calibration_;
  const ClusterSpec& cluster_;
  const StepProgram& program_;
  double sag_;
  struct Product {
    double m, n, k;
    DType dtype;
    LinearProduct linear;
    bool operator==(const Product&) const = default;
  };
  struct HashOfProduct {
    std::size_t operator()(const Product& p) const {
      return std::hash<double>()(p.m * 1e14 + p.n * 1e7 + p.k) ^ static_cast<std::size_t>(p.dtype) ^
             static_cast<std::size_t>(p.linear) << 8U;
    }
  };
  mutable std::unordered_map<Product, double, HashOfProduct> products_;  ///< product_seconds
  SimTime kernel_gap_;
  const KernelPrice* price_of(const Kernel& kernel) const;

  /// Prices of a kind by the type that it works on and by how its operands lie; null: the kind's own, else none known.
  struct KindPrices {
    const KernelPrice *any = nullptr, *flat = nullptr, *fp32 = nullptr, *sixteen_bit = nullptr;
    const KernelPrice* short_rows = nullptr;
  };
  std::array<KindPrices, kernel_kind_count> by_kind_{};
  const KernelPrice* of_group_ = nullptr;   ///< of each group of a grouped product
  const KernelPrice* unaligned_ = nullptr;  ///< by multiply-add
  struct UnalignedPrices {
    const KernelPrice *even = nullptr, *forward = nullptr, *forward_inner = nullptr, *to_input = nullptr;
    const KernelPrice *to_input_inner = nullptr, *to_weight = nullptr;
  };
  UnalignedPrices of_linear_;            ///< the same of a linear layer's products; null: not known
  const KernelPrice* of_row_ = nullptr;  ///< of each row of a reduction
  std::array<double, kernel_kind_count> interference_{}, exchange_interference_{}, collective_interference_{};
  std::array<double, host_work_kind_count> host_work_{};
};

}  // namespace plimsoll
