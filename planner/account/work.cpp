// Sums of the steady step's kernels and collectives (planner/account/work.hpp).
#include "planner/account/work.hpp"

#include <algorithm>
#include <array>

#include "planner/spec/topology.hpp"

namespace plimsoll {

namespace {

double kernel_seconds(const Kernel& kernel, const DeviceSpec& device) {
  const double peak = kernel.dtype == DType::fp32 ? device.fp32_flops_per_s : device.bf16_flops_per_s;
  const double compute = peak > 0 ? kernel.flops().count / peak : 0;
  const double memory =
      device.memory_bandwidth.count > 0 ? static_cast<double>(kernel.bytes.count) / device.memory_bandwidth.count : 0;
  return std::max(compute, memory);
}

/// A collective cannot be faster than its busiest tier's bytes over that tier's bandwidth.
double collective_seconds(const Collective& action, const Group& group, int rank, const ClusterSpec& cluster) {
  if (group.size <= 1) return 0;
  const auto shares = tier_share(cluster, group_of_rank(group.size, group.stride, rank), action.kind);
  if (!shares) return 0;
  const auto wire = static_cast<double>(wire_bytes(action.kind, action.full_size, group.size).count);
  double slowest = 0;
  for (int t = 0; t < tier_count; ++t) {
    const auto tier = static_cast<Tier>(t);
    const double bandwidth = bandwidth_per_gpu(cluster, tier).count;
    if (shares->load(tier) > 0 && bandwidth > 0) slowest = std::max(slowest, wire * shares->load(tier) / bandwidth);
  }
  return slowest;
}

}  // namespace

Work account_work(const StepProgram& program, const RankProgram& rank, const ClusterSpec& cluster) {
  Work work;
  std::array<double, lane_count> lanes{};
  std::vector<double> groups(program.groups.size());
  const int example = program.classes.empty() ? 0 : program.classes.front().example_rank;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    std::int64_t times = 1;
    for (const Repeat& repeat : rank.repeats) {
      if (id >= repeat.first && id < repeat.end) times = repeat.count;
    }
    const auto factor = static_cast<double>(times);
    double& lane = lanes[static_cast<std::size_t>(op.lane)];
    if (const auto* compute = std::get_if<Compute>(&op.action)) {
      const Kernel& kernel = rank.kernels[compute->kernel];
      const double seconds = kernel_seconds(kernel, cluster.device) * factor;
      work.matrix_flops += kernel.flops() * factor;
      work.memory_traffic += kernel.bytes * times;
      work.launches += kernel.launches * times;
      work.compute_bound += Seconds(seconds);
      lane += seconds;
    } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
      const double seconds =
          collective_seconds(*collective, program.groups[collective->group], example, cluster) * factor;
      work.communication_bound += Seconds(seconds);
      lane += seconds;
      groups[collective->group] += seconds;
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      const double bandwidth = cluster.host_link.bandwidth.count;
      if (bandwidth > 0) lane += static_cast<double>(copy->size.count) / bandwidth * factor;
    }
  }
  work.lower_bound = Seconds(*std::max_element(lanes.begin(), lanes.end()));
  for (const double group : groups) work.lower_bound = std::max(work.lower_bound, Seconds(group));
  return work;
}

}  // namespace plimsoll
