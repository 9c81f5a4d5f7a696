// Sub-groups, masters and the update at ZeRO stage 3 (planner/step/engines/deepspeed_stage3_optimizer.hpp).
#include "planner/step/engines/deepspeed_stage3_optimizer.hpp"

#include <algorithm>
#include <limits>

#include "planner/step/engines/deepspeed_checks.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll::zero3 {

namespace {

// Swapping to NVMe, by default: buffers of the optimizer; buffers of parameters, their elements, and those kept in memory.
constexpr int optimizer_swap_buffers = 4;
constexpr int parameter_swap_buffers = 5;
constexpr std::int64_t parameter_swap_buffer = 100'000'000;
constexpr std::int64_t most_parameters_in_host = 1'000'000'000;

Shape flat_shape(std::int64_t elements) { return {{elements, Symbol::parameters}}; }

Kernel pointwise(KernelKind kind, DType dtype, std::int64_t elements, Bytes bytes) {
  return Kernel::pointwise(kind, dtype, elements, bytes);
}

}  // namespace

std::vector<SubGroup> sub_groups_of(const std::vector<OptimizerGroup>& groups, ShardedParameters& parameters,
                                    std::int64_t sub_group_size) {
  std::vector<SubGroup> result;
  for (const OptimizerGroup& group : groups) {
    for (int communicator = 0; communicator < 3; ++communicator) {
      bool open = false;
      for (const Parameter* parameter : group.parameters) {
        const ShardedParameter& sharded = parameters.of(*parameter);
        if (sharded.communicator.index != communicator) continue;
        if (!open) result.emplace_back().communicator = sharded.communicator;
        SubGroup& current = result.back();
        current.parameters.push_back(parameter->index);
        current.elements += sharded.part;
        open = current.elements < sub_group_size;
      }
    }
  }
  return result;
}

Optimizer::Optimizer(ShardedParameters& parameters, Gradients& gradients, const Scenario& scenario, int rank,
                     std::deque<Parameter>& all)
    : parameters_(parameters),
      gradients_(gradients),
      scenario_(scenario),
      trace_(parameters.trace()),
      groups_(optimizer_groups(scenario.plan, rank, all)),
      sub_groups_(sub_groups_of(groups_, parameters, scenario.plan.zero.sub_group_size)) {
  // A partial offload keeps the first sub-groups on the device, in whole sub-groups.
  const auto count = static_cast<double>(sub_groups_.size());
  const auto on_device = static_cast<std::size_t>((1 - plan().zero.offload_optimizer_ratio) * count);
  for (std::size_t i = 0; i < sub_groups_.size(); ++i) {
    sub_groups_[i].on_host = plan().offload.optimizer != OffloadDevice::none && i >= on_device;
    elements_ += sub_groups_[i].elements;
  }
}

DType Optimizer::master_dtype() const { return plan().master_fp32 ? DType::fp32 : plan().compute_dtype(); }

void Optimizer::initialize() {
  if (plan().offload.parameters == OffloadDevice::none) {
    flatten_on_device();
  } else {
    flatten_on_host();
  }
  if (plan().offload.optimizer == OffloadDevice::nvme) make_swap_buffers();
  {
    Tensor converted;  // a name of the loop: it lives until that of the next sub-group has been made
    for (SubGroup& group : sub_groups_) make_master(group, converted);
  }
  zero_gradients();
  gradients_.allocate_bucket();
  make_gradient_partition();
  for (ShardedParameter& sharded : parameters_.all()) {
    if (!sharded.parameter->trainable) continue;
    parameters_.gather_now({sharded.parameter->index});
    parameters_.release(sharded.parameter->index);
  }
}

// The parts move through one pageable buffer of the host, so that the device's memory can be given back in between.
void Optimizer::flatten_on_device() {
  Scoped category(trace_.category, Category::parameters);
  const DType dtype = trained_dtype();
  {
    const Tensor staging =
        trace_.host_empty(flat_shape(elements_), dtype, "parameters on their way", Category::parameters, false);
    for (const SubGroup& group : sub_groups_) {
      for (const int index : group.parameters) {
        Tensor& shard = parameters_[index].shard;
        trace_.record(HostCopy{false, false, shard.bytes()}, trace_.lane, {&shard}, {&staging}, "defragment");
        shard = {};
      }
    }
    trace_.record(EmptyCache{}, Lane::host, {}, {}, "defragment");
    const Tensor flat = trace_.empty(flat_shape(elements_), dtype, "flat parameters");
    trace_.record(HostCopy{true, false, flat.bytes()}, trace_.lane, {&staging}, {&flat}, "defragment");
    for (const SubGroup& group : sub_groups_) {
      for (const int index : group.parameters)
        parameters_[index].shard = flat.view_as(flat_shape(parameters_[index].part));
    }
  }
}

// Pinned whatever the flag says; the parts' own blocks are freed (and stay cached).  With parameters on NVMe a billion
// elements stay in host memory, and five buffers serve the swapping.
void Optimizer::flatten_on_host() {
  const bool on_disk = plan().offload.parameters == OffloadDevice::nvme;
  std::int64_t room = on_disk ? most_parameters_in_host : std::numeric_limits<std::int64_t>::max();
  for (int i = 0; on_disk && i < parameter_swap_buffers; ++i) {
    swap_buffers_.push_back(trace_.host_empty(flat_shape(parameter_swap_buffer), trained_dtype(),
                                              "parameter swap buffer", Category::parameters, true));
  }
  for (const OptimizerGroup& group : groups_) {
    std::int64_t elements = 0;
    for (const Parameter* parameter : group.parameters) elements += parameters_.of(*parameter).part;
    const std::int64_t held = std::min(elements, room);
    room -= held;
    const Tensor flat =
        held > 0 ? trace_.host_empty(flat_shape(held), trained_dtype(), "flat parameters", Category::parameters, true)
                 : swap_buffers_.back();
    for (const Parameter* parameter : group.parameters) {
      ShardedParameter& sharded = parameters_.of(*parameter);
      sharded.shard = flat.view_as(flat_shape(sharded.part));
    }
  }
}

// Master, moments and gradient of the sub-group being stepped pass through four pinned buffers as large as the largest.
void Optimizer::make_swap_buffers() {
  constexpr std::int64_t alignment = 1024;  // bytes; of asynchronous I/O with one thread
  std::int64_t largest = 0;
  for (const SubGroup& group : sub_groups_) {
    if (group.on_host) largest = std::max(largest, group.elements);
  }
  const DType dtype = master_dtype();
  const Shape shape = flat_shape(round_up(largest * size_of(dtype), alignment) / size_of(dtype));
  std::vector<Tensor> buffers;
  buffers.reserve(optimizer_swap_buffers);
  for (int i = 0; i < optimizer_swap_buffers; ++i) {
    buffers.push_back(trace_.host_empty(shape, dtype, "optimizer swap buffer", Category::optimizer_moments, true));
  }
  for (SubGroup& group : sub_groups_) {
    if (!group.on_host) continue;
    const Shape own = flat_shape(group.elements);
    group.master = buffers[0].view_as(own);
    group.kept_gradient = buffers[3].view_as(own);
    group.states.push_back({{}, buffers[1].view_as(own), buffers[2].view_as(own)});
  }
}

// A master of the part's own type and place is a clone of it, too: the engine, which would take the part itself then,
// compares its device with a string, and they never are equal.
void Optimizer::make_master(SubGroup& group, Tensor& converted) {
  if (group.master) return;
  Scoped category(trace_.category, Category::master_weights);
  const DType dtype = master_dtype();
  const Tensor& part = parameters_[group.parameters.front()].shard;
  const Shape shape = flat_shape(group.elements);
  const auto make = [&](const char* name) {
    return group.on_host ? trace_.host_empty(shape, dtype, name, Category::master_weights, false)
                         : trace_.empty(shape, dtype, name);
  };
  if (dtype != part.dtype || trace_.on_host(part) != group.on_host) {
    Tensor cast = make("master before its clone");
    move(part, cast, group.elements);
    converted = std::move(cast);
  } else {
    converted = part.view_as(shape);
  }
  group.master = make("master weights");
  move(converted, group.master, group.elements);
}

// Copies, and casts if the types differ, between any two places; a cast happens where the wider tensor is.
void Optimizer::move(const Tensor& from, const Tensor& to, std::int64_t elements) {
  const bool to_host = trace_.on_host(to);
  const bool from_host = trace_.on_host(from);
  const Bytes bytes = Elements(elements) * from.dtype + Elements(elements) * to.dtype;
  if (to_host && from_host) {
    trace_.record(HostWork{HostWorkKind::python, 1, bytes}, Lane::host, {&from}, {&to}, "copy on the host");
  } else if (to_host || from_host) {
    const Bytes moved = Elements(elements) * (size_of(from.dtype) < size_of(to.dtype) ? from.dtype : to.dtype);
    Scoped lane(trace_.lane, Lane::compute);
    trace_.host_copy(from, to, moved, "copy between host and device", true);
  } else {
    const KernelKind kind = size_of(to.dtype) > size_of(from.dtype) ? KernelKind::upcast : KernelKind::vectorized;
    trace_.compute(pointwise(kind, to.dtype, elements, bytes), {&from}, {&to}, "cast parameters");
  }
}

// One zero gradient of the largest sub-group serves all; with a CPU optimizer each sub-group keeps a pinned copy of its own.
void Optimizer::zero_gradients() {
  for (const bool on_host : {false, true}) {
    std::int64_t largest = 0;
    for (const SubGroup& group : sub_groups_) {
      if (group.on_host == on_host && !group.kept_gradient) largest = std::max(largest, group.elements);
    }
    if (largest == 0) continue;
    const Shape shape = flat_shape(largest);
    if (!on_host) {
      const Tensor zeros = trace_.empty(shape, master_dtype(), "gradient of zeros", Category::gradients);
      trace_.compute(pointwise(KernelKind::fill, zeros.dtype, largest, zeros.bytes()), {}, {&zeros}, "zeros");
      keep_gradients_on_device();
      continue;
    }
    const Tensor zeros = trace_.host_empty(shape, master_dtype(), "gradient of zeros", Category::gradients, false);
    for (SubGroup& group : sub_groups_) {
      if (!group.on_host || group.kept_gradient) continue;
      const Shape own = flat_shape(group.elements);
      Tensor pageable =
          trace_.host_empty(own, master_dtype(), "gradient before it is pinned", Category::gradients, false);
      group.kept_gradient = std::move(pageable);
      if (!plan().offload.pin_optimizer) continue;
      group.kept_gradient =
          trace_.host_empty(own, master_dtype(), "gradients of the CPU optimizer", Category::gradients, true);
    }
  }
}

// A partial offload: the sub-groups that stay on the device keep their fp32 gradient there.
void Optimizer::keep_gradients_on_device() {
  if (plan().offload.optimizer == OffloadDevice::none) return;
  for (SubGroup& group : sub_groups_) {
    if (group.on_host) continue;
    group.kept_gradient = trace_.empty(flat_shape(group.elements), master_dtype(), "gradients", Category::gradients);
  }
}

void Optimizer::make_gradient_partition() {
  Scoped category(trace_.category, Category::gradients);
  const bool host = plan().offload.optimizer != OffloadDevice::none;
  const DType dtype = plan().gradient_dtype;
  Tensor zeros;  // pinning copies
  if (host && plan().offload.pin_optimizer) {
    zeros = trace_.host_empty(flat_shape(elements_), dtype, "gradient partition before it is pinned",
                              Category::gradients, false);
  }
  gradient_partition_ = host ? trace_.host_empty(flat_shape(elements_), dtype, "gradient partition",
                                                 Category::gradients, plan().offload.pin_optimizer)
                             : trace_.empty(flat_shape(elements_), dtype, "gradient partition");
  for (const SubGroup& group : sub_groups_) {
    for (const int index : group.parameters)
      gradients_.set_target(index,
                            {gradient_partition_.view_as(flat_shape(parameters_[index].part)), group.kept_gradient});
  }
}

// fp16 only: infinities (|x| == inf) and not-a-numbers are looked for in the whole partition, on the reduce stream.
void Optimizer::check_overflow() {
  const Shape shape = gradient_partition_.shape;
  const bool host = trace_.on_host(gradient_partition_);
  Scoped lane(trace_.lane, parameters_.lanes().reduce);
  const auto make = [&](DType dtype, const char* name) {
    Tensor made = host ? trace_.host_empty(shape, dtype, name, Category::temporaries, false)
                       : trace_.empty(shape, dtype, name, Category::temporaries);
    if (!host) {
      trace_.compute(pointwise(KernelKind::vectorized, dtype, made.numel(), made.bytes() + gradient_partition_.bytes()),
                     {&gradient_partition_}, {&made}, "overflow check");
    }
    return made;
  };
  {
    Tensor magnitude = make(gradient_partition_.dtype, "magnitude of gradients");
    const Tensor infinite = make(DType::boolean, "mask of infinities");
    magnitude = {};
  }
  make(DType::boolean, "mask of not-a-numbers");
  const Tensor flag = trace_.empty({}, DType::int8, "overflow flag", Category::temporaries);
  all_reduce_scalar(flag, group_id::data_parallel, plan().world_size, "overflow check");
}

void Optimizer::all_reduce_scalar(const Tensor& scalar, GroupId group, std::int64_t ranks, const char* role) {
  if (ranks == 1) return;
  trace_.host_work(HostWorkKind::collective_issue, 1, role);
  Collective action;
  action.kind = CollectiveKind::all_reduce;
  action.dtype = scalar.dtype;
  action.group = group;
  action.full_size = scalar.bytes();
  trace_.collective(action, {&scalar}, {&scalar}, role);
  trace_.record(HostSync{trace_.lane}, Lane::host, {}, {}, role);
}

void Optimizer::norm(const SubGroup& group) {
  {
    std::vector<Tensor> norms;
    if (!group.kept_gradient) {
      for (const int index : group.parameters)
        norms.push_back(deepspeed::gradient_norm(trace_, gradients_.target(index).partition));
      deepspeed::joined_norm(trace_, norms);
    }
    scalars_.push_back(trace_.empty({}, DType::fp64, "norm of a sub-group", Category::temporaries));
    deepspeed::small_kernels(trace_, 1, "norm of a sub-group");
  }
  const Communicator& communicator = group.communicator;
  all_reduce_scalar(scalars_.back(), communicator.group, communicator.ranks, "gradient norm");
  if (communicator.group ==
      group_id::expert_data_parallel) {  // the other experts are on the other ranks of their group
    all_reduce_scalar(scalars_.back(), group_id::expert_parallel, plan().expert_parallel, "gradient norm");
  }
}

void Optimizer::step() {
  Scoped category(trace_.category, Category::temporaries);
  if (trained_dtype() == DType::fp16) check_overflow();
  for (const SubGroup& group : sub_groups_) norm(group);
  deepspeed::truth_test(trace_, "is the gradient norm finite");
  gradients_.drop_norms();
  for (SubGroup& group : sub_groups_) {
    if (group.on_host) {
      update_on_host(group);
    } else {
      update_on_device(group);
    }
  }
  scalars_.clear();
  parameters_.gather_persistent();
}

Tensor Optimizer::fp32_gradient(const SubGroup& group) {
  if (group.kept_gradient) return group.kept_gradient;
  const DType accumulated = plan().gradient_dtype;
  const Shape shape = flat_shape(group.elements);
  Tensor flat = gradient_partition_.view_as(shape);
  if (group.parameters.size() > 1) {
    flat = trace_.empty(shape, accumulated, "flat gradients", Category::gradients);
    trace_.compute(pointwise(KernelKind::flat_copy, accumulated, group.elements, flat.bytes() * 2),
                   {&gradient_partition_}, {&flat}, "flatten gradients");
  }
  if (accumulated == master_dtype()) return flat;
  Tensor wide = trace_.empty(shape, master_dtype(), "gradients for the update", Category::gradients);
  trace_.compute(pointwise(KernelKind::upcast, wide.dtype, group.elements, wide.bytes() + flat.bytes()), {&flat},
                 {&wide}, "cast gradients");
  return wide;
}

void Optimizer::update_on_device(SubGroup& group) {
  const Tensor gradient = fp32_gradient(group);
  deepspeed::unscale(trace_, gradient);
  OptimizerImplementation implementation = plan().optimizer.implementation;
  const bool for_cpu =
      implementation == OptimizerImplementation::deepspeed_cpu || implementation == OptimizerImplementation::torch_cpu;
  if (for_cpu) implementation = OptimizerImplementation::foreach;  // what a partial offload runs on the device
  adamw_step(trace_, implementation, plan().optimizer.moments, {group.master}, {&gradient}, group.states);
  const Tensor& part = parameters_[group.parameters.front()].shard;
  if (part.buffer() != group.master.buffer()) move(group.master, part, group.elements);
}

// On the CPU; parameters on the device get their 16-bit copy through a pageable one.
void Optimizer::update_on_host(SubGroup& group) {
  if (group.states.empty()) {
    const Shape shape = flat_shape(group.elements);
    AdamState& state = group.states.emplace_back();
    state.first =
        trace_.host_empty(shape, plan().optimizer.moments, "adam first moment", Category::optimizer_moments, false);
    state.second =
        trace_.host_empty(shape, plan().optimizer.moments, "adam second moment", Category::optimizer_moments, false);
  }
  AdamState& state = group.states.front();
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "adamw");
  const Bytes bytes = group.master.bytes() * 2 + group.kept_gradient.bytes() + state.first.bytes() * 4;
  trace_.record(HostWork{HostWorkKind::cpu_adam, group.elements, bytes}, Lane::host,
                {&group.master, &group.kept_gradient, &state.first, &state.second},
                {&group.master, &state.first, &state.second}, "adamw");
  const ShardedParameter& first = parameters_[group.parameters.front()];
  if (first.on_host || first.shard.dtype == group.master.dtype) {
    move(group.master, first.shard, group.elements);
    return;
  }
  const Tensor cast = trace_.host_empty(flat_shape(group.elements), first.shard.dtype, "updated parameters",
                                        Category::temporaries, false);
  move(cast, first.shard, group.elements);
}

}  // namespace plimsoll::zero3
