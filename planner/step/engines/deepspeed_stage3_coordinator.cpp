// Visits, queue, prefetch and release (planner/step/engines/deepspeed_stage3_coordinator.hpp).
#include "planner/step/engines/deepspeed_stage3_coordinator.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace plimsoll::zero3 {

namespace {

constexpr int never = std::numeric_limits<int>::min();

std::vector<int> indices_of(const std::vector<Parameter*>& parameters) {
  std::vector<int> result;
  result.reserve(parameters.size());
  for (const Parameter* parameter : parameters) result.push_back(parameter->index);
  std::sort(result.begin(), result.end());
  return result;
}

/// PEFT's wrapper asks for the type of A before A's own module runs: where A is not there yet, the engine notes it as a
/// parameter of the wrapper's, too ("external"), and visits of the wrapper fetch it from then on.
/// @return by module, A or null
std::vector<const Parameter*> external_parameters(const TorchModel& model, ShardedParameters& parameters) {
  std::map<const Module*, const Parameter*> by_child;
  for (const AdapterModules& adapter : model.adapters) {
    if (!parameters.of(*adapter.a.weight).persistent) by_child[&adapter.a] = adapter.a.weight;
  }
  std::vector<const Parameter*> result;
  for (const Module* module : model.modules) {
    const Parameter*& external = result.emplace_back();
    for (const Module* child : module->children) {
      if (const auto found = by_child.find(child); found != by_child.end()) external = found->second;
    }
  }
  return result;
}

void collect(const Module& module, std::vector<int>& into) {
  for (const Parameter* parameter : module.parameters) into.push_back(parameter->index);
  for (const Module* child : module.children) collect(*child, into);
}

}  // namespace

std::vector<int> parameters_below(const Module& module) {
  std::vector<int> result;
  collect(module, result);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

Coordinator::Coordinator(ShardedParameters& parameters, const TorchModel& model, const ZeroOptions& options)
    : parameters_(parameters),
      options_(options),
      prefetch_bucket_(options.stage3_allgather_sequential ? 1 : options.stage3_prefetch_bucket_size),
      promised_(parameters.all().size(), never),
      met_in_round_(parameters.all().size(), 0) {
  const std::vector<const Parameter*> external = external_parameters(model, parameters);
  for (const Module* module : model.modules) {
    own_.push_back(indices_of(module->parameters));
    if (const Parameter* parameter = external[own_.size() - 1]) own_.back().push_back(parameter->index);
    below_.push_back(parameters_below(*module));
    leaf_.push_back(module->zero3_leaf);
    recomputed_.emplace_back();
    fetched_.push_back(module->zero3_leaf ? below_.back() : own_.back());
    any_leaf_ = any_leaf_ || module->zero3_leaf;
  }
}

void Coordinator::begin_forward() {
  for (ShardedParameter& parameter : parameters_.all()) {
    if (!parameter.call) continue;
    const int index = parameter.parameter->index;
    parameters_.wait(index);
    drop(index);
  }
  if (trace_ == Trace::recording) complete_trace();
  if (trace_ == Trace::none) trace_ = Trace::recording;
  next_use_ = 0;
  std::fill(promised_.begin(), promised_.end(), never);
  visit_ = 0;
  available_ = 0;
}

void Coordinator::complete_trace() {
  for (std::size_t visit = 0; visit < visits_.size(); ++visit) {
    for (const int parameter : fetched_[static_cast<std::size_t>(visits_[visit])])
      uses_.push_back({parameter, static_cast<int>(visit)});
  }
  own_walk_ = walk_over(own_);
  if (any_leaf_) below_walk_ = walk_over(below_);
  trace_ = Trace::complete;
}

Coordinator::Walk Coordinator::walk_over(const std::vector<std::vector<int>>& held) const {
  Walk walk;
  walk.visits_of.resize(parameters_.all().size());
  std::int64_t elements = 0;
  for (std::size_t visit = 0; visit < visits_.size(); ++visit) {
    walk.elements_before.push_back(elements);
    for (const int parameter : held[static_cast<std::size_t>(visits_[visit])]) {
      walk.visits_of[static_cast<std::size_t>(parameter)].push_back(static_cast<int>(visit));
      elements += parameters_[parameter].numel();
    }
  }
  walk.elements_before.push_back(elements);
  return walk;
}

void Coordinator::enter(const Module& module, const Module* recomputed_for) {
  if (trace_ == Trace::recording) visits_.push_back(module.id);
  const std::vector<int>& fetched = fetched_by(module);
  wanted_.clear();
  for (const int parameter : fetched) {
    if (parameters_[parameter].presence != Presence::sharded) continue;
    wanted_.push_back(parameter);
    available_ += parameters_[parameter].numel();
  }
  if (!wanted_.empty()) parameters_.gather(wanted_);
  for (const int parameter : fetched) {
    ShardedParameter& sharded = parameters_[parameter];
    if (std::find(sharded.users.begin(), sharded.users.end(), module.id) == sharded.users.end())
      sharded.users.push_back(module.id);
    if (recomputed_for && !sharded.parameter->trainable) attribute(parameter, *recomputed_for);
    if (sharded.call) parameters_.wait(parameter);
  }
  parameters_.trace().wait_for(Lane::compute, parameters_.lanes().gather);
  if (trace_ == Trace::complete) {
    discard_from_queue(fetched);
    if (prefetch_bucket_ > 0) prefetch();
  }
  ++visit_;
}

// Only frozen parameters: the others are released by their own backward.
void Coordinator::attribute(int parameter, const Module& owner) {
  std::vector<int>& recomputed = recomputed_[static_cast<std::size_t>(owner.id)];
  if (std::find(recomputed.begin(), recomputed.end(), parameter) != recomputed.end()) return;
  recomputed.push_back(parameter);
  parameters_[parameter].users.push_back(owner.id);
}

// What the visit needs anyway is not to be prefetched again.
void Coordinator::discard_from_queue(const std::vector<int>& fetched) {
  std::size_t wanted = 0;
  for (const int parameter : fetched) wanted += promised_[static_cast<std::size_t>(parameter)] < visit_;
  ++round_;
  while (next_use_ < uses_.size() && wanted > 0) {
    const Use& use = uses_[next_use_++];
    promised_[static_cast<std::size_t>(use.parameter)] = use.visit;
    if (first_in_round(use.parameter)) --wanted;
  }
}

void Coordinator::prefetch() {
  const std::int64_t room = std::min(options_.stage3_max_live_parameters - available_, prefetch_bucket_);
  std::int64_t elements = 0;
  wanted_.clear();
  ++round_;
  while (next_use_ < uses_.size() && elements < room) {
    const Use& use = uses_[next_use_++];
    int& promised = promised_[static_cast<std::size_t>(use.parameter)];
    promised = std::max(promised, use.visit);
    if (parameters_[use.parameter].presence != Presence::sharded) continue;
    if (!first_in_round(use.parameter)) continue;
    wanted_.push_back(use.parameter);
    elements += parameters_[use.parameter].numel();
  }
  if (wanted_.empty()) return;
  std::sort(wanted_.begin(), wanted_.end());
  available_ += elements;
  parameters_.gather(wanted_);
}

bool Coordinator::first_in_round(int parameter) {
  return std::exchange(met_in_round_[static_cast<std::size_t>(parameter)], round_) != round_;
}

void Coordinator::drop(int parameter) {
  const ShardedParameter& sharded = parameters_[parameter];
  if (sharded.presence != Presence::available || !sharded.users.empty()) return;
  parameters_.release(parameter);
  available_ -= sharded.numel();
}

void Coordinator::leave(const Module& module, bool backward) {
  leave_own(module);
  if (!backward) return;
  for (const int parameter : std::exchange(recomputed_[static_cast<std::size_t>(module.id)], {})) {
    std::erase(parameters_[parameter].users, module.id);
    if (!parameters_[parameter].persistent) drop(parameter);
  }
}

void Coordinator::leave_own(const Module& module) {
  const std::vector<int>& held = fetched_by(module);
  if (held.empty()) return;
  const std::vector<int>* released = &held;  // while the order of visits is unknown, everything goes
  if (trace_ == Trace::complete) {
    const auto id = static_cast<std::uint64_t>(module.id);
    const std::uint64_t key = id << 32 | static_cast<std::uint64_t>(visit_);
    const auto found = decisions_.find(key);
    released = found != decisions_.end() ? &found->second : &(decisions_[key] = decide_release(module));
  }
  for (const int parameter : held) std::erase(parameters_[parameter].users, module.id);
  for (const int parameter : *released) drop(parameter);
}

std::vector<int> Coordinator::decide_release(const Module& module) const {
  const Walk& walk = leaf_[static_cast<std::size_t>(module.id)] ? below_walk_ : own_walk_;
  std::vector<int> released;
  for (const int parameter : fetched_by(module)) {
    if (parameters_[parameter].persistent) continue;
    if (promised_[static_cast<std::size_t>(parameter)] > visit_) continue;
    if (!reused_soon(walk, parameter)) released.push_back(parameter);
  }
  return released;
}

bool Coordinator::reused_soon(const Walk& walk, int parameter) const {
  const std::vector<int>& visits = walk.visits_of[static_cast<std::size_t>(parameter)];
  const auto next = std::lower_bound(visits.begin(), visits.end(), visit_);
  if (next == visits.end()) return false;
  const auto at = [&](int visit) { return walk.elements_before[static_cast<std::size_t>(visit)]; };
  return at(*next) - at(visit_) < options_.stage3_max_reuse_distance;
}

void Coordinator::release_all() {
  for (ShardedParameter& parameter : parameters_.all()) {
    const int index = parameter.parameter->index;
    if (parameter.call) parameters_.wait(index);
    parameter.users.clear();
    drop(index);
  }
}

namespace {

/// Of containers, the parameters per module with parameters in them; others count as too coarse to be leaves.
struct Granularity {
  std::int64_t layers = 0;
  std::int64_t elements = 0;
};

constexpr std::int64_t largest_leaf = 1'000'000'000;
constexpr std::int64_t too_coarse = std::numeric_limits<std::int64_t>::max();

Granularity measure(const Module& module, std::vector<std::int64_t>& granularity) {
  Granularity result;
  granularity[static_cast<std::size_t>(module.id)] = too_coarse;
  for (const Parameter* parameter : module.parameters) result.elements += parameter->numel();
  if (module.children.empty()) {
    result.layers = result.elements > 0 ? 1 : 0;
    return result;
  }
  for (const Module* child : module.children) {
    const Granularity inner = measure(*child, granularity);
    result.layers += inner.layers;
    result.elements += inner.elements;
  }
  if (result.elements == 0) return {};
  ++result.layers;
  if (result.elements <= largest_leaf)
    granularity[static_cast<std::size_t>(module.id)] = result.elements / result.layers;
  return result;
}

void mark(Module& module, const std::vector<std::int64_t>& granularity, std::int64_t threshold) {
  if (granularity[static_cast<std::size_t>(module.id)] <= threshold) {
    module.zero3_leaf = true;
    return;
  }
  for (Module* child : module.children) mark(*child, granularity, threshold);
}

}  // namespace

void mark_leaves_by_granularity(TorchModel& model, std::int64_t threshold) {
  if (threshold <= 0) return;
  std::vector<std::int64_t> granularity(model.modules.size(), too_coarse);
  measure(model, granularity);
  mark(model, granularity, threshold);
}

}  // namespace plimsoll::zero3
