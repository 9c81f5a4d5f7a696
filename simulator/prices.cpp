// The price of each op alone (simulator/prices.hpp); the rules: planner/spec/price_rules.hpp.
#include "simulator/prices.hpp"

#include <algorithm>
#include <cmath>

#include "planner/spec/collective_curve.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll {

namespace {

double as_double(std::int64_t value) { return static_cast<double>(value); }

const KernelPrice* named(const Calibration& calibration, const std::string& name) {
  const auto found = calibration.kernels.find(name);
  return found == calibration.kernels.end() ? nullptr : &found->second;
}

}  // namespace

Prices::Prices(const Calibration& calibration, const ClusterSpec& cluster, const StepProgram& program, double sag)
    : calibration_(calibration), cluster_(cluster), program_(program), sag_(sag), kernel_gap_(gap_of(program)) {
  const InterferencePrices& beside = calibration.interference;
  const auto factor_of = [](const std::map<std::string, double>& factors, const char* name, double otherwise) {
    const auto found = factors.find(name);
    return found != factors.end() ? found->second : otherwise;
  };
  const double other = factor_of(beside.factor, "other", 1);
  for (int i = 0; i < kernel_kind_count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const char* name = name_of(static_cast<KernelKind>(i));
    const std::string base = name;
    by_kind_[index] = {named(calibration, base), named(calibration, base + "_flat"), named(calibration, base + "_fp32"),
                       named(calibration, base + "_bf16"), named(calibration, base + "_short")};
    interference_[index] = factor_of(beside.factor, name, other);
    exchange_interference_[index] = factor_of(beside.exchange_factor, name, interference_[index]);
    collective_interference_[index] = factor_of(beside.collective_beside, name, beside.collective_factor);
  }
  of_group_ = named(calibration, "grouped_gemm_group");
  unaligned_ = named(calibration, "gemm_unaligned");
  of_linear_ = {named(calibration, "gemm_unaligned_even"),           named(calibration, "gemm_unaligned_forward"),
                named(calibration, "gemm_unaligned_forward_inner"),  named(calibration, "gemm_unaligned_to_input"),
                named(calibration, "gemm_unaligned_to_input_inner"), named(calibration, "gemm_unaligned_to_weight")};
  of_row_ = named(calibration, "reduce_last_row");
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

double Prices::product_seconds(double m, double n, double k, DType dtype, LinearProduct linear) const {
  const auto [known, added] = products_.try_emplace({m, n, k, dtype, linear}, 0.0);
  if (!added) return known->second;
  known->second = gemm_seconds(calibration_.gemm, cluster_.device.multiprocessors, m, n, k, dtype, sag_);
  const KernelPrice* price = dtype == DType::fp32 ? nullptr : unaligned_price(m, n, k, linear);
  if (price) known->second = std::max(known->second, price->fixed_s + price->s_per_element * m * n * k * sag_);
  return known->second;
}

/// Rows that do not start at multiples of 16 bytes keep the library from its fast kernels: of 8 elements in 16 bits.  All even
/// widths, multiples of 4 too, get one kind of kernel, odd ones another, whose speed hangs on the product and on whether the
/// odd width is the one that it sums over (inner).
const KernelPrice* Prices::unaligned_price(double m, double n, double k, LinearProduct linear) const {
  constexpr double aligned = 8;
  const auto is_multiple = [](double width, double of) { return std::fmod(width, of) == 0; };
  if (linear == LinearProduct::none || !of_linear_.even) {
    // What does not say along which dimension its operands lie: a vocabulary is the longest one that is seldom aligned.
    constexpr double shortest_vocabulary = 16384;
    const double longest = std::max({m, n, k});
    return longest >= shortest_vocabulary && !is_multiple(longest, aligned) ? unaligned_ : nullptr;
  }
  const double other = linear == LinearProduct::to_weight ? m : k;  // the widths are this one and n
  if (is_multiple(n, aligned) && is_multiple(other, aligned)) return nullptr;
  if (is_multiple(n, 2) && is_multiple(other, 2)) return of_linear_.even;
  switch (linear) {
    case LinearProduct::to_weight: return of_linear_.to_weight;
    case LinearProduct::to_input: return is_multiple(n, 2) ? of_linear_.to_input_inner : of_linear_.to_input;
    default: return is_multiple(n, 2) ? of_linear_.forward_inner : of_linear_.forward;
  }
}

/// Products of a batch are small: their operands pass the memory once, or their tiles keep the tensor cores busy.
double Prices::batched_seconds(const Kernel& kernel) const {
  const GemmPrice& gemm = calibration_.gemm;
  const double rate = kernel.dtype == DType::fp32 ? gemm.fp32_flops_per_s : gemm.flops_per_s;
  return gemm.launch_s +
         std::max(kernel.flops().count / rate * sag_, as_double(kernel.bytes.count) / gemm.memory_bytes_per_s);
}

/// One launch over all groups, by its tiles where they are known; without tensor cores (fp32) one product a group, each with its
/// own waves.
double Prices::grouped_seconds(const Kernel& kernel) const {
  if (kernel.dtype == DType::fp32) {
    const auto groups = as_double(kernel.batch);
    return groups *
           product_seconds(as_double(kernel.m) / groups, as_double(kernel.n), as_double(kernel.k), kernel.dtype);
  }
  const GroupedGemmPrice& grouped = calibration_.grouped_gemm;
  if (kernel.tiles.count > 0 && (kernel.tiles.small ? grouped.small : grouped.large).flops_per_s > 0)
    return tiled_grouped_seconds(grouped, cluster_.device.multiprocessors, kernel.batch, kernel.tiles,
                                 as_double(kernel.bytes.count), sag_);
  const double of_groups = of_group_ ? of_group_->fixed_s * as_double(kernel.batch) : 0;
  return of_groups + grouped_gemm_seconds(grouped, kernel.batch, as_double(kernel.m), as_double(kernel.n),
                                          as_double(kernel.k), sag_);
}

/// The most particular price that the calibration has: short rows, the type, operands of at most three dimensions, the kind.
const KernelPrice* Prices::price_of(const Kernel& kernel) const {
  constexpr std::int64_t longest_short_row = 65536, most_flat_dimensions = 3;
  const KindPrices& prices = by_kind_[static_cast<std::size_t>(kernel.kind)];
  if (prices.short_rows && kernel.n > 0 && kernel.n <= longest_short_row) return prices.short_rows;
  if (prices.fp32 && kernel.dtype == DType::fp32) return prices.fp32;
  const bool flat = kernel.m <= most_flat_dimensions;
  if (prices.flat && flat) return prices.flat;
  if (prices.sixteen_bit && size_of(kernel.dtype) == 2) return prices.sixteen_bit;
  return prices.any;
}

double Prices::kernel_seconds(const Kernel& kernel) const {
  switch (kernel.kind) {
    case KernelKind::gemm:
      if (kernel.batch > 1) return batched_seconds(kernel);
      return product_seconds(as_double(kernel.m), as_double(kernel.n), as_double(kernel.k), kernel.dtype,
                             kernel.linear);
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
  const KernelPrice* price = price_of(kernel);
  if (!price)
    return 1.35e-6 + as_double(kernel.bytes.count) / (0.85 * std::max(1.0, cluster_.device.memory_bandwidth.count));
  const Bytes output = Elements(kernel.elements) * kernel.dtype;
  const bool counts_rows = kernel.kind == KernelKind::reduce_last && of_row_ && kernel.n > 0;
  const double of_rows = counts_rows ? of_row_->fixed_s * as_double(kernel.elements) / as_double(kernel.n) : 0;
  // A sort's passes are as many kernels, each over all keys.
  const double passes = kernel.kind == KernelKind::sort_pass ? kernel.launches : 1;
  return of_rows + passes * pointwise_seconds(*price, calibration_.cache, as_double(kernel.elements),
                                              as_double(kernel.bytes.count), as_double(output.count), sag_);
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

CollectiveCost Prices::by_copies(const Collective& collective, int members) const {
  const double full = as_double(collective.full_size.count), part = full / members;
  const double links = bandwidth_per_gpu(cluster_, Tier::nvlink).count * peer_copy_share_of_links;
  const bool whole = collective.kind == CollectiveKind::all_reduce;
  const double seconds = peer_copy_fixed_s + (members - 1) * (whole ? full : part) / links;
  CollectiveCost cost;
  cost.time = to_sim(seconds);
  cost.demand[static_cast<std::size_t>(Tier::nvlink)] = 1;
  cost.evidence = members == 2 && cluster_.device.name == "h200" ? Evidence::measured : Evidence::assumed;
  return cost;
}

CollectiveCost Prices::collective(const Collective& collective, int rank) const {
  const Group& group = program_.groups[collective.group];
  CollectiveCost cost;
  if (group.size <= 1) return cost;
  if (collective.carrier == Carrier::copy_engines) return by_copies(collective, group.size);
  const auto curve = collective_curve(calibration_.collectives, cluster_, collective.kind,
                                      group_of_rank(group.size, group.stride, rank));
  if (!curve) return cost;
  const double bytes = as_double(std::max(collective.full_size, collective.receive_size).count);
  const double seconds = curve->seconds(bytes);
  cost.tier = curve->farthest;
  cost.evidence = curve->evidence;
  const double wire = sent_per_byte(collective.kind, group.size) * bytes;
  for (const Tier tier : {Tier::nvlink, Tier::pcie, Tier::nic, Tier::spine}) {
    const double bandwidth = bandwidth_per_gpu(cluster_, tier).count;
    const double load = curve->shares.load(tier);
    if (load <= 0 || seconds <= 0) continue;
    cost.demand[static_cast<std::size_t>(tier)] =
        bandwidth > 0 ? std::min(1.0, wire * load / seconds / (0.9 * bandwidth)) : 1.0;
  }
  cost.time = to_sim(seconds);
  return cost;
}

SimTime Prices::copy(const HostCopy& copy) const {
  const double bytes = as_double(copy.size.count);
  // In a step the ranks of a node copy at the same time: where that was measured, it counts.
  const CopyPrice* found = nullptr;
  for (const CopyPrice& price : calibration_.copy_prices) {
    if (price.to_device != copy.to_device || price.pinned != copy.pinned) continue;
    if (price.all_ranks ? cluster_.devices_per_node > 1 : found == nullptr) found = &price;
  }
  if (found) return to_sim(copy_seconds(*found, bytes));
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

SimTime Prices::launch(Issuer issuer, const Kernel& kernel) const {
  if (kernel.compiled) return launch(issuer, KernelKind::compiled_pointwise) * kernel.launches;
  const SimTime one = launch(issuer, kernel.kind);
  // A sort's passes, cheap too, are among the launches over which the price of one is the mean.
  const bool loop = kernel.kind == KernelKind::grouped_gemm;
  const SimTime another = loop ? std::min(one, to_sim(calibration_.host.launch_repeated_s)) : one;
  return one + another * (kernel.launches - 1);
}

SimTime Prices::host_work(const HostWork& work) const {
  if (work.kind == HostWorkKind::cpu_adam)
    return to_sim(calibration_.host.cpu_adam_s_per_element * as_double(work.count));
  return to_sim(host_work_[static_cast<std::size_t>(work.kind)] * as_double(work.count));
}

}  // namespace plimsoll
