// Tries changes of a plan on the ledger (planner/cli/remedy.hpp).
#include "planner/cli/remedy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/terminal.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/padded_shards.hpp"

namespace plimsoll {
namespace {

using Sets = std::vector<std::string>;

/// More than so many keys at once nobody would call a small change.
constexpr std::size_t most_keys = 4;

bool is_deepspeed(const Plan& plan) { return plan.engine == Engine::deepspeed; }

std::int64_t largest_expert_count(const ModelSpec& model) {
  std::int64_t experts = 0;
  for (const LayerSpec& layer : model.layers)
    if (layer.moe) experts = std::max(experts, layer.moe->experts);
  return experts;
}

/// What one key may become, from mild to drastic.
using Key = std::vector<Sets>;

Key higher_stages(const Plan& plan) {
  Key key;
  if (plan.world_size == 1) return key;
  if (is_deepspeed(plan) || plan.engine == Engine::plimsoll) {
    for (int stage = plan.zero.stage + 1; stage <= 3; ++stage) key.push_back({fmt::format("zero.stage={}", stage)});
  }
  if (plan.engine == Engine::fsdp2 && !plan.fsdp.reshard_after_forward)
    key.push_back({"fsdp.reshard_after_forward=true"});
  return key;
}

/// Of stage 3, where experts are gathered with their layer.
Key leaves(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  const bool grouped =
      largest_expert_count(scenario.model) > 0 && plan.moe.implementation == MoeImplementation::grouped;
  if (is_deepspeed(plan) && plan.zero.stage == 3 && grouped && !plan.moe.leaf) return {{"moe.leaf=true"}};
  return {};
}

Key more_expert_parallelism(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  Key key;
  if (!is_deepspeed(plan) && plan.engine != Engine::plimsoll) return key;
  const std::int64_t most = std::gcd<std::int64_t>(largest_expert_count(scenario.model), plan.world_size);
  for (std::int64_t ep = 2; ep <= most; ++ep)
    if (most % ep == 0 && ep > plan.expert_parallel) key.push_back({fmt::format("expert_parallel={}", ep)});
  return key;
}

Key more_replicas(const Scenario& scenario) {
  Key key;
  if (scenario.plan.engine != Engine::fsdp2) return key;
  for (const int replicas : replicas_that_pad_less(scenario.model, scenario.plan))
    key.push_back({fmt::format("fsdp.replicate={}", replicas)});
  return key;
}

Key more_offload(const Plan& plan) {
  Key key;
  const std::string optimizer = "offload.optimizer=cpu", parameters = "offload.parameters=cpu";
  if (plan.engine == Engine::fsdp2 && plan.offload.parameters == OffloadDevice::none) {
    Sets all{optimizer, parameters};
    if (plan.construction != Construction::meta) all.push_back("construction=meta");
    key.push_back(all);
  }
  if (!is_deepspeed(plan) || plan.zero.stage == 0) return key;
  if (plan.offload.optimizer == OffloadDevice::none) key.push_back({optimizer});
  if (plan.zero.stage == 3 && plan.offload.parameters == OffloadDevice::none) {
    Sets both;
    if (plan.offload.optimizer == OffloadDevice::none) both.push_back(optimizer);
    both.push_back(parameters);
    key.push_back(both);
  }
  return key;
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
std::vector<Key> structural_keys(const Scenario& scenario) {
  return {higher_stages(scenario.plan), leaves(scenario), more_expert_parallelism(scenario), more_replicas(scenario),
          more_offload(scenario.plan)};
}

/// Smaller micro-batches, each at most half of the one before; of a stated global batch they are divisors.
Key smaller_micro_batches(const Plan& plan, std::int64_t global_batch) {
  Key key;
  const std::int64_t of_a_rank = global_batch / plan.world_size;
  for (std::int64_t micro = plan.micro_batch / 2; micro >= 1; micro /= 2) {
    while (of_a_rank % micro != 0) --micro;
    key.push_back({fmt::format("micro_batch={}", micro)});
  }
  return key;
}

/// All that may change on the same GPUs, from what costs least.
std::vector<Key> keys_of(const Evaluation& evaluation, std::int64_t global_batch) {
  const Plan& plan = evaluation.scenario.plan;
  if (evaluation.ledger.breaks_on_host) return {host_relief(plan)};
  std::vector<Key> keys{smaller_micro_batches(plan, global_batch)};
  keys.push_back(plan.recompute.every != 1 ? Key{{"recompute=full"}} : Key{});
  for (Key& key : structural_keys(evaluation.scenario)) keys.push_back(std::move(key));
  return keys;
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
  Search(const Inputs& inputs, std::stop_token stop, std::chrono::seconds longest)
      : inputs_(inputs), stop_(std::move(stop)), deadline_(std::chrono::steady_clock::now() + longest) {}

  /// True when a change is found that fits; remembers the first that is tight.
  bool take(Sets sets) {
    const auto fit = try_out(sets);
    if (!fit || fit->verdict == Verdict::oom) return false;
    if (fit->verdict == Verdict::tight && tight_) return false;
    auto& place = fit->verdict == Verdict::fits ? fits_ : tight_;
    const Verdict verdict = fit->verdict;
    place = Remedy{std::move(sets), verdict, fit->margin};
    return verdict == Verdict::fits;
  }

  /// The same of changes to so many of the keys at once, from `first` on, beside others.
  bool take_together(const std::vector<Key>& keys, std::size_t first, std::size_t count, const Sets& beside) {
    if (count == 0) return take(beside);
    for (std::size_t i = first; i + count <= keys.size(); ++i) {
      for (const Sets& sets : keys[i])
        if (take_together(keys, i + 1, count - 1, joined(beside, sets))) return true;
    }
    return false;
  }

  /// The smallest larger world, found by doubling and then halving the gap in steps of whole nodes; of a stated global batch
  /// the first divisor.
  bool take_more_gpus(const Sets& beside, int world, int step) {
    constexpr std::int64_t most = 4096;
    const auto with_world = [&](std::int64_t gpus) {
      Sets sets = beside;
      sets.push_back(fmt::format("world_size={}", gpus));
      return sets;
    };
    const auto fits = [&](std::int64_t gpus) {
      Sets sets = with_world(gpus);
      const auto fit = try_out(sets);
      return fit && fit->verdict == Verdict::fits;
    };
    if (const std::int64_t batch = inputs_.report().global_batch; batch > 0) {
      for (std::int64_t gpus = world + 1; gpus <= std::min(batch, most); ++gpus)
        if (batch % gpus == 0 && fits(gpus)) return take(with_world(gpus));
      return false;
    }
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

  /// What is best until now.
  SmallestChange best() const { return {fits_ ? fits_ : tight_, all_tried_}; }

 private:
  /// @param sets gets the accumulation with which the global batch stays
  std::optional<Fit> try_out(Sets& sets) {
    if (stop_.stop_requested()) return std::nullopt;
    all_tried_ = all_tried_ && std::chrono::steady_clock::now() < deadline_;
    if (!all_tried_) return std::nullopt;
    progress_.step(fmt::format("{}", fmt::join(sets, " ")));
    const auto scenario = inputs_.varied(sets);
    if (!scenario) return std::nullopt;
    const std::int64_t accumulation = scenario->plan.gradient_accumulation;
    const auto as_set = inputs_.with(sets);
    if (!as_set || as_set->plan.gradient_accumulation != accumulation)
      sets.push_back(fmt::format("gradient_accumulation={}", accumulation));
    return fit_of(*scenario);
  }

  const Inputs& inputs_;
  std::stop_token stop_;
  std::chrono::steady_clock::time_point deadline_;
  bool all_tried_ = true;
  Progress progress_{"smallest change"};
  std::optional<Remedy> fits_, tight_;
};

}  // namespace

SmallestChange smallest_change(const Inputs& inputs, const Evaluation& evaluation, std::stop_token stop,
                               std::chrono::seconds longest) {
  const Scenario& scenario = evaluation.scenario;
  Search search(inputs, std::move(stop), longest);
  const std::vector<Key> keys = keys_of(evaluation, inputs.report().global_batch);
  for (std::size_t count = 1; count <= most_keys; ++count)
    if (search.take_together(keys, 0, count, {})) return search.best();
  if (search.best().found) return search.best();  // tight, on the GPUs that are there
  const int world = scenario.plan.world_size;
  const int step = std::min(world, scenario.cluster.devices_per_node);
  const Sets thrifty = thrift(scenario.plan);
  const std::vector<Key> structural = structural_keys(scenario);
  for (const Sets& beside : {Sets{}, thrifty}) {
    if (search.take_more_gpus(beside, world, step)) return search.best();
    for (const Key& key : structural)
      for (const Sets& sets : key)
        if (search.take_more_gpus(joined(beside, sets), world, step)) return search.best();
  }
  return search.best();
}

namespace {

std::string not_all_tried_in_words() {
  return fmt::format("Not every change could be tried in {} s.", longest_change_search.count());
}

/// A change to more GPUs than the cluster has is one of the cluster, too: a preset of one node not full is filled, else there
/// are more nodes of it.
std::string larger_cluster_in_words(const Inputs& inputs, const Remedy& remedy) {
  const Result<Scenario> changed = inputs.with(remedy.sets);
  if (!changed || changed->plan.world_size <= inputs.cluster()->world()) return "";
  const ClusterSpec& cluster = changed->cluster;
  const bool same_nodes = cluster.devices_per_node == inputs.cluster()->devices_per_node;
  return fmt::format("That takes a cluster of {}: {}\n", counted(changed->plan.world_size, "GPU"),
                     same_nodes ? fmt::format("--nodes {}", cluster.nodes) : fmt::format("--cluster {}", cluster.name));
}

}  // namespace

std::string no_remedy_in_words(const Ledger& ledger, bool all_tried) {
  if (!all_tried) return "Nothing that was tried makes it fit. " + not_all_tried_in_words();
  return ledger.breaks_on_host
             ? "Nothing that was tried makes it fit: less offload, another construction, or more GPUs."
             : fmt::format(
                   "Nothing that was tried makes it fit: smaller micro-batches, recompute, higher stages, ep, "
                   "hybrid sharding and offload, up to {} of them together, nor more GPUs.",
                   most_keys);
}

std::string change_in_words(const Inputs& inputs, const Ledger& ledger, const SmallestChange& change) {
  const std::optional<Remedy>& remedy = change.found;
  if (!remedy) return no_remedy_in_words(ledger, change.all_tried) + "\n";
  std::string sets;
  for (const std::string& set : remedy->sets) sets += " --set " + set;
  const std::string text = fmt::format("Smallest change with which it {}:{} (margin {} GiB)\n",
                                       remedy->verdict == Verdict::fits ? "fits" : "is tight",
                                       paint(sets, Colour::bold), gibibytes(remedy->margin));
  return text + larger_cluster_in_words(inputs, *remedy) + (change.all_tried ? "" : not_all_tried_in_words() + "\n");
}

}  // namespace plimsoll
