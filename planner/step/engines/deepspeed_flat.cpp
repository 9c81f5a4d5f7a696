// Flat parameters, masters and their update (planner/step/engines/deepspeed_flat.hpp).
#include "planner/step/engines/deepspeed_flat.hpp"

#include "planner/step/autograd/ops.hpp"

namespace plimsoll {

namespace {

/// What the driver counts as used before a model is built: context and the first communicator (two H200, measured).
constexpr Bytes used_before_model{1'536'032'768};

}  // namespace

void FlatJob::empty_cache() { trace_.record(EmptyCache{}, Lane::compute, {}, {}, "empty cache"); }

// DeepSpeed asks the driver for free memory; right after the cache was emptied that is all but what lives.
bool FlatJob::has_room_for(Bytes size) const {
  const Bytes capacity = scenario_.cluster.device.memory;
  if (capacity.count == 0) return true;
  Bytes live = used_before_model;
  const auto on_device = [this](BufferId id) { return program_.buffers[id].pool != Lane::host; };
  for (const Op& op : program_.ops) {
    if (const auto* alloc = std::get_if<Alloc>(&op.action); alloc && on_device(alloc->buffer)) {
      live += program_.buffers[alloc->buffer].size;
    } else if (const auto* free = std::get_if<Free>(&op.action); free && on_device(free->buffer)) {
      live -= program_.buffers[free->buffer].size;
    }
  }
  return live + size <= capacity;
}

Tensor FlatJob::flatten(OptimizerGroup& group) {
  const DType dtype = group.parameters.front()->dtype;
  const bool on_device = has_room_for(Elements(group.padded()) * dtype);
  Tensor flat;
  if (on_device) {
    flat = trace_.empty({{group.padded(), Symbol::parameters}}, dtype, "flat parameters", Category::parameters);
    for (const Parameter* parameter : group.parameters) {
      trace_.compute(Kernel::pointwise(KernelKind::flat_copy, dtype, parameter->numel(), parameter->data.bytes() * 2),
                     {&parameter->data}, {&flat}, "flatten parameters");
    }
  } else {
    flat = flatten_on_host(group);
  }
  for (Parameter* parameter : group.parameters) parameter->data = flat.view_as(parameter->shape);
  return flat;
}

// Every parameter moves to the host, is joined there, and the whole comes back.
Tensor FlatJob::flatten_on_host(OptimizerGroup& group) {
  const DType dtype = group.parameters.front()->dtype;
  const Shape shape{{group.padded(), Symbol::parameters}};
  std::vector<Tensor> copies;
  for (Parameter* parameter : group.parameters) {
    copies.push_back(trace_.host_empty(parameter->shape, dtype, "parameter on the host", Category::temporaries, false));
    trace_.record(HostCopy{false, false, copies.back().bytes()}, Lane::compute, {&parameter->data}, {&copies.back()},
                  "parameter to the host");
    parameter->data = {};
  }
  empty_cache();
  const Tensor joined = trace_.host_empty(shape, dtype, "flat parameters on the host", Category::temporaries, false);
  copies.clear();
  Tensor flat = trace_.empty(shape, dtype, "flat parameters", Category::parameters);
  trace_.record(HostCopy{true, false, flat.bytes()}, Lane::compute, {&joined}, {&flat}, "flat parameters");
  return flat;
}

Tensor FlatJob::make_master(const OptimizerGroup& group, const Tensor& flat) {
  const Shape partition{{group.partition(), Symbol::parameters}};
  const bool as_it_is = flat.dtype == master_dtype();
  Tensor clone = as_it_is ? trace_.empty(partition, flat.dtype, "master weights", Category::master_weights)
                          : trace_.empty(partition, flat.dtype, "clone of the partition", Category::temporaries);
  const std::int64_t n = group.partition();
  trace_.compute(Kernel::pointwise(KernelKind::flat_copy, flat.dtype, n, clone.bytes() * 2), {&flat}, {&clone},
                 "clone partition");
  if (as_it_is) return clone;
  Tensor master = trace_.empty(partition, master_dtype(), "master weights", Category::master_weights);
  ops::launch(trace_, KernelKind::upcast, {&clone}, master, "master weights");
  return master;
}

void FlatJob::update(std::size_t group, const Tensor& gradient) {
  State& state = states_[group];
  const std::int64_t n = groups_[group].partition();
  adamw_step(trace_, plan().optimizer.implementation, plan().optimizer.moments, {state.master}, {&gradient},
             state.adam);
  trace_.compute(Kernel::pointwise(KernelKind::vectorized, state.flat.dtype, n,
                                   state.master.bytes() + Elements(n) * state.flat.dtype),
                 {&state.master}, {&state.flat}, "updated parameters");
}

void FlatJob::gather_updated() {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    communicate(CollectiveKind::all_gather, states_[i].flat, states_[i].flat.bytes(), groups_[i].group,
                groups_[i].ranks, "gather updated parameters");
  }
}

std::vector<Tensor> FlatJob::model_storages() const {
  std::vector<Tensor> storages;
  for (const State& state : states_) storages.push_back(state.flat);
  for (const Parameter& parameter : model_->parameters_in_order) {
    if (!parameter.trainable) storages.push_back(parameter.data);
  }
  return storages;
}

std::vector<Tensor> FlatJob::optimizer_storages() const {
  std::vector<Tensor> storages;
  for (const State& state : states_) {
    storages.push_back(state.master);
    for (const AdamState& adam : state.adam) {
      storages.push_back(adam.first);
      storages.push_back(adam.second);
    }
  }
  return storages;
}

}  // namespace plimsoll
