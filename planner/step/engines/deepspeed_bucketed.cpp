// Gradient hooks and the end of backward at ZeRO stages 1 and 2 (planner/step/engines/deepspeed_bucketed.hpp).
#include "planner/step/engines/deepspeed_bucketed.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"

namespace plimsoll {

BucketedJob::BucketedJob(const Scenario& scenario, int rank, RankProgram& program)
    : FlatJob(scenario, rank, program), buckets_(trace_, plan(), groups_) {
  states_.resize(groups_.size());
  buckets_.keep = [this](std::size_t group, std::size_t index, const Tensor& gradient) {
    keep(group, index, gradient);
  };
  sums_.resize(groups_.size());
  buckets_.claim = [this](std::size_t group) { sums_of(group); };
  buckets_.sum = [this](std::size_t group, std::size_t index, const Tensor& gradient) {
    add_to_sums(group, index, gradient);
  };
}

void BucketedJob::hook_gradients() {
  for (Parameter& parameter : model_->parameters_in_order) {
    parameter.on_gradient = [this](Parameter& p, Tensor gradient) { ready(p, std::move(gradient)); };
  }
}

Tensor& BucketedJob::sums_of(std::size_t group) {
  Tensor& sums = sums_[group];
  if (!sums) {
    sums = trace_.empty({{groups_[group].partition(), Symbol::parameters}}, DType::fp32, "gradient partition",
                        Category::gradients);
    ops::launch(trace_, KernelKind::fill, {}, sums, "gradient partition");
  }
  return sums;
}

Tensor BucketedJob::slice_of_sums(std::size_t group, std::size_t index) {
  return sums_of(group).view_as({{groups_[group].slice(index, groups_[group].rank)}});
}

void BucketedJob::add_to_sums(std::size_t group, std::size_t index, const Tensor& gradient) {
  const Tensor slice = slice_of_sums(group, index);
  Tensor wide = gradient.view_as(slice.shape);
  if (gradient.dtype != DType::fp32) {
    wide = trace_.empty(slice.shape, DType::fp32, "gradient in fp32", Category::temporaries);
    ops::launch(trace_, KernelKind::upcast, {&gradient}, wide, "accumulate gradient in fp32");
  }
  ops::launch(trace_, KernelKind::vectorized, {&slice, &wide}, slice, "accumulate gradient in fp32");
}

void BucketedJob::ready(Parameter& parameter, Tensor gradient) {
  if (buckets_.sums_fp32() && gradient.dtype != DType::fp32) {
    Tensor wide = trace_.empty(gradient.shape, DType::fp32, "gradient in fp32", Category::gradients);
    ops::launch(trace_, KernelKind::upcast, {&gradient}, wide, "gradient in fp32");
    gradient = std::move(wide);
  }
  keep_gradient(trace_, parameter, std::move(gradient));
  trace_.host_work(HostWorkKind::zero_grad_hook, 1, "gradient hook");
  buckets_.set_up();
  if (reduces_when_ready() && (stage2() || boundary_)) buckets_.add(parameter);
}

void BucketedJob::after_backward(bool boundary) {
  if (!stage2() && !boundary) return;
  if (!reduces_when_ready()) {
    for (const OptimizerGroup& group : groups_) {
      std::vector<Parameter*> order = group.parameters;
      std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->index < b->index; });
      for (Parameter* parameter : order) {
        if (parameter->grad) buckets_.add(*parameter);
      }
    }
  }
  buckets_.reduce();
  if (plan().zero.overlap_comm) trace_.record(HostSync{Lane::reduce}, Lane::host, {}, {}, "end of backward");
  finish_reductions();
  buckets_.release();
}

}  // namespace plimsoll
