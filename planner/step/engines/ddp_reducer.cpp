// Buckets of DistributedDataParallel (planner/step/engines/ddp_reducer.hpp).
#include "planner/step/engines/ddp_reducer.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll {

std::vector<std::vector<Parameter*>> assign_buckets(const std::vector<Parameter*>& parameters,
                                                    const std::vector<std::int64_t>& limits) {
  struct Open {
    std::vector<Parameter*> parameters;
    std::int64_t bytes = 0;
    std::size_t limit = 0;
  };
  std::map<DType, Open> open;
  std::vector<std::vector<Parameter*>> result;
  for (Parameter* parameter : parameters) {
    Open& bucket = open[parameter->dtype];
    bucket.parameters.push_back(parameter);
    bucket.bytes += (Elements(parameter->numel()) * parameter->dtype).count;
    if (bucket.bytes < limits[bucket.limit]) continue;
    result.push_back(std::exchange(bucket.parameters, {}));
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.parameters.empty()) result.push_back(std::move(bucket.parameters));
  }
  return result;
}

DdpReducer::DdpReducer(Trace& trace, const std::vector<Parameter*>& parameters) : trace_(trace) {
  broadcast(parameters);
  std::vector<Parameter*> trainable;
  for (Parameter* parameter : parameters) {
    if (parameter->trainable) trainable.push_back(parameter);
  }
  bucket_of_.resize(parameters.size());
  make_buckets(assign_buckets(trainable, {std::numeric_limits<std::int64_t>::max()}));
}

// Two flat buffers are in flight; a parameter that fills one alone is sent where it lies.
void DdpReducer::broadcast(const std::vector<Parameter*>& parameters) {
  struct Sent {
    std::vector<Parameter*> parameters;
    Tensor flat;
  };
  std::deque<Sent> in_flight;
  const auto finish = [&] {
    Sent sent = std::move(in_flight.front());
    in_flight.pop_front();
    if (!sent.flat) return;
    for (Parameter* parameter : sent.parameters)
      ops::launch(trace_, KernelKind::flat_copy, {&sent.flat}, parameter->data, "copy from broadcast buffer");
  };
  for (const std::vector<Parameter*>& bucket : assign_buckets(parameters, {ddp_broadcast_bytes})) {
    if (in_flight.size() == 2) finish();
    Sent sent{bucket, {}};
    const Tensor* buffer = &bucket.front()->data;
    if (bucket.size() > 1) {
      std::int64_t elements = 0;
      for (const Parameter* parameter : bucket) elements += parameter->numel();
      sent.flat = trace_.empty({{elements, Symbol::bucket}}, bucket.front()->dtype, "broadcast buffer",
                               Category::communication_buckets);
      ops::launch(trace_, KernelKind::flat_copy, {}, sent.flat, "flatten parameters");
      buffer = &sent.flat;
    }
    Collective send;
    send.kind = CollectiveKind::broadcast;
    send.dtype = buffer->dtype;
    send.group = group_id::data_parallel;
    send.full_size = buffer->bytes();
    trace_.host_work(HostWorkKind::collective_issue, 1, "broadcast parameters");
    Scoped stream(trace_.lane, Lane::reduce);
    trace_.collective(send, {buffer}, {buffer}, "broadcast parameters");
    in_flight.push_back(std::move(sent));
  }
  while (!in_flight.empty()) finish();
}

void DdpReducer::make_buckets(const std::vector<std::vector<Parameter*>>& assignment) {
  buckets_.clear();
  for (const std::vector<Parameter*>& parameters : assignment) {
    std::int64_t elements = 0;
    for (const Parameter* parameter : parameters) {
      elements += parameter->numel();
      bucket_of_[static_cast<std::size_t>(parameter->index)] = buckets_.size();
    }
    buckets_.push_back({parameters,
                        trace_.empty({{elements, Symbol::bucket}}, parameters.front()->dtype, "gradient bucket",
                                     Category::communication_buckets),
                        0});
  }
}

void DdpReducer::begin(bool synchronise) {
  synchronises_ = synchronise;
  next_ = 0;
  order_.clear();
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
}

void DdpReducer::ready(Parameter& parameter) {
  if (!synchronises_) return;
  order_.push_back(&parameter);
  Bucket& bucket = buckets_[bucket_of_[static_cast<std::size_t>(parameter.index)]];
  trace_.compute(
      Kernel::pointwise(KernelKind::vectorized, parameter.grad.dtype, parameter.numel(), parameter.grad.bytes() * 2),
      {&parameter.grad}, {&bucket.sums}, "gradient into bucket");
  --bucket.missing;
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) reduce(buckets_[next_++]);
}

void DdpReducer::reduce(Bucket& bucket) {
  Collective sum;
  sum.kind = CollectiveKind::all_reduce;
  sum.dtype = bucket.sums.dtype;
  sum.group = group_id::data_parallel;
  sum.full_size = bucket.sums.bytes();
  trace_.host_work(HostWorkKind::collective_issue, 1, "all-reduce gradients");
  Scoped stream(trace_.lane, Lane::reduce);
  trace_.collective(sum, {&bucket.sums}, {&bucket.sums}, "all-reduce gradients");
}

void DdpReducer::finish() {
  if (!synchronises_) return;
  for (Bucket& bucket : buckets_) {
    for (const Parameter* parameter : bucket.parameters) {
      if (!parameter->grad) continue;
      trace_.compute(Kernel::pointwise(KernelKind::flat_copy, parameter->grad.dtype, parameter->numel(),
                                       parameter->grad.bytes() * 2),
                     {&bucket.sums}, {&parameter->grad}, "gradient from bucket");
    }
  }
}

void DdpReducer::rebuild() { make_buckets(assign_buckets(order_, {ddp_first_bucket_bytes, ddp_bucket_bytes})); }

}  // namespace plimsoll
