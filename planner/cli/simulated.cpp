// From a timeline to the figures of `simulate` (planner/cli/simulated.hpp).
#include "planner/cli/simulated.hpp"

#include <algorithm>

namespace plimsoll {

namespace {

/// Of steps that the device bounds and measured kernels price: nine in ten of those in tests/data/measured lie within.
constexpr double measured_kernel_error = 0.05;
constexpr double assumed_error = 0.15;

/// Machines of one kind differ by more than the hosts of one machine's ranks: on two with one H200 each, 2026-11-30, six steps
/// that a host bounds (stages 2 and 3, dense and experts; two of the six on both) took 0.55 to 0.74 and 1.1 to 1.6 of what is
/// calibrated.
constexpr double fastest_machine = 0.55, slowest_machine = 1.6;

bool is_beyond_measurements(Evidence evidence) {
  return evidence == Evidence::extrapolated || evidence == Evidence::assumed;
}

/// Collectives whose curve is of another number of ranks, or published, may be faster, which shortens at most what waits for
/// them, or slower, which adds at most their whole time.
void widen_by_collectives(SimulatedStep& step) {
  for (const auto& [name, use] : step.kernels) {
    const auto exposed = step.timeline.exposed.find(name);
    if (!collective_of(name)) continue;
    if (exposed != step.timeline.exposed.end()) step.low_s -= assumed_error * to_seconds(exposed->second);
    step.high_s += assumed_error * to_seconds(use.busy);
  }
  step.low_s = std::max(0.0, step.low_s);
}

std::map<std::string, KernelUse> by_kind(const StepProgram& program, const Timeline& timeline) {
  std::map<std::string, KernelUse> result;
  for (const TimedOp& op : timeline.ops) {
    if (op.class_index != timeline.told) continue;
    const RankProgram& rank = program_of(program, timeline, op);
    const Action& action = rank.ops[op.op].action;
    const char* kind = nullptr;
    if (const auto* compute = std::get_if<Compute>(&action)) kind = name_of(rank.kernels[compute->kernel].kind);
    if (const auto* collective = std::get_if<Collective>(&action)) kind = name_of(collective->kind);
    if (!kind) continue;
    KernelUse& use = result[kind];
    ++use.count;
    use.busy += op.end - op.start;
  }
  return result;
}

}  // namespace

SimulatedStep simulated(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration,
                        const std::map<int, double>& stragglers, int tell_of) {
  SimulatedStep step;
  SimulateOptions options;
  options.stragglers = stragglers;
  options.tell_of = tell_of;
  step.timeline = simulate_step(program, cluster, calibration, options);
  const bool widens = is_beyond_measurements(step.timeline.evidence);  // the collectives', so far
  step.timeline.evidence = std::max(step.timeline.evidence, calibration.gemm.provenance.evidence);
  step.calibration = calibration.name;
  step.step_time_s = to_seconds(step.timeline.step_time);
  const double error =
      calibration.gemm.provenance.evidence == Evidence::assumed ? assumed_error : measured_kernel_error;
  const double spread = calibration.host.spread;  // 0: that of this very machine
  const double fastest = spread > 0 ? std::min(fastest_machine, 1 - spread) : 1;
  const double slowest = spread > 0 ? std::max(slowest_machine, 1 + spread) : 1;
  const auto bound = [&](double host, double kernel) {
    options.host_factor = host;
    options.kernel_factor = kernel;
    return to_seconds(simulate_step(program, cluster, calibration, options).step_time);
  };
  step.low_s = std::min(step.step_time_s, bound(std::max(0.0, fastest), 1 - error));
  step.high_s = std::max(step.step_time_s, bound(slowest, 1 + error));
  if (step.step_time_s <= 0) return step;
  step.tokens_per_s_per_gpu = static_cast<double>(program.tokens_per_step_per_rank) / step.step_time_s;
  const double flops_per_s = program.model_flops_per_step_per_rank / step.step_time_s;
  step.model_tflops_per_gpu = flops_per_s * 1e-12;
  if (cluster.device.bf16_flops_per_s > 0) step.mfu = flops_per_s / cluster.device.bf16_flops_per_s;
  step.idle_share = static_cast<double>(step.timeline.idle) / static_cast<double>(step.timeline.step_time);
  step.kernels = by_kind(program, step.timeline);
  if (widens) widen_by_collectives(step);
  return step;
}

}  // namespace plimsoll
