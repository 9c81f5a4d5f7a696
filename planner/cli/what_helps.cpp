// From what lacks to what helps (planner/cli/what_helps.hpp).
#include "planner/cli/what_helps.hpp"

#include <fmt/format.h>

#include "planner/base/format.hpp"
#include "planner/cli/need_search.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/search/bounds.hpp"

namespace plimsoll {
namespace {

/// What the smallest micro-batch keeps on its GPU at least, states apart, recomputed as far as the user leaves it open.
Bytes least_kept(const Inputs& inputs) {
  Scenario scenario = asked_of(inputs);
  if (!scenario.plan.states("/recompute")) scenario.plan.recompute.every = 1;
  if (!scenario.plan.states("/micro_batch")) scenario.plan.micro_batch = 1;
  const PlanBounds bounds(scenario.model, scenario.cluster, published_peaks(scenario.cluster.device), scenario.plan);
  return bounds.device_memory(scenario.plan.micro_batch) - bounds.states();
}

}  // namespace

std::string what_would_help(const Inputs& inputs, const Evaluation& nearest, bool proven,
                            std::chrono::steady_clock::time_point deadline) {
  const Plan& plan = nearest.scenario.plan;
  const Ledger& ledger = nearest.ledger;
  if (const Bytes kept = least_kept(inputs); kept > ledger.capacity)
    return fmt::format(
        "Neither another plan nor more GPUs help: what a micro-batch of {} x {} tokens keeps for its backward takes {} "
        "of a "
        "GPU's {} at least. A shorter sequence does.",
        asked_of(inputs).plan.states("/micro_batch") ? plan.micro_batch : 1, format_count(plan.sequence), format(kept),
        format(ledger.capacity));
  const auto processes = ledger.host_categories.find("process");
  if (ledger.host_capacity.count > 0 && processes != ledger.host_categories.end() &&
      processes->second > ledger.host_capacity)
    return fmt::format(
        "Neither another plan nor more GPUs help: the processes of a node alone take {} of its host memory of {}.",
        format(processes->second), format(ledger.host_capacity));
  if (!proven) return "Not every plan was looked at: --seconds 60 searches longer.";
  const auto [gpus, run] = runs_on_most_gpus(inputs, deadline);
  if (!run) return "plimsoll need says whether more GPUs help.";
  return *run ? "More GPUs help: plimsoll need says how many it takes."
              : fmt::format("Nor does any plan fit {}.", counted(gpus, "GPU"));
}

}  // namespace plimsoll
