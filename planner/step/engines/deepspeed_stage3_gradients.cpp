// Bucket, flush and partition of gradients (planner/step/engines/deepspeed_stage3_gradients.hpp).
#include "planner/step/engines/deepspeed_stage3_gradients.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll::zero3 {

namespace {

// Reductions that the host enqueues ahead of the reduce stream.
constexpr std::size_t max_outstanding_reductions = 2;
// Elements of one float64 copy of the norm with a CPU optimizer.
constexpr std::int64_t norm_chunk = 250'000'000;

Shape flat_shape(std::int64_t elements) { return {{elements, Symbol::parameters}}; }

Kernel pointwise(KernelKind kind, DType dtype, std::int64_t elements, Bytes bytes) {
  return Kernel::pointwise(kind, dtype, elements, bytes);
}

}  // namespace

Gradients::Gradients(ShardedParameters& parameters, const Plan& plan)
    : parameters_(parameters), trace_(parameters.trace()), plan_(plan), targets_(parameters.all().size()) {}

void Gradients::allocate_bucket() {
  if (!plan_.zero.contiguous_gradients) return;  // gradients are interleaved from where autograd put them
  bucket_ = trace_.empty({{plan_.zero.reduce_bucket_size, Symbol::bucket}}, plan_.communication_dtype,
                         "reduction bucket", Category::communication_buckets);
}

void Gradients::begin_micro_batch(bool first, bool boundary) {
  first_micro_batch_ = first;
  boundary_ = boundary;
}

void Gradients::ready(Parameter& parameter, Tensor gradient) {
  trace_.host_work(HostWorkKind::zero3_grad_hook, 1, "gradient hook");
  add_to_bucket(parameter.index, std::move(gradient));
}

void Gradients::leaf_ready(const std::vector<int>& parameters) {
  for (const int index : parameters) {
    Parameter& parameter = *parameters_[index].parameter;
    if (!parameter.trainable) continue;
    trace_.host_work(HostWorkKind::zero3_grad_hook, 1, "gradient hook");
    if (!parameter.grad) {
      parameter.grad = trace_.empty(parameter.shape, parameter.dtype, "gradient of zeros", Category::gradients);
      trace_.compute(pointwise(KernelKind::fill, parameter.dtype, parameter.numel(), parameter.grad.bytes()), {},
                     {&parameter.grad}, "gradient of zeros");
    }
    add_to_bucket(index, std::exchange(parameter.grad, {}));
  }
}

void Gradients::add_to_bucket(int parameter, Tensor gradient) {
  const Communicator& communicator = parameters_[parameter].communicator;
  const bool other_group =
      !entries_.empty() && parameters_[entries_.front().parameter].communicator.index != communicator.index;
  const std::int64_t room = plan_.zero.reduce_bucket_size - elements_;
  if (other_group || (elements_ > 0 && gradient.numel() > room)) flush();
  trace_.wait_for(parameters_.lanes().reduce, Lane::compute);
  Entry entry{parameter, {}};
  const std::int64_t numel = gradient.numel();
  if (plan_.zero.contiguous_gradients && elements_ + numel <= plan_.zero.reduce_bucket_size) {
    Scoped lane(trace_.lane, parameters_.lanes().reduce);
    trace_.compute(pointwise(KernelKind::flat_copy, gradient.dtype, numel, gradient.bytes() * 2), {&gradient},
                   {&bucket_}, "gradient into the bucket");
    gradient = {};
  } else {
    entry.own = std::move(gradient);
  }
  entries_.push_back(std::move(entry));
  elements_ += numel;
}

void Gradients::wait_for_old_events() {
  if (events_.size() <= max_outstanding_reductions) return;
  trace_.wait_for(Lane::host, events_.front());
  trace_.host_work(HostWorkKind::python, 0, "wait for an earlier reduction");
  events_.erase(events_.begin());
}

void Gradients::flush() {
  if (entries_.empty()) return;
  wait_for_old_events();
  Scoped lane(trace_.lane, parameters_.lanes().reduce);
  Scoped category(trace_.category, Category::communication_buckets);
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.parameter < b.parameter; });
  const Communicator communicator = parameters_[entries_.front().parameter].communicator;
  const bool in_bucket = plan_.zero.contiguous_gradients && elements_ <= plan_.zero.reduce_bucket_size;
  {
    const std::vector<Tensor> parts =
        in_bucket && !plan_.zero.reduce_scatter ? all_reduce_bucket(communicator) : reduce_scatter(communicator);
    for (std::size_t i = 0; i < entries_.size(); ++i) partition(parameters_[entries_[i].parameter], parts[i]);
  }
  entries_.clear();
  elements_ = 0;
  events_.push_back(trace_.next_op() - 1);
}

void Gradients::collective(CollectiveKind kind, const Communicator& communicator, const Tensor& buffer) {
  trace_.compute(pointwise(KernelKind::vectorized, buffer.dtype, buffer.numel(), buffer.bytes() * 2), {&buffer},
                 {&buffer}, "average gradients");
  if (communicator.ranks == 1) return;
  trace_.host_work(HostWorkKind::collective_issue, 1, "reduce gradients");
  Collective action;
  action.kind = kind;
  action.dtype = buffer.dtype;
  action.group = communicator.group;
  action.full_size = buffer.bytes();
  trace_.collective(action, {&buffer}, {&buffer}, "reduce gradients");
}

// One launch per 128 sources; what stands in the bucket is one source.
void Gradients::interleave(const std::vector<Tensor>& casts, const Tensor& flat) {
  constexpr std::size_t sources_per_launch = 128;
  std::vector<const Tensor*> sources;
  sources.reserve(casts.size());
  for (const Tensor& cast : casts) sources.push_back(&cast);
  if (sources.empty()) {
    const auto in_bucket = [](const Entry& entry) { return !entry.own; };
    if (std::any_of(entries_.begin(), entries_.end(), in_bucket)) sources.push_back(&bucket_);
    for (const Entry& entry : entries_) {
      if (entry.own) sources.push_back(&entry.own);
    }
  }
  const auto launches = static_cast<std::int64_t>(ceil_div(static_cast<std::int64_t>(sources.size()), 128));
  for (std::size_t first = 0; first < sources.size(); first += sources_per_launch) {
    const std::size_t last = std::min(sources.size(), first + sources_per_launch);
    const std::vector<const Tensor*> reads(sources.begin() + static_cast<std::ptrdiff_t>(first),
                                           sources.begin() + static_cast<std::ptrdiff_t>(last));
    trace_.compute(pointwise(KernelKind::flat_copy, flat.dtype, flat.numel() / launches, flat.bytes() * 2 / launches),
                   reads, {&flat}, "interleave gradients");
  }
}

// A whole reduction's worth at once; where the type is the same already, nothing.
Tensor Gradients::cast(const Tensor& from, DType dtype, const char* name, const char* op) {
  if (from.dtype == dtype) return from;
  Tensor result = trace_.empty(from.shape, dtype, name);
  const bool up = size_of(dtype) > size_of(from.dtype);
  trace_.compute(
      pointwise(up ? KernelKind::upcast : KernelKind::vectorized, dtype, from.numel(), result.bytes() + from.bytes()),
      {&from}, {&result}, op);
  return result;
}

// The ranks' parts of all gradients side by side, each padded to n p; the reduced part comes back in place, or, where sums
// have another type, as a cast of every gradient's part at once.
std::vector<Tensor> Gradients::reduce_scatter(const Communicator& communicator) {
  const DType dtype = plan_.communication_dtype;
  std::vector<Tensor> casts;
  std::int64_t padded = 0;
  for (Entry& entry : entries_) {
    const ShardedParameter& sharded = parameters_[entry.parameter];
    padded += sharded.padded();
    if (!entry.own || entry.own.dtype == dtype) continue;  // the bucket is of the communication type
    const Tensor& source = entry.own;
    casts.push_back(trace_.empty(flat_shape(sharded.numel()), dtype, "gradient in the communication type"));
    trace_.compute(pointwise(KernelKind::upcast, dtype, sharded.numel(), casts.back().bytes() * 2), {&source},
                   {&casts.back()}, "cast gradient");
  }
  const ShardedParameter& first = parameters_[entries_.front().parameter];
  Tensor flat;
  if (entries_.size() == 1 && first.padded() == first.numel()) {
    flat = !casts.empty() ? casts.front() : entries_.front().own ? entries_.front().own : bucket_;
    flat = flat.view_as(flat_shape(padded));
  } else {
    flat = trace_.empty(flat_shape(padded), dtype, "interleaved gradients");
    interleave(casts, flat);
  }
  collective(CollectiveKind::reduce_scatter, communicator, flat);
  casts.clear();
  std::vector<Tensor> parts;
  for (const Entry& entry : entries_) {
    const Tensor part = flat.view_as(flat_shape(parameters_[entry.parameter].part));
    parts.push_back(cast(part, target(entry.parameter).partition.dtype, "reduced gradient", "cast reduced gradient"));
  }
  return parts;
}

// Without reduce_scatter: the filled part of the bucket is all-reduced where it is, or as a cast to the communication type, then
// multiplied by one into another buffer, and cast as a whole where sums have another type; parts that reach beyond a gradient's end
// are copied into padded ones.
std::vector<Tensor> Gradients::all_reduce_bucket(const Communicator& communicator) {
  Tensor filled = cast(bucket_.view_as(flat_shape(elements_)), plan_.communication_dtype,
                       "gradients in the communication type", "cast gradients");
  collective(CollectiveKind::all_reduce, communicator, filled);
  if (plan_.world_size > 1) {  // postscaled by a factor of one, out of place
    Tensor scaled = trace_.empty(filled.shape, filled.dtype, "scaled gradients");
    trace_.compute(pointwise(KernelKind::vectorized, scaled.dtype, elements_, scaled.bytes() * 2), {&filled}, {&scaled},
                   "scale gradients");
    filled = std::move(scaled);
  }
  filled = cast(filled, target(entries_.front().parameter).partition.dtype, "reduced gradients", "cast gradients");
  std::vector<Tensor> parts;
  for (const Entry& entry : entries_) {
    const ShardedParameter& sharded = parameters_[entry.parameter];
    const std::int64_t begin = std::min(sharded.part * communicator.rank, sharded.numel());
    const std::int64_t held = std::min(sharded.part, sharded.numel() - begin);
    Tensor part = filled.view_as(flat_shape(sharded.part));
    if (held != sharded.part) {
      part = trace_.empty(flat_shape(sharded.part), filled.dtype, "padded gradient");
      trace_.compute(pointwise(KernelKind::flat_copy, part.dtype, held, part.bytes() * 2), {&filled}, {&part},
                     "pad gradient");
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

void Gradients::partition(const ShardedParameter& sharded, const Tensor& reduced) {
  if (!sharded.has_elements()) return;
  const Target& to = target(sharded.parameter->index);
  Scoped category(trace_.category, Category::gradients);
  if (to.kept_gradient) {
    partition_on_host(sharded, reduced);
    return;
  }
  const Bytes bytes = reduced.bytes() + to.partition.bytes();
  if (first_micro_batch_) {
    trace_.compute(pointwise(KernelKind::flat_copy, to.partition.dtype, sharded.part, bytes), {&reduced},
                   {&to.partition}, "gradient into its partition");
    return;
  }
  trace_.compute(pointwise(KernelKind::vectorized, to.partition.dtype, sharded.part, to.partition.bytes() * 3),
                 {&to.partition, &reduced}, {&to.partition}, "add to the gradient partition");
}

// The partition is in host memory: its part comes back to the device to be added to, measured and sent on in fp32.
void Gradients::partition_on_host(const ShardedParameter& sharded, const Tensor& reduced) {
  const Target& to = target(sharded.parameter->index);
  const std::int64_t part = sharded.part;
  const auto copy = [&](const Tensor& from, const Tensor& into, const char* role, bool blocking = false) {
    // One of the two is the whole buffer, the other this parameter's part of it.
    trace_.host_copy(from, into, std::min(from.bytes(), into.bytes()), role, blocking);
  };
  Tensor on_device;
  if (first_micro_batch_) copy(reduced, to.partition, "gradient to the host");
  on_device = trace_.empty(flat_shape(part), to.partition.dtype, "gradient partition on the device");
  copy(to.partition, on_device, "gradient from the host");
  if (!first_micro_batch_) {
    trace_.compute(pointwise(KernelKind::vectorized, on_device.dtype, part, on_device.bytes() * 3),
                   {&on_device, &reduced}, {&on_device}, "add to the gradient partition");
    copy(on_device, to.partition, "gradient to the host");
  }
  if (!boundary_) return;
  for (std::int64_t done = 0; done < part; done += norm_chunk) {
    const std::int64_t elements = std::min(norm_chunk, part - done);
    const Tensor wide = trace_.empty(flat_shape(elements), DType::fp64, "gradient in float64", Category::temporaries);
    trace_.compute(pointwise(KernelKind::upcast_fp64, DType::fp64, elements, wide.bytes()), {&on_device}, {&wide},
                   "gradient norm");
    norms_.push_back(trace_.empty({}, DType::fp64, "gradient norm", Category::temporaries));
    trace_.compute(pointwise(KernelKind::reduce_norm, DType::fp64, elements, wide.bytes()), {&wide}, {&norms_.back()},
                   "gradient norm");
  }
  Tensor wide = on_device;
  if (wide.dtype != to.kept_gradient.dtype) {
    wide = trace_.empty(flat_shape(part), to.kept_gradient.dtype, "gradient for the optimizer");
    trace_.compute(pointwise(KernelKind::upcast, wide.dtype, part, wide.bytes() * 2), {&on_device}, {&wide},
                   "cast gradient");
  }
  if (!trace_.on_host(to.kept_gradient)) {  // a sub-group that a partial offload keeps on the device
    trace_.compute(pointwise(KernelKind::flat_copy, wide.dtype, part, wide.bytes() * 2), {&wide}, {&to.kept_gradient},
                   "gradient for the update");
    return;
  }
  copy(wide, to.kept_gradient, "gradient to the CPU optimizer", true);
}

void Gradients::finish() {
  flush();
  trace_.record(HostSync{parameters_.lanes().reduce}, Lane::host, {}, {}, "end of backward");
}

}  // namespace plimsoll::zero3
