// The price of each op alone (simulator/prices.hpp); the rules and their sources: planner/spec/calibration.hpp.
#include "simulator/prices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

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

double fastest_piece(const std::vector<CollectivePrice::Piece>& pieces, double bytes) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& piece : pieces) best = std::min(best, piece.latency_s + bytes / piece.bytes_per_s);
  return best;
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

double Prices::gemm_seconds(double m, double n, double k, DType dtype) const {
  const auto [known, added] = products_.try_emplace({m, n, k, static_cast<double>(dtype)}, 0.0);
  if (added) known->second = price_of_product(m, n, k, dtype);
  return known->second;
}

double Prices::price_of_product(double m, double n, double k, DType dtype) const {
  const GemmPrice& price = calibration_.gemm;
  const double bytes = (m * k + k * n + m * n) * as_double(size_of(dtype));
  if (std::min({m, n, k}) <= 64 && dtype != DType::fp32)
    return std::max(price.skinny_floor_s, bytes / price.skinny_bytes_per_s);
  const double rate = dtype == DType::fp32 ? price.fp32_flops_per_s : price.flops_per_s;
  const double sms = std::max(1, cluster_.device.multiprocessors);
  double best = std::numeric_limits<double>::infinity();
  for (const GemmPrice::Tile& tile : price.tiles) {
    const double waves = std::ceil(std::ceil(m / tile.m) * std::ceil(n / tile.n) / sms);
    const double area = static_cast<double>(tile.m) * tile.n;
    const double step = 2 * area * k / (rate / sms * tile.efficiency) + price.epilogue_s_per_element * area;
    best = std::min(best, waves * step);
  }
  const double busy =
      std::max(best + price.traffic_share * bytes / price.traffic_bytes_per_s, bytes / price.memory_bytes_per_s);
  return price.launch_s + price.memset_s + busy * sag_;
}

/// One launch over all groups; without tensor cores (fp32) one product a group, each with its own waves.
double Prices::grouped_seconds(const Kernel& kernel) const {
  const GroupedGemmPrice& price = calibration_.grouped_gemm;
  const auto groups = as_double(kernel.batch);
  if (kernel.dtype == DType::fp32) {
    return groups * gemm_seconds(as_double(kernel.m) / groups, as_double(kernel.n), as_double(kernel.k), kernel.dtype);
  }
  const double length = as_double(kernel.k);
  const double many = kernel.batch > price.many_groups ? price.many_factor : 1;
  const double rate = price.flops_per_s * many * length / (length + price.half_length);
  return price.fixed_s + price.prepare_s + kernel.flops().count / rate * sag_;
}

double Prices::kernel_seconds(const Kernel& kernel) const {
  switch (kernel.kind) {
    case KernelKind::gemm:
      return gemm_seconds(as_double(kernel.m) * as_double(kernel.batch), as_double(kernel.n), as_double(kernel.k),
                          kernel.dtype);
    case KernelKind::grouped_gemm: return grouped_seconds(kernel);
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: {
      const AttentionPrice& price = calibration_.attention;
      const bool backward = kernel.kind == KernelKind::attention_backward;
      const auto& rates = backward ? price.backward : price.forward;
      if (rates.empty()) return price.fixed_s + kernel.flops().count / (0.5 * calibration_.gemm.flops_per_s);
      const auto nearest = std::min_element(rates.begin(), rates.end(), [&](const auto& a, const auto& b) {
        return std::abs(a.head_dim - kernel.k) < std::abs(b.head_dim - kernel.k);
      });
      const double length = as_double(kernel.m);
      const double rate = nearest->flops_per_s * length / (length + nearest->half_length);
      const double extra = backward ? price.backward_s_per_element * as_double(kernel.batch * kernel.m * kernel.k) : 0;
      return price.fixed_s + (kernel.flops().count / rate) * sag_ + extra;
    }
    default: break;
  }
  const KernelPrice* price = by_kind_[static_cast<std::size_t>(kernel.kind)];
  if (!price)
    return 1.35e-6 + as_double(kernel.bytes.count) / (0.85 * std::max(1.0, cluster_.device.memory_bandwidth.count));
  const double moved = price->bytes_per_s > 0 ? as_double(kernel.bytes.count) / price->bytes_per_s : 0;
  const Bytes output = Elements(kernel.elements) * kernel.dtype;
  const double cached = as_double(output.count) <= calibration_.cache.bytes ? calibration_.cache.factor : 1;
  return price->fixed_s + price->s_per_element * as_double(kernel.elements) * sag_ * cached + moved;
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
    seconds = fastest_piece(pieces, bytes);
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
  const double bandwidth = bandwidth_per_gpu(cluster_, cost.tier).count;
  const double wire = bus_factor(collective.kind, group.size) * bytes * std::max(shares->load(cost.tier), 1e-9);
  cost.share = bandwidth > 0 ? std::min(1.0, wire / seconds / (0.9 * bandwidth)) : 1.0;
  cost.time = to_sim(seconds);
  return cost;
}

SimTime Prices::copy(const HostCopy& copy) const {
  return to_sim(calibration_.copy_fixed_s + as_double(copy.size.count) / calibration_.copy_bytes_per_s);
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
