// Gathers and releases of parameters (planner/step/engines/deepspeed_stage3_parameters.hpp).
#include "planner/step/engines/deepspeed_stage3_parameters.hpp"

#include <algorithm>
#include <map>

#include "planner/step/engines/deepspeed_groups.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll::zero3 {

namespace {

// The host runs at most this many waits ahead of the gather stream.
constexpr std::size_t max_outstanding_waits = 2;

Shape flat_shape(std::int64_t elements) { return {{elements, Symbol::parameters}}; }

Kernel copy_kernel(DType dtype, std::int64_t elements) {
  return Kernel::pointwise(KernelKind::flat_copy, dtype, elements, Elements(2 * elements) * dtype);
}

}  // namespace

Lanes lanes_of(const ZeroOptions& options) {
  return options.overlap_comm ? Lanes{} : Lanes{Lane::compute, Lane::compute};
}

ShardedParameters::ShardedParameters(Trace& trace, const Plan& plan, int rank, TorchModel& model)
    : trace_(trace), plan_(plan), lanes_(lanes_of(plan.zero)) {
  std::int64_t persistent = 0;
  for (Parameter& parameter : model.parameters_in_order) {
    ShardedParameter& sharded = parameters_.emplace_back();
    sharded.parameter = &parameter;
    sharded.communicator = communicator_of(parameter, rank);
    sharded.part = ceil_div(parameter.numel(), sharded.communicator.ranks);
    // Small parameters stay whole, in order, as long as their sum is within the model's limit.
    if (parameter.numel() > plan.zero.stage3_model_persistence_threshold - persistent) continue;
    sharded.persistent = parameter.numel() <= plan.zero.stage3_param_persistence_threshold;
    if (sharded.persistent) persistent += parameter.numel();
  }
}

Communicator ShardedParameters::communicator_of(const Parameter& parameter, int rank) const {
  if (on_expert_mesh(plan_, parameter))
    return {2, group_id::expert_data_parallel, plan_.expert_data_parallel(), rank / plan_.expert_parallel};
  // AutoEP makes the router anew, in the engine's own data-parallel communicator.
  const Role role = parameter.decl ? parameter.decl->role : Role::other;
  const bool router = role == Role::router || role == Role::router_bias || role == Role::score_correction_bias;
  const bool remade = plan_.moe.implementation == MoeImplementation::autoep && router;
  return {remade ? 1 : 0, group_id::data_parallel, plan_.world_size, rank};
}

void ShardedParameters::gather(const std::vector<int>& indices) {
  trace_.host_work(HostWorkKind::zero3_parameter, static_cast<std::int64_t>(indices.size()), "prepare a gather");
  const auto communicator = [this](int index) { return (*this)[index].communicator.index; };
  const int first = communicator(indices.front());
  if (std::all_of(indices.begin(), indices.end(), [&](int index) { return communicator(index) == first; }))
    return gather_call(indices);
  std::map<int, std::vector<int>> by_communicator;
  for (const int index : indices) by_communicator[communicator(index)].push_back(index);
  for (const auto& [of_all, members] : by_communicator) gather_call(members);
}

void ShardedParameters::gather_call(const std::vector<int>& indices) {
  Scoped lane(trace_.lane, lanes_.gather);
  Scoped category(trace_.category, Category::gathered_parameters);
  Scoped layer(trace_.layer, static_cast<std::int16_t>((*this)[indices.front()].parameter->decl->layer));
  for (const int index : indices) (*this)[index].presence = Presence::in_flight;
  if ((*this)[indices.front()].communicator.ranks == 1) {
    for (const int index : indices) take_alone((*this)[index]);
  } else if (plan_.zero.stage3_use_all_reduce_for_fetch_params) {
    gather_by_all_reduce(indices, std::make_shared<GatherCall>());
  } else if (indices.size() == 1 || plan_.zero.stage3_allgather_sequential) {
    for (const int index : indices) gather_alone(index, std::make_shared<GatherCall>());
  } else {
    gather_flat(indices, std::make_shared<GatherCall>());
  }
}

// Of a group of one rank nothing is gathered: the part is the parameter; out of host memory it is copied at once.
void ShardedParameters::take_alone(ShardedParameter& sharded) {
  sharded.call = std::make_shared<GatherCall>();
  const Tensor part = sharded.on_host ? shard_on_device(sharded) : sharded.shard;
  sharded.parameter->data = part.view_as(sharded.parameter->shape);
}

// One launch per 128 sources; neighbours in one buffer count once.
void ShardedParameters::concatenate(const std::vector<Tensor>& shards, const Tensor& flat) {
  constexpr std::size_t sources_per_launch = 128;
  for (std::size_t first = 0; first < shards.size(); first += sources_per_launch) {
    const std::size_t last = std::min(shards.size(), first + sources_per_launch);
    std::vector<const Tensor*> reads;
    std::int64_t elements = 0;
    for (std::size_t i = first; i < last; ++i) {
      elements += shards[i].numel();
      if (reads.empty() || shards[i].buffer() != reads.back()->buffer()) reads.push_back(&shards[i]);
    }
    trace_.compute(copy_kernel(flat.dtype, elements), reads, {&flat}, "flatten shards");
  }
}

// The part on the device; a copy if it lives in host memory (a blocking one, on the current stream).
Tensor ShardedParameters::shard_on_device(const ShardedParameter& parameter) {
  if (!parameter.on_host) return parameter.shard;
  Tensor copy = trace_.empty(flat_shape(parameter.part), parameter.parameter->dtype, "shard copied to the device");
  trace_.host_copy(parameter.shard, copy, copy.bytes(), "shard to the device", true);
  return copy;
}

void ShardedParameters::collective(CollectiveKind kind, const Communicator& communicator, const Tensor& from,
                                   const Tensor& to) {
  trace_.host_work(HostWorkKind::collective_issue, 1, "gather parameters");
  Collective action;
  action.kind = kind;
  action.dtype = to.dtype;
  action.group = communicator.group;
  action.full_size = to.bytes();
  trace_.collective(action, {&from}, {&to}, "gather parameters");
  last_gather_ = trace_.next_op() - 1;
  ++gather_calls_;
}

void ShardedParameters::gather_alone(int index, const std::shared_ptr<GatherCall>& call) {
  ShardedParameter& sharded = (*this)[index];
  Parameter& parameter = *sharded.parameter;
  sharded.call = call;
  const Tensor buffer = trace_.empty(flat_shape(sharded.padded()), parameter.dtype, parameter.name);
  const Tensor shard = shard_on_device(sharded);
  collective(CollectiveKind::all_gather, sharded.communicator, shard, buffer);
  gathered_elements_ += sharded.numel();
  if (sharded.on_host) call->shard_copy = shard;
  parameter.data = buffer.view_as(parameter.shape);
}

// A buffer for each type, those of 16 bits first, and in it the parameters in order of their ids: adapters get theirs after a
// model that was sharded as it was made.
void ShardedParameters::gather_flat(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call) {
  if (!plan_.lora) return gather_type(indices, call);
  std::map<std::int64_t, std::vector<int>> by_size;
  for (const int index : indices) by_size[size_of((*this)[index].parameter->dtype)].push_back(index);
  const bool adapters_last = plan_.construction == Construction::zero_init || plan_.construction == Construction::meta;
  for (auto& [size, members] : by_size) {
    if (adapters_last)
      std::stable_partition(members.begin(), members.end(), [this](int i) { return !(*this)[i].parameter->adapter; });
    gather_type(members, call);
  }
}

void ShardedParameters::gather_type(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call) {
  std::int64_t parts = 0;
  for (const int index : indices) {
    (*this)[index].call = call;
    call->to_split.emplace_back(index, call->flats.size());
    parts += (*this)[index].part;
    gathered_elements_ += (*this)[index].numel();
  }
  const ShardedParameter& first = (*this)[indices.front()];
  const Tensor flat =
      trace_.empty(flat_shape(parts * first.communicator.ranks), first.parameter->dtype, "gathered parameters");
  {
    std::vector<Tensor> shards;
    shards.reserve(indices.size());
    for (const int index : indices) shards.push_back(shard_on_device((*this)[index]));
    concatenate(shards, flat);
  }
  collective(CollectiveKind::all_gather, first.communicator, flat, flat);
  call->flats.push_back(flat);
}

void ShardedParameters::gather_by_all_reduce(const std::vector<int>& indices, const std::shared_ptr<GatherCall>& call) {
  std::int64_t elements = 0;
  for (const int index : indices) elements += (*this)[index].padded();
  const ShardedParameter& first = (*this)[indices.front()];
  const Tensor flat = trace_.empty(flat_shape(elements), first.parameter->dtype, "gathered parameters");
  trace_.compute(Kernel::pointwise(KernelKind::fill, flat.dtype, elements, flat.bytes()), {}, {&flat}, "zeros");
  for (const int index : indices) {
    ShardedParameter& sharded = (*this)[index];
    sharded.call = call;
    sharded.parameter->data = flat.view_as(sharded.parameter->shape);
    const Tensor shard = shard_on_device(sharded);
    trace_.compute(copy_kernel(flat.dtype, sharded.part), {&shard}, {&flat}, "place shard");
    gathered_elements_ += sharded.numel();
  }
  collective(CollectiveKind::all_reduce, first.communicator, flat, flat);
}

// The host waits for the third last wait's event before it enqueues another one.
void ShardedParameters::wait_for_old_events() {
  if (events_.size() <= max_outstanding_waits) return;
  trace_.wait_for(Lane::host, events_.front());
  trace_.host_work(HostWorkKind::python, 0, "wait for an earlier gather");
  events_.erase(events_.begin());
}

void ShardedParameters::split(const GatherCall& call) {
  for (const auto& [index, flat] : call.to_split) {
    ShardedParameter& sharded = (*this)[index];
    Parameter& parameter = *sharded.parameter;
    Scoped layer(trace_.layer, static_cast<std::int16_t>(parameter.decl->layer));
    Tensor whole = trace_.empty(parameter.shape, parameter.dtype, parameter.name);
    trace_.compute(copy_kernel(parameter.dtype, sharded.numel()), {&call.flats[flat]}, {&whole},
                   "copy out of the flat buffer");
    last_gather_ = trace_.next_op() - 1;
    parameter.data = std::move(whole);
    sharded.presence = Presence::available;
  }
}

void ShardedParameters::wait(int index) {
  ShardedParameter& sharded = (*this)[index];
  Scoped lane(trace_.lane, lanes_.gather);
  Scoped category(trace_.category, Category::gathered_parameters);
  const bool moves = sharded.communicator.ranks > 1;
  trace_.host_work(HostWorkKind::zero3_parameter, 1, "wait for a parameter");
  if (moves) wait_for_old_events();
  const std::shared_ptr<GatherCall> call = std::move(sharded.call);
  sharded.call.reset();
  split(*call);
  call->to_split.clear();
  call->shard_copy = {};
  sharded.presence = Presence::available;
  if (moves) events_.push_back(last_gather_);
}

void ShardedParameters::release(int index) {
  trace_.host_work(HostWorkKind::zero3_parameter, 1, "release a parameter");
  ShardedParameter& sharded = (*this)[index];
  sharded.parameter->data = {};
  sharded.presence = Presence::sharded;
}

void ShardedParameters::gather_now(const std::vector<int>& indices) {
  Scoped category(trace_.category, Category::gathered_parameters);
  for (const int index : indices) {
    ShardedParameter& sharded = (*this)[index];
    Parameter& parameter = *sharded.parameter;
    Scoped layer(trace_.layer, static_cast<std::int16_t>(parameter.decl->layer));
    sharded.presence = Presence::available;
    parameter.data = trace_.empty(flat_shape(sharded.padded()), parameter.dtype, parameter.name);
  }
  std::vector<Tensor> shards;
  for (const int index : indices) {
    ShardedParameter& sharded = (*this)[index];
    Parameter& parameter = *sharded.parameter;
    const Tensor buffer = parameter.data;
    shards.push_back(shard_on_device(sharded));
    if (sharded.communicator.ranks > 1) {
      collective(CollectiveKind::all_gather, sharded.communicator, shards.back(), buffer);
    } else {
      trace_.compute(copy_kernel(parameter.dtype, sharded.numel()), {&shards.back()}, {&buffer},
                     "copy of an unsharded parameter");
    }
    parameter.data = buffer.view_as(parameter.shape);
  }
}

// Of a group of one rank the shard is the parameter (measured: no copy), unless it is in host memory.
void ShardedParameters::gather_persistent() {
  std::vector<int> indices;
  for (ShardedParameter& sharded : parameters_) {
    if (!sharded.persistent) continue;
    if (sharded.communicator.ranks > 1 || sharded.on_host) {
      indices.push_back(sharded.parameter->index);
      continue;
    }
    sharded.presence = Presence::available;
    sharded.parameter->data = sharded.shard.view_as(sharded.parameter->shape);
  }
  gather_now(indices);
}

}  // namespace plimsoll::zero3
