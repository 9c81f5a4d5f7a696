// Tries changes of a plan on the ledger (planner/cli/remedy.hpp).
#include "planner/cli/remedy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/cli/terminal.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

using Sets = std::vector<std::string>;

bool is_deepspeed(const Plan& plan) { return plan.engine == Engine::deepspeed; }

std::int64_t largest_expert_count(const ModelSpec& model) {
  std::int64_t experts = 0;
  for (const LayerSpec& layer : model.layers)
    if (layer.moe) experts = std::max(experts, layer.moe->experts);
  return experts;
}

void add_sharding(const Scenario& scenario, std::vector<Sets>& changes) {
  const Plan& plan = scenario.plan;
  if (plan.world_size == 1) return;
  if (is_deepspeed(plan)) {
    for (int stage = plan.zero.stage + 1; stage <= 3; ++stage) changes.push_back({fmt::format("zero.stage={}", stage)});
  }
  if (plan.engine == Engine::fsdp2 && !plan.fsdp.reshard_after_forward)
    changes.push_back({"fsdp.reshard_after_forward=true"});
  if (!is_deepspeed(plan) && plan.engine != Engine::plimsoll) return;
  const bool grouped =
      largest_expert_count(scenario.model) > 0 && plan.moe.implementation == MoeImplementation::grouped;
  if (is_deepspeed(plan) && plan.zero.stage == 3 && grouped && !plan.moe.leaf) changes.push_back({"moe.leaf=true"});
  const std::int64_t most = std::gcd<std::int64_t>(largest_expert_count(scenario.model), plan.world_size);
  for (std::int64_t ep = 2; ep <= most; ++ep)
    if (most % ep == 0 && ep > plan.expert_parallel) changes.push_back({fmt::format("expert_parallel={}", ep)});
}

void add_offload(const Plan& plan, std::vector<Sets>& changes) {
  if (!is_deepspeed(plan) || plan.zero.stage == 0) return;
  const std::string optimizer = "offload.optimizer=cpu", parameters = "offload.parameters=cpu";
  if (plan.offload.optimizer == OffloadDevice::none) changes.push_back({optimizer});
  if (plan.zero.stage == 3 && plan.offload.parameters == OffloadDevice::none) {
    Sets both;
    if (plan.offload.optimizer == OffloadDevice::none) both.push_back(optimizer);
    both.push_back(parameters);
    changes.push_back(both);
  }
}

/// Where the node's memory is what breaks.
std::vector<Sets> host_relief(const Plan& plan) {
  std::vector<Sets> changes;
  const bool offloads = plan.offload.optimizer != OffloadDevice::none || plan.offload.parameters != OffloadDevice::none;
  if (offloads) changes.push_back({"offload.pin_memory=false"});
  if (plan.offload.parameters != OffloadDevice::none) changes.push_back({"offload.parameters=none"});
  if (offloads) changes.push_back({"offload.optimizer=none", "offload.parameters=none"});
  if (plan.construction == Construction::cpu)
    changes.push_back({is_deepspeed(plan) && plan.zero.stage == 3 ? "construction=zero_init"
                       : plan.engine == Engine::fsdp2             ? "construction=meta"
                                                                  : "construction=gpu"});
  return changes;
}

/// What spreads the states further or keeps them elsewhere; the micro-batch and recomputation stay.
std::vector<Sets> structural_changes(const Scenario& scenario) {
  std::vector<Sets> changes;
  add_sharding(scenario, changes);
  add_offload(scenario.plan, changes);
  return changes;
}

std::vector<Sets> single_changes(const Evaluation& evaluation) {
  const Plan& plan = evaluation.scenario.plan;
  if (evaluation.ledger.breaks_on_host) return host_relief(plan);
  std::vector<Sets> changes;
  for (std::int64_t micro = plan.micro_batch / 2; micro >= 1; micro /= 2)
    changes.push_back({fmt::format("micro_batch={}", micro)});
  if (plan.recompute.every != 1) changes.push_back({"recompute=full"});
  const std::vector<Sets> structural = structural_changes(evaluation.scenario);
  changes.insert(changes.end(), structural.begin(), structural.end());
  return changes;
}

/// The activations as small as they become.
Sets thrift(const Plan& plan) {
  Sets sets;
  if (plan.micro_batch > 1) sets.push_back("micro_batch=1");
  if (plan.recompute.every != 1) sets.push_back("recompute=full");
  return sets;
}

Sets joined(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Search {
 public:
  Search(const Inputs& inputs, std::stop_token stop) : inputs_(inputs), stop_(std::move(stop)) {}

  /// True when a change is found that fits; remembers the first that is tight.
  bool take(const Sets& sets) {
    const auto fit = try_out(sets);
    if (!fit || fit->verdict == Verdict::oom) return false;
    if (fit->verdict == Verdict::tight && tight_) return false;
    auto& place = fit->verdict == Verdict::fits ? fits_ : tight_;
    place = Remedy{sets, fit->verdict, fit->margin};
    return fit->verdict == Verdict::fits;
  }

  /// The smallest larger world, found by doubling and then halving the gap in steps of whole nodes.
  bool take_more_gpus(const Sets& beside, int world, int step) {
    constexpr std::int64_t most = 4096;
    const auto with_world = [&](std::int64_t gpus) {
      Sets sets = beside;
      sets.push_back(fmt::format("world_size={}", gpus));
      return sets;
    };
    const auto fits = [&](std::int64_t gpus) {
      const auto fit = try_out(with_world(gpus));
      return fit && fit->verdict == Verdict::fits;
    };
    std::int64_t low = world, high = std::int64_t{2} * world;
    while (high <= most && !fits(high)) {
      low = high;
      high *= 2;
    }
    if (high > most) return false;
    while (high - low > step) {
      const std::int64_t middle = low + round_up((high - low) / 2, step);
      if (middle >= high) break;
      (fits(middle) ? high : low) = middle;
    }
    return take(with_world(high));
  }

  std::optional<Remedy> best() const { return fits_ ? fits_ : tight_; }

 private:
  std::optional<Fit> try_out(const Sets& sets) {
    if (stop_.stop_requested()) return std::nullopt;
    progress_.step(fmt::format("{}", fmt::join(sets, " ")));
    const auto scenario = inputs_.with(sets);
    if (!scenario) return std::nullopt;
    return fit_of(*scenario);
  }

  const Inputs& inputs_;
  std::stop_token stop_;
  Progress progress_{"smallest change"};
  std::optional<Remedy> fits_, tight_;
};

}  // namespace

std::optional<Remedy> smallest_change(const Inputs& inputs, const Evaluation& evaluation, std::stop_token stop) {
  const Scenario& scenario = evaluation.scenario;
  Search search(inputs, std::move(stop));
  for (const Sets& sets : single_changes(evaluation))
    if (search.take(sets)) return search.best();
  const int world = scenario.plan.world_size;
  const int step = std::min(world, scenario.cluster.devices_per_node);
  if (search.take_more_gpus({}, world, step)) return search.best();
  const Sets thrifty = thrift(scenario.plan);
  const std::vector<Sets> structural = structural_changes(scenario);
  if (thrifty.size() > 1 && search.take(thrifty)) return search.best();
  for (const Sets& sets : structural)
    if (search.take(joined(thrifty, sets))) return search.best();
  for (const Sets& sets : structural)
    if (search.take_more_gpus(sets, world, step)) return search.best();
  for (const Sets& sets : structural)
    if (search.take_more_gpus(joined(thrifty, sets), world, step)) return search.best();
  return search.best();
}

}  // namespace plimsoll
