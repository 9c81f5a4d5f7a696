// Evaluates a plan by simulation and ledger (planner/cli/plan_evaluator.hpp).
//
//   1. the step program of one rank: its layers' own time, then that of its busiest lane, enough for what is much slower
//      than a plan already found
//   2. the sum of its live tensors, then the allocator replay: enough for what does not fit
//   3. the simulated step: enough for what is slower
//   4. the ledger of the hottest rank with all alternatives, as `ledger` gives it
#include "planner/cli/plan_evaluator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "planner/account/tight.hpp"
#include "planner/base/in_parallel.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/fastest_rates.hpp"
#include "planner/search/short_model.hpp"
#include "planner/spec/price_rules.hpp"
#include "planner/step/build_step.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

/// Of a search: each holds a step program and its pool, some 30 MB for large models.
constexpr int most_threads = 16;

/// Kernels that layers launch in each micro-batch, whatever engine runs them.  Of the kinds that engines launch too, those
/// whose role is a layer's alone.
bool is_layers_own(const Kernel& kernel, std::string_view role) {
  constexpr std::string_view roles[] = {
      "norm input in fp32",    "norm square",      "normalised",   "silu(gate) up", "logits in fp32", "cast gradient",
      "gradient of a product", "sum of gradients", "pow backward", "weighted rows", "combine buffer"};
  switch (kernel.kind) {
    case KernelKind::vectorized:
    case KernelKind::upcast:
    case KernelKind::mixed_mul:
    case KernelKind::fill: return std::find(std::begin(roles), std::end(roles), role) != std::end(roles);
    case KernelKind::upcast_fp64:
    case KernelKind::scalar_tensor_mul:
    case KernelKind::unscale:
    case KernelKind::flat_copy:
    case KernelKind::reduce_norm:
    case KernelKind::reduce_amax:
    case KernelKind::memset:
    case KernelKind::small:
    case KernelKind::fsdp_copy_in:
    case KernelKind::fsdp_copy_in_cast:
    case KernelKind::fsdp_copy_out:
    case KernelKind::chunk_concatenate:
    case KernelKind::adamw:
    case KernelKind::adamw_pass: return false;
    default: return true;
  }
}

/// The least step time x where clocks sag by a share that rises with matrix work M over step time (as simulate_step() has
/// it): x = L(share(M / x)), L being the longest lane, from `plain` without sag to `sagged`.  A shorter step would have clocks
/// that sag more, and a longer one is longer.
double with_sag(double plain, double sagged, double matrix, const GemmPrice& gemm, int gpus) {
  if (gemm.sag <= 1 || plain <= 0) return plain;
  double low = plain, high = std::max(plain, sagged);
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    (plain + (sagged - plain) * sag_share(gemm, matrix / middle, gpus) >= middle ? low : high) = middle;
  }
  return low;
}

/// Work of the host in each micro-batch that depends neither on the sizes of buckets nor on how gathers are joined.
bool is_of_each_micro_batch(HostWorkKind kind) {
  return kind != HostWorkKind::collective_issue && kind != HostWorkKind::optimizer_parameter &&
         kind != HostWorkKind::cpu_adam && kind != HostWorkKind::zero3_parameter;
}

/// Time of the layers' own kernels in one micro-batch, on the device and on the host that launches them and runs the hooks.
/// @param stands_for how many layers each layer counts for; empty: one each, and no hooks
LayersTime floor_of(const StepProgram& program, std::uint16_t micro_batch, const ClusterSpec& cluster,
                    const Calibration& calibration, const std::vector<std::int64_t>& stands_for) {
  const RankProgram& rank = program.classes.front().program;
  const Prices prices(calibration, cluster, program, 1), sagging(calibration, cluster, program, calibration.gemm.sag);
  const SimTime gap = to_sim(std::min(calibration.host.kernel_gap_s, calibration.host.kernel_gap_streams_s));
  SimTime device = 0, sagged = 0, matrix = 0, host = 0;
  for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
    const Op& op = rank.ops[id];
    if (op.micro_batch != micro_batch || op.issuer == Issuer::optimizer) continue;
    const SimTime times = op.layer >= 0 && !stands_for.empty() ? stands_for[static_cast<std::size_t>(op.layer)] : 1;
    const auto* work = std::get_if<HostWork>(&op.action);
    if (work != nullptr && !stands_for.empty() && is_of_each_micro_batch(work->kind))
      host += times * prices.host_work(*work);
    if (const auto* collective = std::get_if<Collective>(&op.action)) {
      // An exchange on the stream that computes is the layers' own, too.
      if (collective->kind != CollectiveKind::all_to_all || op.lane != Lane::compute) continue;
      const SimTime alone = prices.collective(*collective, program.classes.front().example_rank).time;
      device += times * alone;
      sagged += times * alone;
      continue;
    }
    const auto* compute = std::get_if<Compute>(&op.action);
    if (compute == nullptr) continue;
    const Kernel& kernel = rank.kernels[compute->kernel];
    if (!is_layers_own(kernel, op.role)) continue;
    const SimTime alone = prices.kernel(kernel);
    device += times * (alone + gap * kernel.launches);
    sagged += times * (sagging.kernel(kernel) + gap * kernel.launches);
    matrix += times * to_sim(prices.matrix_seconds(kernel));
    host += times * prices.launch(op.issuer, kernel);
  }
  const double on_device = with_sag(to_seconds(device - gap), to_seconds(sagged - gap), to_seconds(matrix),
                                    calibration.gemm, program.world_size);
  return {on_device, to_seconds(host)};
}

/// The work of each lane on its own, of each group's collectives, which run one after another, and of the host: no clock is
/// needed to know that a step takes at least the longest.
class LaneSums {
 public:
  LaneSums(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration, double sag)
      : rank_(program.classes.front().program),
        example_(program.classes.front().example_rank),
        prices_(calibration, cluster, program, sag),
        groups_(program.groups.size()) {
    for (OpId id = rank_.steady_first; id < rank_.steady_end; ++id) {
      SimTime times = 1;
      for (const Repeat& repeat : rank_.repeats)
        if (id >= repeat.first && id < repeat.end) times = repeat.count;
      add(rank_.ops[id], times);
    }
  }
  /// There is no gap before a lane's first op.
  double longest_s() const {
    SimTime longest = std::max(host_, *std::max_element(lanes_.begin(), lanes_.end()) - prices_.kernel_gap());
    for (const SimTime group : groups_) longest = std::max(longest, group);
    return to_seconds(longest);
  }
  /// Tensor-core work, whose share of the step decides how far clocks sag.
  double matrix_s() const { return to_seconds(matrix_); }

 private:
  void add(const Op& op, SimTime times) {
    SimTime& lane = lanes_[static_cast<std::size_t>(op.lane)];
    if (const auto* compute = std::get_if<Compute>(&op.action)) {
      const Kernel& kernel = rank_.kernels[compute->kernel];
      const SimTime alone = prices_.kernel(kernel);
      lane += times * (alone + prices_.kernel_gap() * kernel.launches);
      host_ += times * prices_.launch(op.issuer, kernel);
      matrix_ += times * to_sim(prices_.matrix_seconds(kernel));
    } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
      const SimTime alone = prices_.collective(*collective, example_).time;
      lane += times * alone;
      if (collective->carrier == Carrier::kernels) groups_[collective->group] += times * alone;
    } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
      lane += times * prices_.copy(*copy);
    } else if (const auto* work = std::get_if<HostWork>(&op.action)) {
      host_ += times * prices_.host_work(*work);
    }
  }

  const RankProgram& rank_;
  int example_;
  Prices prices_;
  std::array<SimTime, lane_count> lanes_{};
  std::vector<SimTime> groups_;
  SimTime host_ = 0, matrix_ = 0;
};

/// A step of these ops takes at least so long.
double least_time(const StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration) {
  const LaneSums plain(program, cluster, calibration, 1), sagged(program, cluster, calibration, calibration.gemm.sag);
  return with_sag(plain.longest_s(), sagged.longest_s(), plain.matrix_s(), calibration.gemm, program.world_size);
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
/// simulated, and what four more take is added as often as it takes; but all of them take no less than their lanes, groups
/// and host have to do, so that no bound on these is above it.
StepTime time_of(StepProgram& program, const ClusterSpec& cluster, const Calibration& calibration) {
  constexpr std::int64_t few = 2, more = 6;
  const auto repeat_of = [](RankProgram& rank) {
    return std::find_if(rank.repeats.begin(), rank.repeats.end(),
                        [&](const Repeat& r) { return r.first >= rank.steady_first; });
  };
  RankProgram& first = program.classes.front().program;
  const auto repeat = repeat_of(first);
  if (repeat == first.repeats.end() || repeat->count <= more) return simulated_time(program, cluster, calibration);
  const std::int64_t all = repeat->count;
  const auto repeat_times = [&](std::int64_t count) {
    for (RankClass& ranks : program.classes) repeat_of(ranks.program)->count = count;
  };
  repeat_times(few);
  const double with_few = simulated_time(program, cluster, calibration).seconds;
  repeat_times(more);
  StepTime time = simulated_time(program, cluster, calibration);
  repeat_times(all);
  time.seconds += (time.seconds - with_few) * static_cast<double>(all - more) / static_cast<double>(more - few);
  time.seconds = std::max(time.seconds, least_time(program, cluster, calibration));
  return time;
}

int first_rank(const Scenario& scenario) { return distinct_ranks(scenario).front().rank; }

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

/// True if that is all there is to know: its tensors are beyond the GPU, and a plan that fits is known.  Else what it lacks,
/// on the host too, decides which plan comes nearest.
bool is_beyond(Bytes live, const LedgerContext& context, double worth_s, Evaluated& evaluated) {
  if (live <= context.capacity || !std::isfinite(worth_s)) return false;
  evaluated.judged = true;
  evaluated.margin = context.capacity - live;
  return true;
}

Evaluated evaluate_plan(const Scenario& scenario, double worth_s, const Calibration& calibration) {
  Evaluated evaluated;
  const int rank = first_rank(scenario);
  const std::int64_t accumulation = scenario.plan.gradient_accumulation;
  LedgerContext context = ledger_context(scenario);
  StepProgram program;
  // Where no short model has told: one micro-batch takes a third of the time to lay out, and is enough for most.
  if (accumulation == 1 || !shorten(scenario)) {
    Scenario once = scenario;
    once.plan.gradient_accumulation = 1;
    program = build_unstamped(once, rank);
    evaluated.layers = floor_of(program, 0, scenario.cluster, calibration, {});
    evaluated.least_memory = live_at_least(program, context);
    evaluated.step_time_s = evaluated.layers.longest_s() * static_cast<double>(accumulation);
    if (is_beyond(evaluated.least_memory, context, worth_s, evaluated)) return evaluated;
    if (evaluated.step_time_s > worth_s) return evaluated;
  }
  if (accumulation > 1) {
    program = build_unstamped(scenario, rank);
    const Bytes live = live_at_least(program, context);
    if (accumulation >= 3) evaluated.least_accumulating = live;
    if (is_beyond(live, context, worth_s, evaluated)) return evaluated;
  }
  evaluated.step_time_s = std::max(evaluated.step_time_s, least_time(program, scenario.cluster, calibration));
  if (evaluated.step_time_s > worth_s) return evaluated;
  context.bistable = false;
  const Ledger ledger = make_ledger(program.classes.front().program, context);
  if (ledger.verdict == Verdict::oom) {
    enter(ledger, evaluated);
    return evaluated;
  }
  add_other_ranks(scenario, program);
  const StepTime time = time_of(program, scenario.cluster, calibration);
  evaluated.step_time_s = time.seconds;
  evaluated.bound_by = time.bound_by;
  evaluated.evidence = time.evidence;
  if (evaluated.step_time_s > worth_s) return evaluated;
  context.bistable = true;
  enter(make_ledger(program.classes[hottest_class(program, context)].program, context), evaluated);
  return evaluated;
}

/// A plan whose tensors are at least so large fits, and not only tightly, on a device of at least so many bytes
/// (planner/account/ledger.hpp).
Bytes least_to_fit(const PeakLive& live, const LedgerContext& context) {
  const Bytes outside = context.outside.total();
  const auto scaled = [](Bytes bytes, double factor) {
    return Bytes(static_cast<std::int64_t>(static_cast<double>(bytes.count) * factor));
  };
  return std::max(scaled(outside + live.of_job(), 1 / (1 - tight_share)),
                  outside + scaled(live.in_steps, 1 + context.reserved_margin));
}

Outline memory_outline(const Shortened& shortened, const Scenario& scenario) {
  const int rank = first_rank(scenario);
  const StepProgram few = build_unstamped(shortened.few, rank), more = build_unstamped(shortened.more, rank);
  const LedgerContext context = ledger_context(scenario);
  const PeakLive live = least_live(few.classes.front().program, more.classes.front().program, shortened.left_out,
                                   shortened.constructs_whole);
  Outline outline;
  outline.least_memory = live.of_job() + context.outside.total();
  outline.least_to_fit = least_to_fit(live, context);
  return outline;
}

/// The time of the layers from a few of them.
Outline layers_outline(Shortened& shortened, const Calibration& calibration) {
  // The first and the last micro-batch of a step have some work of their own, and need not be the same one.
  Plan& plan = shortened.few.plan;
  plan.gradient_accumulation = 2;
  // What layers do does not depend on how many ranks share the states; a few are laid out faster than thousands.
  if (plan.engine == Engine::deepspeed) plan.world_size = std::min(plan.world_size, 2 * plan.expert_parallel);
  const StepProgram few = build_unstamped(shortened.few, first_rank(shortened.few));
  const auto of = [&](std::uint16_t micro_batch) {
    return floor_of(few, micro_batch, shortened.few.cluster, calibration, shortened.stands_for);
  };
  const LayersTime first = of(0), last = of(1);
  Outline outline;
  outline.layers = {std::min(first.device_s, last.device_s), std::min(first.host_s, last.host_s)};
  return outline;
}

/// A device of about so many bytes holds the plan, and not only tightly: halfway from what its tensors need to what the
/// allocator would reserve, by what it reserves for short models.  These fragment otherwise than the whole (of 50 plans near a
/// GPU's capacity that figure alone was 34 % below to 37 % above the truth), so that it is not trusted alone.
Bytes expected_to_fit(const RankProgram& few, const RankProgram& more, double times, const LedgerContext& context) {
  const Bytes in_few = replay_job(few, context).job_reserved_peak;
  const Bytes in_more = replay_job(more, context).job_reserved_peak;
  const double of_steps = static_cast<double>(in_few.count) + static_cast<double>((in_more - in_few).count) * times;
  const double on_device = of_steps + static_cast<double>(context.outside.total().count);
  const Bytes of_allocator(static_cast<std::int64_t>(on_device / (1 - tight_share)));
  const Bytes of_tensors = least_to_fit(expected_live(few, more, times), context);
  return std::max(of_tensors, Bytes((of_tensors + of_allocator).count / 2));
}

/// The step by two shorter models with the plan's own buckets and gathers, on one rank; closely: by longer ones, with ranks that
/// do something else, and by what the allocator makes of their tensors.
Outline step_outline(const Scenario& scenario, bool closely, const Calibration& calibration) {
  std::optional<Shortened> shortened = shorten(scenario, closely ? 4 : 1);
  if (!shortened) return {};
  shortened->few.plan.zero = shortened->more.plan.zero = scenario.plan.zero;
  const int rank = first_rank(scenario);
  StepProgram few = build_unstamped(shortened->few, rank), more = build_unstamped(shortened->more, rank);
  if (closely) {
    add_other_ranks(shortened->few, few);
    add_other_ranks(shortened->more, more);
  }
  const RankProgram &of_few = few.classes.front().program, &of_more = more.classes.front().program;
  const double times = static_cast<double>(shortened->left_out) / static_cast<double>(shortened->apart);
  const LedgerContext context = ledger_context(scenario);
  const double short_s = time_of(few, scenario.cluster, calibration).seconds;
  Outline outline;
  outline.expected_s = short_s + (time_of(more, scenario.cluster, calibration).seconds - short_s) * times;
  outline.expected_to_fit = closely ? expected_to_fit(of_few, of_more, times, context)
                                    : least_to_fit(expected_live(of_few, of_more, times), context);
  return outline;
}

Outline outline_of(const Scenario& scenario, OutlineOf what, const Calibration& calibration) {
  if (what == OutlineOf::step || what == OutlineOf::close_step)
    return step_outline(scenario, what == OutlineOf::close_step, calibration);
  std::optional<Shortened> shortened = shorten(scenario);
  if (!shortened) return {};
  return what == OutlineOf::layers ? layers_outline(*shortened, calibration) : memory_outline(*shortened, scenario);
}

}  // namespace

Evaluator plan_evaluator(const Calibration& calibration) {
  return [&calibration](const Scenario& scenario, double worth_s) {
    return evaluate_plan(scenario, worth_s, calibration);
  };
}

SearchOptions search_options(const Calibration& calibration) {
  SearchOptions options;
  options.threads = std::min(all_cores(), most_threads);
  options.peaks = fastest_rates(calibration);
  options.outline = [&calibration](const Scenario& scenario, OutlineOf what) {
    return outline_of(scenario, what, calibration);
  };
  // Spreading the optimizer over more micro-batches raises the share of matrix work, and clocks sag more: by
  // (sag - 1) / (full - from) a unit of that share, so that time still falls as long as that times `from` is below 1.
  const GemmPrice& gemm = calibration.gemm;
  const double sag_a_share = gemm.sag > 1 ? (gemm.sag - 1) / (gemm.sag_full - gemm.sag_from) : 0;
  options.larger_steps_bound = sag_a_share * gemm.sag_from < 1;
  // Layers of time x, whose clocks sag by the share u = matrix work / x, and B beside them take x' = x - k (x' - x) + B, since
  // u falls by no more than u / x a second, and the layers by sag_a_share x times that: k <= sag_a_share times the largest u.
  options.beside_layers = 1 / (1 + sag_a_share * gemm.sag_full);
  return options;
}

}  // namespace plimsoll
