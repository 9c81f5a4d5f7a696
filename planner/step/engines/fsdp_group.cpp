// Gathering and reducing one group (planner/step/engines/fsdp_group.hpp).
#include "planner/step/engines/fsdp_group.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll {

namespace {

/// Foreach kernels take 65536 elements a block and 320 blocks a launch.
std::uint16_t foreach_launches(const std::vector<FsdpParameter>& parameters) {
  std::int64_t blocks = 0;
  for (const FsdpParameter& p : parameters) blocks += ceil_div(p.padded, 65536);
  return static_cast<std::uint16_t>(std::max<std::int64_t>(1, ceil_div(blocks, 320)));
}

Shape flat(std::int64_t elements) { return {{elements, Symbol::parameters}}; }

}  // namespace

GroupId FsdpContext::shard_group() const { return replicas > 1 ? group_id::shard : group_id::data_parallel; }

void FsdpGroup::add(Parameter& parameter, int shard_rank) {
  const std::int64_t rows = parameter.shape.rank > 0 ? parameter.shape.dim(0).size : 1;
  const std::int64_t width = parameter.numel() / rows;
  const std::int64_t part = ceil_div(rows, context_.shards);
  FsdpParameter& p = parameters_.emplace_back();
  p.parameter = &parameter;
  p.padded = part * width;
  p.local = std::clamp<std::int64_t>(rows - part * shard_rank, 0, part) * width;
}

bool FsdpGroup::casts() const { return dtype() != context_.shard_dtype; }

void FsdpGroup::pre_forward() {
  context_.trace.host_work(HostWorkKind::fsdp_forward_hook, 1, "fsdp pre-forward");
  unshard();
  wait_for_unshard(true);
}

void FsdpGroup::post_forward(bool reshards) {
  context_.trace.host_work(HostWorkKind::fsdp_forward_hook, 1, "fsdp post-forward");
  if (reshards) reshard();
  forward_at_.push_back(context_.forward_order.size());
  context_.forward_order.push_back(this);
  stage_ = Stage::idle;
}

void FsdpGroup::pre_backward() {
  if (stage_ == Stage::pre_backward) return;
  stage_ = Stage::pre_backward;
  context_.trace.host_work(HostWorkKind::fsdp_backward_hook, 1, "fsdp pre-backward");
  unshard();
  wait_for_unshard(false);
  if (forward_at_.empty()) return;
  const std::size_t at = forward_at_.back();
  forward_at_.pop_back();
  if (at > 0) context_.forward_order[at - 1]->unshard();
}

void FsdpGroup::post_backward() {
  stage_ = Stage::post_backward;
  context_.trace.host_work(HostWorkKind::fsdp_backward_hook, 1, "fsdp post-backward");
  std::vector<FsdpParameter*> owners;
  std::vector<Tensor> gradients;
  for (FsdpParameter& p : parameters_) {
    if (!p.parameter->grad) continue;
    owners.push_back(&p);
    gradients.push_back(std::exchange(p.parameter->grad, {}));
  }
  reshard();
  if (gradients.empty()) return;
  if (context_.last_reduce_input) {
    context_.trace.wait_for(Lane::compute, context_.last_reduce_scatter);
    context_.last_reduce_input = {};
  }
  reduced_ = {};
  reduce(owners, std::move(gradients));
}

void FsdpGroup::finalize() {
  if (stage_ != Stage::post_backward) post_backward();
  stage_ = Stage::idle;
  reduced_ = {};
  gather_output_ = {};
  forward_at_.clear();
}

// The flat input and the output come from the copy-in stream's pool; the gather itself runs on its own stream.
void FsdpGroup::unshard() {
  if (unsharded_ || gather_output_ || context_.shards == 1) return;
  Trace& trace = context_.trace;
  Scoped layer(trace.layer, layer_);
  Scoped lane(trace.lane, Lane::copy_in);
  Scoped category(trace.category, Category::gathered_parameters);
  std::int64_t elements = 0;
  std::vector<const Tensor*> sources;
  for (const FsdpParameter& p : parameters_) {
    elements += p.padded;
    sources.push_back(&p.shard);
  }
  Tensor input;
  const std::vector<Tensor> copies = shards_on_device();
  if (context_.on_host) {
    sources.clear();
    for (const Tensor& copy : copies) sources.push_back(&copy);
  } else if (casts()) {
    input = trace.empty(flat(elements), dtype(), "gather input");
    Kernel cast = Kernel::pointwise(KernelKind::fsdp_copy_in_cast, dtype(), elements,
                                    input.bytes() + Elements(elements) * context_.shard_dtype);
    cast.launches = foreach_launches(parameters_);
    trace.compute(cast, sources, {&input}, "fsdp copy-in cast");
    sources = {&input};
  }
  gather_output_ = trace.empty(flat(elements * context_.shards), dtype(), "gather output");
  Kernel copy = Kernel::pointwise(KernelKind::fsdp_copy_in, dtype(), elements, Elements(2 * elements) * dtype());
  copy.launches = foreach_launches(parameters_);
  trace.compute(copy, sources, {&gather_output_}, "fsdp copy-in");
  trace.host_work(HostWorkKind::collective_issue, 1, "fsdp all-gather");
  Scoped stream(trace.lane, Lane::gather);
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = dtype();
  gather.group = context_.shard_group();
  gather.full_size = gather_output_.bytes();
  trace.collective(gather, {&gather_output_}, {&gather_output_}, "fsdp all-gather");
}

// Out of host memory, on the copy-in stream; in the type that is gathered.
std::vector<Tensor> FsdpGroup::shards_on_device() {
  std::vector<Tensor> copies;
  if (!context_.on_host) return copies;
  for (const FsdpParameter& p : parameters_) copies.push_back(gather_input(p));
  return copies;
}

Tensor FsdpGroup::gather_input(const FsdpParameter& p) {
  Trace& trace = context_.trace;
  Tensor input = p.shard;
  if (context_.on_host) {
    input = trace.empty(flat(p.padded), context_.shard_dtype, "shard on the device");
    trace.host_copy(p.shard, input, input.bytes(), "fsdp shard");
  }
  if (casts()) {
    Tensor cast = trace.empty(flat(p.padded), dtype(), "gather input");
    ops::launch(trace, KernelKind::vectorized, {&input}, cast, "fsdp copy-in cast");
    input = std::move(cast);
  }
  return input;
}

// In forward the gathered buffer outlives its copy-out until the next group's, so that the next gather may run beside this
// copy-out; the gather streams then wait for the copy-out before last.  In backward it dies at once.
void FsdpGroup::wait_for_unshard(bool forward) {
  if (unsharded_) return;
  if (context_.shards == 1) {
    copy_from_shards();
    return;
  }
  if (!gather_output_) return;
  Trace& trace = context_.trace;
  Tensor previous;
  if (forward && context_.last_gather) {
    trace.wait_for(Lane::copy_in, context_.last_copy_out);
    trace.wait_for(Lane::gather, context_.last_copy_out);
    previous = std::exchange(context_.last_gather, {});
  }
  const OpId copied = copy_out();
  if (forward) {
    context_.last_gather = std::exchange(gather_output_, {});
    context_.last_copy_out = copied;
  } else {
    trace.wait_for(Lane::copy_in, Lane::compute);
    trace.wait_for(Lane::gather, Lane::compute);
    gather_output_ = {};
  }
}

OpId FsdpGroup::copy_out() {
  Trace& trace = context_.trace;
  Scoped layer(trace.layer, layer_);
  Scoped category(trace.category, Category::gathered_parameters);
  std::vector<const Tensor*> parts;
  std::vector<std::int64_t> part_bytes;
  for (FsdpParameter& p : parameters_) {
    Parameter& parameter = *p.parameter;
    parameter.data = trace.empty(flat(p.padded * context_.shards), parameter.dtype, parameter.name);
    parameter.data.shape = parameter.shape;
    parts.push_back(&parameter.data);
    part_bytes.push_back((Elements(p.padded) * parameter.dtype).count);
  }
  const Bytes table_size = copy_out_table(part_bytes, context_.shards, context_.multiprocessors);
  const Tensor table =
      trace.empty({{table_size.count}}, DType::int8, "copy-out table", Category::communication_buckets);
  trace.compute(Kernel::pointwise(KernelKind::small, DType::int8, table_size.count, table_size), {}, {&table},
                "fsdp copy-out table");
  const OpId copied = trace.next_op();
  trace.compute(
      Kernel::pointwise(KernelKind::fsdp_copy_out, dtype(), gather_output_.numel(), gather_output_.bytes() * 2),
      {&gather_output_, &table}, parts, "fsdp copy-out");
  unsharded_ = true;
  return copied;
}

// A shard group of one rank: nothing to gather, each parameter is copied from its shard in the type that would be gathered,
// which the loop names until it has made the next one's.
void FsdpGroup::copy_from_shards() {
  Trace& trace = context_.trace;
  Scoped layer(trace.layer, layer_);
  Scoped category(trace.category, Category::gathered_parameters);
  Tensor input;
  for (FsdpParameter& p : parameters_) {
    Parameter& parameter = *p.parameter;
    input = gather_input(p);
    parameter.data = trace.empty(parameter.shape, parameter.dtype, parameter.name, Category::gathered_parameters);
    ops::launch(trace, KernelKind::flat_copy, {&input}, parameter.data, "fsdp copy from shard");
  }
  unsharded_ = true;
}

void FsdpGroup::reshard() {
  for (FsdpParameter& p : parameters_) p.parameter->data = {};
  unsharded_ = false;
}

// The gradients die from the last to the first once they are copied; but the last one is still named by the loop over them
// and lives until the reduction has been issued.
void FsdpGroup::reduce(const std::vector<FsdpParameter*>& owners, std::vector<Tensor> gradients) {
  Trace& trace = context_.trace;
  Scoped layer(trace.layer, layer_);
  std::int64_t elements = 0;
  for (const FsdpParameter* p : owners) elements += p->padded;
  const DType type = context_.reduce_dtype;
  Tensor input = trace.empty(flat(elements * context_.shards), type, "reduce input", Category::communication_buckets);
  concatenate(owners, gradients, input);
  const Tensor last = context_.shards > 1 ? gradients.back() : Tensor{};
  while (!gradients.empty()) gradients.pop_back();

  Scoped stream(trace.lane, Lane::reduce);
  Tensor output = trace.empty(flat(elements), type, "sharded gradient", Category::gradients);
  Collective reduction;
  reduction.dtype = type;
  context_.last_reduce_scatter = trace.next_op();
  if (context_.shards > 1) {
    trace.host_work(HostWorkKind::collective_issue, 1, "fsdp reduce-scatter");
    reduction.kind = CollectiveKind::reduce_scatter;
    reduction.group = context_.shard_group();
    reduction.full_size = input.bytes();
    context_.last_reduce_scatter = trace.next_op();
    trace.collective(reduction, {&input}, {&output}, "fsdp reduce-scatter");
  } else {
    ops::launch(trace, KernelKind::flat_copy, {&input}, output, "fsdp reduce of one rank");
  }
  if (context_.replicas > 1) {
    trace.lane = Lane::exchange;
    trace.host_work(HostWorkKind::collective_issue, 1, "fsdp all-reduce");
    reduction.kind = CollectiveKind::all_reduce;
    reduction.group = group_id::replicate;
    reduction.full_size = output.bytes();
    trace.collective(reduction, {&output}, {&output}, "fsdp all-reduce");
    reduced_ = output;
  }
  if (type != context_.shard_dtype) {
    Tensor cast = trace.empty(flat(elements), context_.shard_dtype, "sharded gradient", Category::gradients);
    ops::launch(trace, KernelKind::vectorized, {&output}, cast, "fsdp gradient cast");
    output = std::move(cast);
  }
  if (context_.on_host) {
    keep_on_host(owners, output);
  } else {
    keep_or_add(owners, output);
  }
  context_.last_reduce_input = std::move(input);
}

void FsdpGroup::concatenate(const std::vector<FsdpParameter*>& owners, const std::vector<Tensor>& gradients,
                            const Tensor& input) {
  Trace& trace = context_.trace;
  std::vector<const Tensor*> sources;
  std::vector<std::int64_t> part_bytes;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    sources.push_back(&gradients[i]);
    part_bytes.push_back((Elements(owners[i]->padded) * context_.reduce_dtype).count);
  }
  const Bytes table_size = concatenation_table(part_bytes);
  const Tensor table =
      trace.empty({{table_size.count}}, DType::int8, "chunk-cat table", Category::communication_buckets);
  trace.compute(Kernel::pointwise(KernelKind::small, DType::int8, table_size.count, table_size), {}, {&table},
                "fsdp chunk-cat table");
  sources.push_back(&table);
  const Bytes bytes = input.bytes() + Elements(input.numel()) * gradients.front().dtype;
  trace.compute(Kernel::pointwise(KernelKind::chunk_concatenate, context_.reduce_dtype, input.numel(), bytes), sources,
                {&input}, "fsdp chunk-cat");
}

// The first micro-batch keeps the reduced buffer, of which the parameters' gradients are views; later ones add into it.
void FsdpGroup::keep_or_add(const std::vector<FsdpParameter*>& owners, const Tensor& reduced) {
  for (FsdpParameter* p : owners) {
    const Tensor gradient = reduced.view_as(flat(p->local));
    if (p->gradient) {
      ops::launch(context_.trace, KernelKind::vectorized, {&p->gradient, &gradient}, p->gradient,
                  "fsdp accumulate gradient");
    } else {
      p->gradient = gradient;
    }
  }
}

// A first gradient goes to a pinned block of its own; a later one is waited for in a pageable one and added on the CPU.
void FsdpGroup::keep_on_host(const std::vector<FsdpParameter*>& owners, const Tensor& reduced) {
  Trace& trace = context_.trace;
  for (FsdpParameter* p : owners) {
    const bool add = static_cast<bool>(p->gradient);
    const bool pinned = context_.pinned && !add;
    const Shape shape = flat(std::max<std::int64_t>(1, p->local));
    Tensor gradient = trace.host_empty(shape, context_.shard_dtype, "sharded gradient", Category::gradients, pinned);
    trace.host_copy(reduced, gradient, gradient.bytes(), "fsdp gradient");
    if (!add) {
      p->gradient = std::move(gradient);
      continue;
    }
    trace.record(HostWork{HostWorkKind::python, 1, gradient.bytes() * 3}, Lane::host, {&p->gradient, &gradient},
                 {&p->gradient}, "fsdp accumulate gradient");
  }
}

Bytes copy_out_table(const std::vector<std::int64_t>& part_bytes, int ranks, int multiprocessors) {
  constexpr std::int64_t block_bytes = 2048;  // 128 threads of 16 bytes
  const std::int64_t most_blocks = std::int64_t{multiprocessors} * (2048 / 128) * 4;
  std::int64_t blocks = 0;
  for (const std::int64_t bytes : part_bytes) blocks += ceil_div(bytes, block_bytes);
  const std::int64_t factor = std::max<std::int64_t>(1, ceil_div(blocks * ranks, most_blocks));
  blocks = 0;
  for (const std::int64_t bytes : part_bytes) blocks += ceil_div(bytes, block_bytes * factor);
  const auto parts = static_cast<std::int64_t>(part_bytes.size());
  return Bytes(8 * (4 * parts + 1 + blocks));
}

Bytes concatenation_table(const std::vector<std::int64_t>& part_bytes) {
  std::int64_t blocks = 0;
  for (const std::int64_t bytes : part_bytes) blocks += ceil_div(bytes, 2048);
  const auto parts = static_cast<std::int64_t>(part_bytes.size());
  return Bytes(8 * (6 * parts + 2 + blocks));
}

}  // namespace plimsoll
