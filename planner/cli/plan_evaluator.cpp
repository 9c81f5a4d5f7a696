// Evaluates a plan by simulation and ledger (planner/cli/plan_evaluator.hpp).
//
//   1. the step program of one rank: its layers' own time, enough for what is much slower than a plan already found
//   2. the sum of its live tensors, then the allocator replay: enough for what does not fit
//   3. the simulated step: enough for what is slower
//   4. the ledger of the hottest rank with all alternatives, as `ledger` gives it
#include "planner/cli/plan_evaluator.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

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

struct StepTime {
  double seconds = 0;
  std::string bound_by;
  Evidence evidence = Evidence::assumed;
};

StepTime simulated_time(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration) {
  const Timeline timeline = simulate_step(program, cluster, calibration);
  const Evidence evidence = std::max(timeline.evidence, calibration.gemm.provenance.evidence);
  if (!timeline.unfinished.empty()) return {std::numeric_limits<double>::infinity(), "nothing", evidence};
  return {to_seconds(timeline.step_time), timeline.bound_by, evidence};
}

/// The step's time.  Many equal micro-batches are not all put on the clock: with two and with six of them the time is
/// simulated, and what four more take is added as often as it takes.
StepTime time_of(StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration) {
  constexpr std::int64_t few = 2, more = 6;
  RankProgram& rank = program.classes.front().program;
  const auto repeat = std::find_if(rank.repeats.begin(), rank.repeats.end(),
                                   [&](const Repeat& r) { return r.first >= rank.steady_first; });
  if (repeat == rank.repeats.end() || repeat->count <= more) return simulated_time(program, cluster, calibration);
  const std::int64_t all = std::exchange(repeat->count, few);
  const double with_few = simulated_time(program, cluster, calibration).seconds;
  repeat->count = more;
  StepTime time = simulated_time(program, cluster, calibration);
  repeat->count = all;
  // Clocks that sag in the long step but not in the short ones: the step itself decides.
  if (with_few <= sags_from_s) return simulated_time(program, cluster, calibration);
  time.seconds += (time.seconds - with_few) * static_cast<double>(all - more) / static_cast<double>(more - few);
  return time;
}

int first_rank(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  return plan.routing.kind != Routing::Kind::balanced && plan.world_size > 1 ? hottest_rank(scenario) : 0;
}

/// Where evaluate() looks at several ranks for the hottest: partitions of stages 1 and 2 differ.
bool ranks_differ(const Plan& plan) {
  return plan.engine == Engine::deepspeed && (plan.zero.stage == 1 || plan.zero.stage == 2);
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

Bytes live_at_least(const StepProgram& program, const LedgerContext& context) {
  return peak_of_sizes(program.classes.front().program) + context.outside.total();
}

/// True if that is all there is to know: its tensors are beyond the GPU.
bool is_beyond(Bytes live, const LedgerContext& context, Evaluated& evaluated) {
  if (live <= context.capacity) return false;
  evaluated.judged = true;
  evaluated.margin = context.capacity - live;
  return true;
}

Evaluated evaluate_plan(const Scenario& scenario, double worth_s, const Calibration& calibration) {
  Evaluated evaluated;
  const int rank = first_rank(scenario);
  const std::int64_t accumulation = scenario.plan.gradient_accumulation;
  LedgerContext context = ledger_context(scenario);
  // One micro-batch takes a third of the time to lay out, and is enough for most.
  Scenario once = scenario;
  once.plan.gradient_accumulation = 1;
  StepProgram program = build_step(once, rank);
  evaluated.floor_s = floor_of(program, scenario.cluster, calibration);
  evaluated.least_memory = live_at_least(program, context);
  evaluated.step_time_s = evaluated.floor_s * static_cast<double>(accumulation);
  if (is_beyond(evaluated.least_memory, context, evaluated) || evaluated.step_time_s > worth_s) return evaluated;
  if (accumulation > 1) {
    program = build_step(scenario, rank);
    const Bytes live = live_at_least(program, context);
    if (accumulation >= 3) evaluated.least_accumulating = live;
    if (is_beyond(live, context, evaluated)) return evaluated;
  }
  context.bistable = false;
  const Ledger ledger = make_ledger(program.classes.front().program, context);
  if (ledger.verdict == Verdict::oom) {
    enter(ledger, evaluated);
    return evaluated;
  }
  const StepTime time = time_of(program, scenario.cluster, calibration);
  evaluated.step_time_s = time.seconds;
  evaluated.bound_by = time.bound_by;
  evaluated.evidence = time.evidence;
  if (evaluated.step_time_s > worth_s) return evaluated;
  if (ranks_differ(scenario.plan)) {
    enter(evaluate(scenario).ledger, evaluated);
  } else {
    context.bistable = true;
    enter(make_ledger(program.classes.front().program, context), evaluated);
  }
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
