// The price of each op alone (simulator/prices.hpp); the rules: planner/spec/price_rules.hpp.
#include "simulator/prices.hpp"

#include <algorithm>
#include <cmath>

#include "planner/spec/price_rules.hpp"

namespace plimsoll {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

/// Wire bytes of a member over the full size: (n-1)/n, twice that for an all-reduce.
double bus_factor(CollectiveKind kind, int n) {
  const double part = static_cast<double>(n - 1) / n;
  return kind == CollectiveKind::all_reduce ? 2 * part : kind == CollectiveKind::broadcast ? 1 : part;
}

double steps(CollectiveKind kind, int n) { return kind == CollectiveKind::all_reduce ? 2.0 * (n - 1) : n - 1.0; }

Tier farthest(const TierShare& share) {
  for (const Tier tier : {Tier::spine, Tier::nic, Tier::pcie, Tier::nvlink}) {
    if (share.of(tier) > 0) return tier;
  }
  return Tier::nvlink;
}

}  // namespace

Prices::Prices(const Calibration& calibration, const ClusterSpec& cluster, const StepProgram& program, double sag)
    : calibration_(calibration), cluster_(cluster), program_(program), sag_(sag), kernel_gap_(gap_of(program)) {
  const auto& factors = calibration.interference.factor;
  const auto other = factors.find("other");
  for (int i = 0; i < kernel_kind_count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const char* name = name_of(static_cast<KernelKind>(i));
    const auto price = calibration.kernels.find(name);
    if (price != calibration.kernels.end()) by_kind_[index] = &price->second;
    const auto factor = factors.find(name);
    interference_[index] = factor != factors.end() ? factor->second : other != factors.end() ? other->second : 1.0;
  }
  for (int i = 0; i < host_work_kind_count; ++i) {
    const auto found = calibration.host.work_s.find(name_of(static_cast<HostWorkKind>(i)));
    host_work_[static_cast<std::size_t>(i)] = found == calibration.host.work_s.end() ? 0 : found->second;
  }
}

/// Kernels of several streams follow each other less closely.
SimTime Prices::gap_of(const StepProgram& program) const {
  for (const RankClass& ranks : program.classes) {
    for (OpId id = ranks.program.steady_first; id < ranks.program.steady_end; ++id) {
      const Op& op = ranks.program.ops[id];
      if (op.lane != Lane::compute && op.lane != Lane::host && std::holds_alternative<Collective>(op.action)) {
        return to_sim(calibration_.host.kernel_gap_streams_s);
      }
    }
  }
  return to_sim(calibration_.host.kernel_gap_s);
}

double Prices::product_seconds(double m, double n, double k, DType dtype) const {
  const auto [known, added] = products_.try_emplace({m, n, k, dtype}, 0.0);
  if (added) known->second = gemm_seconds(calibration_.gemm, cluster_.device.multiprocessors, m, n, k, dtype, sag_);
  return known->second;
}

/// One launch over all groups; without tensor cores (fp32) one product a group, each with its own waves.
double Prices::grouped_seconds(const Kernel& kernel) const {
  if (kernel.dtype == DType::fp32) {
    const auto groups = as_double(kernel.batch);
    return groups *
           product_seconds(as_double(kernel.m) / groups, as_double(kernel.n), as_double(kernel.k), kernel.dtype);
  }
  return grouped_gemm_seconds(calibration_.grouped_gemm, kernel.batch, as_double(kernel.m), as_double(kernel.n),
                              as_double(kernel.k), sag_);
}

double Prices::kernel_seconds(const Kernel& kernel) const {
  switch (kernel.kind) {
    case KernelKind::gemm:
      return product_seconds(as_double(kernel.m) * as_double(kernel.batch), as_double(kernel.n), as_double(kernel.k),
                             kernel.dtype);
    case KernelKind::grouped_gemm: return grouped_seconds(kernel);
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: {
      const AttentionPrice& price = calibration_.attention;
      const bool backward = kernel.kind == KernelKind::attention_backward;
      if ((backward ? price.backward : price.forward).empty())
        return price.fixed_s + kernel.flops().count / (0.5 * calibration_.gemm.flops_per_s);
      return attention_seconds(price, backward, as_double(kernel.batch), as_double(kernel.m), as_double(kernel.k),
                               kernel.flops().count, sag_);
    }
    default: break;
  }
  const KernelPrice* price = by_kind_[static_cast<std::size_t>(kernel.kind)];
  if (!price)
    return 1.35e-6 + as_double(kernel.bytes.count) / (0.85 * std::max(1.0, cluster_.device.memory_bandwidth.count));
  const Bytes output = Elements(kernel.elements) * kernel.dtype;
  return pointwise_seconds(*price, calibration_.cache, as_double(kernel.elements), as_double(kernel.bytes.count),
                           as_double(output.count), sag_);
}

bool Prices::memory_bound(KernelKind kind) {
  switch (kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: return false;
    default: return true;
  }
}

SimTime Prices::kernel(const Kernel& kernel) const { return to_sim(kernel_seconds(kernel)); }

double Prices::matrix_seconds(const Kernel& kernel) const {
  const GemmPrice& gemm = calibration_.gemm;
  return kernel.flops().count /
         (kernel.dtype == DType::fp32 ? gemm.fp32_flops_per_s / gemm.fp32_power : gemm.flops_per_s);
}

CollectiveCost Prices::collective(const Collective& collective, int rank) const {
  const Group& group = program_.groups[collective.group];
  CollectiveCost cost;
  if (group.size <= 1) return cost;
  const auto shares = tier_share(cluster_, group_of_rank(group.size, group.stride, rank), collective.kind);
  if (!shares) return cost;
  cost.tier = farthest(*shares);
  const double bytes = as_double(std::max(collective.full_size, collective.receive_size).count);
  // The calibration's curve for this many ranks over this tier; else the nearest one, scaled by steps and bus factor.
  const CollectivePrice* nearest = nullptr;
  for (const CollectivePrice& price : calibration_.collectives) {
    if (price.kind != collective.kind || price.tier != cost.tier) continue;
    if (!nearest || std::abs(price.ranks - group.size) < std::abs(nearest->ranks - group.size)) nearest = &price;
  }
  double seconds = 0;
  if (nearest) {
    const double longer = steps(collective.kind, group.size) / steps(collective.kind, nearest->ranks);
    const double wider = bus_factor(collective.kind, group.size) / bus_factor(collective.kind, nearest->ranks);
    std::vector<CollectivePrice::Piece> pieces = nearest->pieces;
    for (auto& piece : pieces) {
      piece.latency_s *= collective.kind == CollectiveKind::all_to_all ? 1 : 0.5 + 0.5 * longer;
      piece.bytes_per_s /= wider;
    }
    // Measured points count where this very size of group was measured.
    seconds = nearest->ranks == group.size ? collective_seconds(*nearest, bytes) : collective_seconds(pieces, bytes);
    cost.evidence = nearest->ranks == group.size ? nearest->provenance.evidence : Evidence::extrapolated;
  } else {
    // No curve: 85 % of the busiest tier's published bandwidth, and a hop's latency a step.
    const double wire = bus_factor(collective.kind, group.size) * bytes;
    for (const Tier tier : {Tier::nvlink, Tier::pcie, Tier::nic, Tier::spine}) {
      const double bandwidth = bandwidth_per_gpu(cluster_, tier).count;
      if (shares->load(tier) > 0 && bandwidth > 0)
        seconds = std::max(seconds, wire * shares->load(tier) / (0.85 * bandwidth));
    }
    seconds += 8e-6 + steps(collective.kind, group.size) * hop_latency(cluster_, cost.tier).count;
  }
  const double wire = bus_factor(collective.kind, group.size) * bytes;
  for (const Tier tier : {Tier::nvlink, Tier::pcie, Tier::nic, Tier::spine}) {
    const double bandwidth = bandwidth_per_gpu(cluster_, tier).count;
    const double load = shares->load(tier);
    if (load <= 0 || seconds <= 0) continue;
    cost.demand[static_cast<std::size_t>(tier)] =
        bandwidth > 0 ? std::min(1.0, wire * load / seconds / (0.9 * bandwidth)) : 1.0;
  }
  cost.time = to_sim(seconds);
  return cost;
}

SimTime Prices::copy(const HostCopy& copy) const {
  const double bytes = as_double(copy.size.count);
  for (const CopyPrice& price : calibration_.copy_prices) {
    if (price.to_device == copy.to_device && price.pinned == copy.pinned && !price.all_ranks)
      return to_sim(copy_seconds(price, bytes));
  }
  return to_sim(calibration_.copy_fixed_s + bytes / calibration_.copy_bytes_per_s);
}

SimTime Prices::launch(Issuer issuer, KernelKind kind) const {
  const HostPrices& host = calibration_.host;
  if (kind == KernelKind::compiled_pointwise) return to_sim(host.launch_compiled_s);
  switch (issuer) {
    case Issuer::forward: return to_sim(host.launch_forward_s);
    case Issuer::backward: return to_sim(host.launch_backward_s);
    case Issuer::optimizer: return to_sim(host.launch_optimizer_s);
  }
  return 0;
}

SimTime Prices::host_work(const HostWork& work) const {
  if (work.kind == HostWorkKind::cpu_adam)
    return to_sim(calibration_.host.cpu_adam_s_per_element * as_double(work.count));
  return to_sim(host_work_[static_cast<std::size_t>(work.kind)] * as_double(work.count));
}

}  // namespace plimsoll
