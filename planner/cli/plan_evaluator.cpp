// Evaluates a plan by simulation and ledger (planner/cli/plan_evaluator.hpp).
//
//   1. the step program of one rank; the sum of its live tensors against the GPU: cheap, and enough for most that do not fit
//   2. the simulated step; enough for what is slower than a plan already found
//   3. the allocator replay of that rank; then the ledger of the hottest rank with all alternatives, as `ledger` gives it
#include "planner/cli/plan_evaluator.hpp"

#include <algorithm>
#include <limits>

#include "planner/cli/evaluate.hpp"
#include "planner/step/build_step.hpp"
#include "planner/step/layers/routing.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

/// simulate_step() lets clocks sag in steps longer than this.
constexpr double sags_from_s = 0.3;

/// Kernels that only layers launch; engines copy, fill, cast, add and reduce, but do none of these.
bool is_layers_own(const Kernel& kernel, Issuer issuer) {
  switch (kernel.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::attention_forward:
    case KernelKind::attention_backward:
    case KernelKind::silu:
    case KernelKind::silu_backward:
    case KernelKind::strided_neg:
    case KernelKind::strided_add:
    case KernelKind::strided_mul:
    case KernelKind::broadcast_weight:
    case KernelKind::broadcast_row:
    case KernelKind::log_softmax:
    case KernelKind::log_softmax_backward:
    case KernelKind::softmax:
    case KernelKind::softmax_backward:
    case KernelKind::fused_swiglu:
    case KernelKind::fused_swiglu_backward:
    case KernelKind::fused_norm:
    case KernelKind::fused_norm_backward:
    case KernelKind::fused_rotary:
    case KernelKind::compiled_pointwise: return true;
    case KernelKind::vectorized:
    case KernelKind::upcast: return issuer == Issuer::forward;
    default: return false;
  }
}

/// Time of the layers' own kernels in one micro-batch, on the device and on the host that launches them: whatever engine
/// runs these layers, its step takes at least the longer of both for each micro-batch.
double floor_of(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration) {
  const RankProgram& rank = program.classes.front().program;
  const Prices prices(calibration, cluster, program, 1);
  SimTime device = 0, host = 0;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    const auto* compute = std::get_if<Compute>(&op.action);
    if (compute == nullptr || op.micro_batch != 0 || op.issuer == Issuer::optimizer) continue;
    const Kernel& kernel = rank.kernels[compute->kernel];
    if (!is_layers_own(kernel, op.issuer)) continue;
    device += prices.kernel(kernel);
    host += prices.launch(op.issuer, kernel.kind) * kernel.launches;
  }
  return to_seconds(std::max(device, host));
}

int first_rank(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  return plan.routing.kind != Routing::Kind::balanced && plan.world_size > 1 ? hottest_rank(scenario) : 0;
}

void enter(const Ledger& ledger, Evaluated& evaluated) {
  evaluated.judged = true;
  evaluated.verdict = ledger.verdict;
  evaluated.host_breaks = ledger.breaks_on_host;
  evaluated.allocated_peak = ledger.allocated_peak.value;
  evaluated.device_peak = ledger.device_peak.value;
  evaluated.job_device_peak = ledger.job_device_peak.value;
  evaluated.host_per_node = ledger.host_per_node;
  evaluated.margin = ledger.margin;
}

Evaluated evaluate_plan(const Scenario& scenario, double worth_s, const Calibration& calibration) {
  Evaluated evaluated;
  const StepProgram program = build_step(scenario, first_rank(scenario));
  const RankProgram& rank = program.classes.front().program;
  LedgerContext context = ledger_context(scenario);
  evaluated.floor_s = floor_of(program, scenario.cluster, calibration);
  const Bytes least = peak_of_sizes(rank) + context.outside.total();
  if (least > context.capacity) {
    evaluated.judged = true;
    evaluated.beyond_memory = true;
    evaluated.margin = context.capacity - least;
    return evaluated;
  }
  const Timeline timeline = simulate_step(program, scenario.cluster, calibration);
  evaluated.step_time_s =
      timeline.unfinished.empty() ? to_seconds(timeline.step_time) : std::numeric_limits<double>::infinity();
  evaluated.bound_by = timeline.bound_by;
  evaluated.evidence = std::max(timeline.evidence, calibration.gemm.provenance.evidence);
  if (evaluated.step_time_s > worth_s) return evaluated;
  context.bistable = false;
  enter(make_ledger(rank, context), evaluated);
  if (evaluated.verdict != Verdict::oom) enter(evaluate(scenario).ledger, evaluated);
  return evaluated;
}

/// The highest bus bandwidth of any measured curve over the published bandwidth of its tier; at least 1.
double fastest_link(const Calibration& calibration, const ClusterSpec& cluster) {
  double fastest = 1;
  for (const CollectivePrice& price : calibration.collectives) {
    const double published = bandwidth_per_gpu(cluster, price.tier).count;
    if (published <= 0 || price.ranks < 2) continue;
    constexpr std::int64_t size = std::int64_t{1} << 40;
    const double sent = wire_bytes(price.kind, Bytes(size), price.ranks) / Bytes(size);
    for (const CollectivePrice::Piece& piece : price.pieces)
      fastest = std::max(fastest, piece.bytes_per_s * sent / published);
  }
  return fastest;
}

}  // namespace

Evaluator plan_evaluator(const Calibration& calibration) {
  return [&calibration](const Scenario& scenario, double worth_s) {
    return evaluate_plan(scenario, worth_s, calibration);
  };
}

SearchOptions search_options(const Calibration& calibration, const ClusterSpec& cluster) {
  SearchOptions options;
  options.peaks = published_peaks(cluster.device);
  double& matrix = options.peaks.matrix_flops_per_s;
  matrix = std::max({matrix, calibration.gemm.flops_per_s, calibration.grouped_gemm.flops_per_s});
  for (const auto* rates : {&calibration.attention.forward, &calibration.attention.backward})
    for (const AttentionPrice::Rate& rate : *rates) matrix = std::max(matrix, rate.flops_per_s);
  options.peaks.fp32_flops_per_s = std::max(options.peaks.fp32_flops_per_s, calibration.gemm.fp32_flops_per_s);
  options.peaks.link_speedup = fastest_link(calibration, cluster);
  options.amortisation = {true, std::max(1.0, calibration.gemm.sag), sags_from_s};
  return options;
}

}  // namespace plimsoll
