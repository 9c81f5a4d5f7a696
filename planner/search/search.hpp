// Which plan is the best?  Best-first branch and bound over the candidates of a Space by time per token.
//
// A candidate is never evaluated if it cannot be the answer:
//   memory   closed forms (planner/search/bounds.hpp); or the live tensors P(m) of smaller micro-batches m of the same choice,
//            or of one that saves more.  Each tensor is affine in m, so that P, the highest of their sums, is convex:
//            P(m) >= P(b) + (P(b) - P(a)) (m - b) / (b - a) for a < b < m; or the live tensors of the same plan for a model of
//            few layers, scaled (planner/search/short_model.hpp)
//   time     lower(c) = max of: closed forms; the layers' own work, from the same layers of any plan, or of a few of them; the
//            time of an evaluated relative, which does a part of what c does (no recomputation, no offload) or spreads the
//            optimizer over more micro-batches.  c is discarded if lower(c) is not below the best time found.
// Everything else is evaluated, so that the answer equals that of evaluating all; a search that runs out of time says so and
// by how much its answer could still be beaten.
//
// The order of work decides how soon a good answer is found, and nothing else.  The step time of a plan is estimated from two
// short models, for a tenth or less of an evaluation's cost, and plans are evaluated in the order of these estimates.
//
// What evaluates is a parameter: it builds the step program and knows the ledger and the clock.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "planner/account/ledger.hpp"
#include "planner/search/bounds.hpp"
#include "planner/search/space.hpp"

namespace plimsoll {

struct Evaluated {
  double step_time_s = 0;  ///< where not judged: at least; 0: not known
  LayersTime layers;
  bool refused = false;  ///< a rule on batch sizes does not allow it; nothing else is known
  bool judged = false;   ///< the fields below are known
  Verdict verdict = Verdict::oom;
  bool host_breaks = false;
  /// The live tensors at the step's peak, without an allocator, and what is outside the framework: of the plan with one
  /// micro-batch a step, and, from three on, as it is.  0: not known.
  Bytes least_memory, least_accumulating;
  Bytes allocated_peak, device_peak, job_device_peak, host_per_node, margin;
  std::string bound_by;                   ///< "compute", "host", ...
  Evidence evidence = Evidence::assumed;  ///< of the time
};

/// Must be safe to call from several threads.
/// @param worth_s a step that takes longer need not be judged
using Evaluator = std::function<Evaluated(const Scenario& scenario, double worth_s)>;

/// What short models are asked for.
enum class OutlineOf : std::uint8_t {
  layers,     ///< a bound of the time of the layers
  memory,     ///< a bound of memory
  step,       ///< an estimate of a step
  close_step  ///< a closer one, which costs more
};

/// What is known of a plan without laying out its whole program (planner/search/short_model.hpp); 0: nothing.
struct Outline {
  LayersTime layers;  ///< the same for any accumulation
  // Of its memory:
  Bytes least_memory;  ///< as in Evaluated, of the plan as it is
  Bytes least_to_fit;  ///< a device with less memory does not hold it, or only tightly
  // Of its step:
  double expected_s = 0;  ///< what it takes about; no bound
  Bytes expected_to_fit;  ///< a device with less memory is not expected to hold it, or only tightly; no bound
};

/// Must be safe to call from several threads.
using Outliner = std::function<Outline(const Scenario& scenario, OutlineOf what)>;

struct SearchProgress {
  std::int64_t evaluated = 0, estimated = 0;
  double best_tokens_per_s = 0;  ///< of the whole job; 0: none yet
  std::size_t open = 0;          ///< choices that are not decided
};

struct SearchOptions {
  PeakRates peaks;
  double budget_s = 5;
  int threads = 2;
  bool accept_tight = false;  ///< else plans that fit only tightly count where no other does
  /// Without recomputation, and without offload, a step takes no longer.
  bool relatives_bound = true;
  /// An optimizer step of more micro-batches takes no more time a token, T(g) >= T(h) g / h for g < h; and of larger ones no
  /// more beyond its layers' own time.
  bool larger_steps_bound = false;
  /// Of what adds to the layers' time, so much lengthens a step at least: a longer one has clocks that sag less.
  double beside_layers = 1;
  Outliner outline;        ///< none: every bound comes from closed forms and evaluations
  int runners_up = 4;      ///< choices beside the best whose best plan is to be judged too
  bool want_front = true;  ///< use what is left of the budget for the front
  std::function<void(const SearchProgress&)> progress;
  std::stop_token stop;  ///< where stop is requested the search ends as if its time were up
};

/// A candidate that was evaluated.
struct Found {
  Choice choice;
  std::int64_t micro_batch = 1, accumulation = 1;
  double seconds_per_token = 0;  ///< of the whole job
  Evaluated evaluated;
  Plan plan;
};

struct SearchResult {
  std::optional<Found> best;
  bool proven = false;  ///< equals evaluating every candidate
  double gap = 0;       ///< where not proven: the share of time by which another plan could be faster at most
  /// Where not proven: the same for the plans that were estimated and not evaluated, by their estimates.
  double expected_gap = 0;
  std::vector<Found> judged;  ///< evaluated plans that fit, or tightly; fastest first
  /// Of these, no other is as good in time, device memory, GPUs and host memory at once.
  std::vector<Found> front;
  std::optional<Found> nearest;  ///< where none fits: that lacks least (planner/search/nearest.hpp)
  bool nearest_proven = false;   ///< none lacks less
  std::vector<Exclusion> excluded;
  std::int64_t considered = 0;  ///< candidates of the space
  std::int64_t evaluated = 0;
  std::int64_t estimated = 0;  ///< whose step time was told by short models
  double seconds = 0;
};

SearchResult search_plans(const Space& space, const Evaluator& evaluate, const SearchOptions& asked);

/// Those that no other beats or equals in every respect.
std::vector<Found> pareto_front(const std::vector<Found>& plans);

}  // namespace plimsoll
