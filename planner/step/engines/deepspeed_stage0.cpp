// ZeRO stage 0: nothing is partitioned (FP16_UnfusedOptimizer around the optimizer; a model in fp32 has none around it).
//
//   resident   2 bytes of parameters, 4 of masters, 8 of moments, one tensor a parameter: 14 Psi
//   building   a first step is made with zero gradients, 16-bit ones and fp32 ones: 20 Psi
//   step       gradients 2 Psi are cast, one by one, to fp32 gradients 4 Psi: 20 Psi
//   reduction  after the last backward: gradients joined in order of parameters until there are more than 5e8 elements,
//              all-reduced, copied back
//   checks     each gradient in turn is cast, summed and looked at by Python (a sync a parameter); the "gradient norm" is that
//              of the parameters, each cast for it; the fp32 gradients are multiplied one by one
// Source: DeepSpeed 0.19.8, runtime/fp16/unfused_optimizer.py, runtime/utils.py (CheckOverflow, get_weight_norm),
// runtime/engine.py (buffered_allreduce_fallback); measured.
#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/deepspeed.hpp"
#include "planner/step/engines/deepspeed_checks.hpp"
#include "planner/step/engines/deepspeed_replicated.hpp"

namespace plimsoll {

namespace {

/// MEMORY_OPT_ALLREDUCE_SIZE of the engine.
constexpr std::int64_t elements_per_reduction = 500'000'000;

class UnfusedJob final : public ReplicatedJob {
 public:
  UnfusedJob(const Scenario& scenario, int rank, RankProgram& program)
      : ReplicatedJob(scenario, rank, program), states_(groups_.size()) {}

 private:
  struct State {
    std::vector<Tensor> masters;
    std::vector<AdamState> adam;
  };

  bool wrapped() const { return plan().compute_dtype() != DType::fp32; }
  void initialize_optimizer() override;
  void after_backward(bool boundary) override;
  void optimizer_step() override;
  void first_step_with_zeros();
  void check_overflow();
  void norm_of_parameters(const OptimizerGroup& group);
  void reduce(const std::vector<Parameter*>& parameters, const OptimizerGroup& group);
  std::vector<Tensor> model_storages() const override;
  std::vector<Tensor> optimizer_storages() const override;
  bool optimizer_in_model_file() const override { return true; }

  std::vector<State> states_;  // by group
};

void UnfusedJob::initialize_optimizer() {
  if (!wrapped()) {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      for (const Parameter* parameter : groups_[i].parameters) states_[i].masters.push_back(parameter->data);
    }
    return;
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (const Parameter* parameter : groups_[i].parameters) {
      const Tensor clone =
          trace_.empty(parameter->shape, parameter->dtype, "clone of a parameter", Category::temporaries);
      ops::launch(trace_, KernelKind::flat_copy, {&parameter->data}, clone, "clone parameter");
      states_[i].masters.push_back(
          trace_.empty(parameter->shape, master_dtype(), "master weights", Category::master_weights));
      ops::launch(trace_, KernelKind::upcast, {&clone}, states_[i].masters.back(), "master weights");
    }
  }
  first_step_with_zeros();
}

// So that the optimizer's state exists before training.
void UnfusedJob::first_step_with_zeros() {
  std::vector<Tensor> narrow;
  std::vector<std::vector<Tensor>> wide(groups_.size());
  Scoped category(trace_.category, Category::gradients);
  for (const OptimizerGroup& group : groups_) {
    for (const Parameter* parameter : group.parameters) {
      narrow.push_back(trace_.empty(parameter->shape, parameter->dtype, "zero gradient"));
      ops::launch(trace_, KernelKind::fill, {}, narrow.back(), "zero gradient");
    }
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (const Tensor& master : states_[i].masters) {
      wide[i].push_back(trace_.empty(master.shape, master.dtype, "zero gradient of a master"));
      ops::launch(trace_, KernelKind::fill, {}, wide[i].back(), "zero gradient");
    }
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::vector<const Tensor*> gradients;
    for (const Tensor& gradient : wide[i]) gradients.push_back(&gradient);
    adamw_step(trace_, plan().optimizer.implementation, plan().optimizer.moments, states_[i].masters, gradients,
               states_[i].adam);
  }
}

// Dense gradients over all ranks, then those of experts over the ranks that hold the same.
void UnfusedJob::after_backward(bool boundary) {
  if (!boundary) return;
  std::vector<Parameter*> experts;
  for (const OptimizerGroup& group : groups_) {
    if (!group.expert) {
      reduce(group.parameters, group);
    } else {
      experts.insert(experts.end(), group.parameters.begin(), group.parameters.end());
    }
  }
  if (!experts.empty()) reduce(experts, groups_.back());
}

void UnfusedJob::reduce(const std::vector<Parameter*>& parameters, const OptimizerGroup& group) {
  std::vector<const Tensor*> bucket;
  std::int64_t elements = 0;
  const auto flush = [&] {
    const DType dtype = bucket.front()->dtype;
    const Bytes bytes = Elements(2 * elements) * dtype;
    if (bucket.size() > 255) bucket.resize(255);  // operands of one op; sizes are those of all
    Scoped category(trace_.category, Category::communication_buckets);
    Tensor flat = *bucket.front();
    if (bucket.size() > 1) {
      flat = trace_.empty({{elements}}, dtype, "flattened gradients");
      trace_.compute(Kernel::pointwise(KernelKind::flat_copy, dtype, elements, bytes), bucket, {&flat},
                     "flatten gradients");
    }
    Tensor wire = flat;
    if (plan().communication_dtype != dtype) {
      wire = trace_.empty(flat.shape, plan().communication_dtype, "gradients in the communication type");
      ops::launch(trace_, KernelKind::upcast, {&flat}, wire, "cast gradients");
    }
    trace_.compute(Kernel::pointwise(KernelKind::vectorized, wire.dtype, elements, wire.bytes() * 2), {&wire}, {&wire},
                   "average gradients");
    communicate(CollectiveKind::all_reduce, wire, wire.bytes(), group.group, group.ranks, "reduce gradients");
    if (wire.dtype != dtype) ops::launch(trace_, KernelKind::vectorized, {&wire}, flat, "cast gradients back");
    if (bucket.size() > 1) {
      trace_.compute(Kernel::pointwise(KernelKind::flat_copy, dtype, elements, bytes), {&flat}, bucket,
                     "take gradients back");
    }
    bucket.clear();
    elements = 0;
  };
  for (Parameter* parameter : parameters) {
    if (!parameter->grad) continue;
    bucket.push_back(&parameter->grad);
    elements += parameter->numel();
    if (elements > elements_per_reduction) flush();
  }
  if (!bucket.empty()) flush();
}

/// CheckOverflow: one gradient after the other, until Python has seen that its sum is finite.
void UnfusedJob::check_overflow() {
  Scoped category(trace_.category, Category::temporaries);
  for (const Parameter& parameter : model_->parameters_in_order) {
    if (!parameter.grad) continue;
    const Tensor wide = trace_.empty(parameter.shape, DType::fp32, "gradient in fp32 for its check");
    ops::launch(trace_, KernelKind::upcast, {&parameter.grad}, wide, "is the gradient finite");
    const Tensor sum = trace_.empty({}, DType::fp32, "sum of a gradient");
    trace_.compute(Kernel::pointwise(KernelKind::reduce_last, DType::fp32, wide.numel(), wide.bytes()), {&wide}, {&sum},
                   "is the gradient finite");
    trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "is the gradient finite");
  }
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "overflow flag");
}

void UnfusedJob::norm_of_parameters(const OptimizerGroup& group) {
  Scoped category(trace_.category, Category::temporaries);
  for (const Parameter* parameter : group.parameters) {
    const Tensor wide = trace_.empty(parameter->shape, DType::fp32, "parameter in fp32 for its norm");
    ops::launch(trace_, KernelKind::upcast, {&parameter->data}, wide, "norm of a parameter");
    const Tensor norm = trace_.empty({}, DType::fp32, "norm of a parameter");
    trace_.compute(Kernel::pointwise(KernelKind::reduce_last, DType::fp32, wide.numel(), wide.bytes()), {&wide},
                   {&norm}, "norm of a parameter");
    deepspeed::small_kernels(trace_, 2, "norm of a parameter");
  }
  trace_.record(HostSync{Lane::compute}, Lane::host, {}, {}, "gradient norm");
}

void UnfusedJob::optimizer_step() {
  if (wrapped()) check_overflow();
  std::vector<std::vector<Tensor>> wide(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (wrapped() && !groups_[i].expert) norm_of_parameters(groups_[i]);
    for (const Parameter* parameter : groups_[i].parameters) {
      Tensor gradient = parameter->grad;
      if (wrapped()) {
        gradient = trace_.empty(parameter->shape, master_dtype(), "gradient in fp32", Category::temporaries);
        ops::launch(trace_, KernelKind::upcast, {&parameter->grad}, gradient, "gradient in fp32");
      }
      wide[i].push_back(std::move(gradient));
    }
  }
  std::vector<const Tensor*> all;
  for (const auto& group : wide) {
    for (const Tensor& gradient : group) all.push_back(&gradient);
  }
  if (wrapped()) {
    for (const Tensor* gradient : all)
      ops::launch(trace_, KernelKind::vectorized, {gradient}, *gradient, "unscale gradient");
  } else if (plan().gradient_clipping > 0) {
    clip_gradients(trace_, all);
    deepspeed::truth_test(trace_, "gradient norm");
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::vector<const Tensor*> gradients;
    for (const Tensor& gradient : wide[i]) gradients.push_back(&gradient);
    adamw_step(trace_, plan().optimizer.implementation, plan().optimizer.moments, states_[i].masters, gradients,
               states_[i].adam);
  }
  for (std::size_t i = 0; i < groups_.size() && wrapped(); ++i) {
    for (std::size_t k = 0; k < wide[i].size(); ++k) {
      wide[i][k] = {};
      ops::launch(trace_, KernelKind::vectorized, {&states_[i].masters[k]}, groups_[i].parameters[k]->data,
                  "updated parameter");
    }
  }
  for (Parameter& parameter : model_->parameters_in_order) parameter.grad = {};
}

std::vector<Tensor> UnfusedJob::model_storages() const {
  std::vector<Tensor> storages;
  for (const Parameter& parameter : model_->parameters_in_order) storages.push_back(parameter.data);
  return storages;
}

std::vector<Tensor> UnfusedJob::optimizer_storages() const {
  std::vector<Tensor> storages;
  for (const State& state : states_) {
    if (wrapped()) storages.insert(storages.end(), state.masters.begin(), state.masters.end());
    for (const AdamState& adam : state.adam) {
      storages.push_back(adam.first);
      storages.push_back(adam.second);
    }
  }
  return storages;
}

}  // namespace

void build_deepspeed_unfused(const Scenario& scenario, int rank, RankProgram& program) {
  UnfusedJob(scenario, rank, program).run();
}

}  // namespace plimsoll
