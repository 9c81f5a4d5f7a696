// ZeRO stage 1 in bf16 with fp32 accumulation: BF16_Optimizer, which keeps every gradient twice.
//
//   resident   2 A + 12 a, and a flat fp32 gradient of the whole group, 4 A, for ever
//   backward   bf16 gradients stay until the step, 2 Psi; when backward has ended each is cast and added to its place in the
//              flat one, in the order of parameters (the hook does so only with immediate_grad_update, which is off)
//   reduction  after the last backward: the flat gradients, cast to the communication type, all-reduced, cast back; groups
//              are joined until there are more than 5e8 elements
//   step       the partition's gradient is a view: no temporary
// Source: DeepSpeed 0.19.8, runtime/bf16_optimizer.py, runtime/engine.py; measured with accumulation.
#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/deepspeed.hpp"
#include "planner/step/engines/deepspeed_checks.hpp"
#include "planner/step/engines/deepspeed_flat.hpp"

namespace plimsoll {

namespace {

/// MEMORY_OPT_ALLREDUCE_SIZE of the engine.
constexpr std::int64_t elements_per_reduction = 500'000'000;

class Bf16Job final : public FlatJob {
 public:
  using FlatJob::FlatJob;

 private:
  void initialize_optimizer() override;
  void after_backward(bool boundary) override;
  void optimizer_step() override;
  void ready(Parameter& parameter, Tensor gradient);
  void add_to_flat(Parameter& parameter, const Tensor& flat);
  void reduce(std::size_t first, std::size_t end);

  std::vector<Tensor> gradients_;  // by group: [A] in fp32
};

void Bf16Job::initialize_optimizer() {
  states_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    OptimizerGroup& group = groups_[i];
    states_[i].flat = flatten(group);
    states_[i].master = make_master(group, states_[i].flat);
    gradients_.push_back(
        trace_.empty({{group.padded(), Symbol::parameters}}, DType::fp32, "flat fp32 gradients", Category::gradients));
    ops::launch(trace_, KernelKind::fill, {}, gradients_.back(), "flat fp32 gradients");
    for (Parameter* parameter : group.parameters) {
      parameter->on_gradient = [this](Parameter& p, Tensor gradient) { ready(p, std::move(gradient)); };
    }
  }
}

// Autograd's own accumulation.
void Bf16Job::ready(Parameter& parameter, Tensor gradient) {
  keep_gradient(trace_, parameter, std::move(gradient));
  trace_.host_work(HostWorkKind::zero_grad_hook, 1, "gradient hook");
}

// A cast copy of the gradient is added to the flat one.
void Bf16Job::add_to_flat(Parameter& parameter, const Tensor& flat) {
  if (!parameter.grad) return;
  const Tensor wide = trace_.empty(parameter.shape, DType::fp32, "gradient in fp32", Category::temporaries);
  ops::launch(trace_, KernelKind::upcast, {&parameter.grad}, wide, "gradient in fp32");
  trace_.compute(Kernel::pointwise(KernelKind::vectorized, DType::fp32, wide.numel(), wide.bytes() * 3), {&flat, &wide},
                 {&flat}, "accumulate gradient in fp32");
}

// All gradients into the flat ones; then dense groups, then expert groups: each list is joined until it exceeds the engine's
// limit.
void Bf16Job::after_backward(bool boundary) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (Parameter* parameter : groups_[i].parameters) add_to_flat(*parameter, gradients_[i]);
  }
  if (!boundary) return;
  std::size_t first = 0;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (i > first && groups_[i].expert != groups_[first].expert) {
      reduce(first, i);
      first = i;
      elements = 0;
    }
    elements += groups_[i].numel;
    if (elements <= elements_per_reduction) continue;
    reduce(first, i + 1);
    first = i + 1;
    elements = 0;
  }
  if (first < groups_.size()) reduce(first, groups_.size());
}

void Bf16Job::reduce(std::size_t first, std::size_t end) {
  Scoped category(trace_.category, Category::communication_buckets);
  std::vector<const Tensor*> parts;
  std::int64_t elements = 0;
  for (std::size_t i = first; i < end; ++i) {
    parts.push_back(&gradients_[i]);
    elements += groups_[i].numel;
  }
  const Bytes bytes = Elements(2 * elements) * DType::fp32;
  const bool joined = parts.size() > 1;
  Tensor flat = gradients_[first].view_as({{elements}});
  if (joined) {
    flat = trace_.empty({{elements}}, DType::fp32, "flattened gradients");
    trace_.compute(Kernel::pointwise(KernelKind::flat_copy, DType::fp32, elements, bytes), parts, {&flat},
                   "flatten gradients");
  }
  Tensor wire = flat;
  if (plan().communication_dtype != DType::fp32) {
    wire = trace_.empty(flat.shape, plan().communication_dtype, "gradients in the communication type");
    ops::launch(trace_, KernelKind::vectorized, {&flat}, wire, "cast gradients");
  }
  trace_.compute(Kernel::pointwise(KernelKind::vectorized, wire.dtype, elements, wire.bytes() * 2), {&wire}, {&wire},
                 "average gradients");
  communicate(CollectiveKind::all_reduce, wire, wire.bytes(), groups_[first].group, groups_[first].ranks,
              "reduce gradients");
  if (wire.dtype != DType::fp32) ops::launch(trace_, KernelKind::upcast, {&wire}, flat, "cast gradients back");
  if (joined) {
    trace_.compute(Kernel::pointwise(KernelKind::flat_copy, DType::fp32, elements, bytes), {&flat}, parts,
                   "take gradients back");
  }
}

// The norm is taken over the flat gradients as they are; clipping is in place.
void Bf16Job::optimizer_step() {
  std::vector<const Tensor*> all;
  for (const Tensor& gradient : gradients_) all.push_back(&gradient);
  clip_gradients(trace_, all);
  deepspeed::truth_test(trace_, "gradient norm");
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Tensor mine = gradients_[i].view_as({{groups_[i].partition(), Symbol::parameters}});
    update(i, mine);
  }
  gather_updated();
  for (const Tensor& gradient : gradients_) ops::launch(trace_, KernelKind::fill, {}, gradient, "zero gradients");
  for (Parameter& parameter : model_->parameters_in_order) parameter.grad = {};
}

}  // namespace

void build_deepspeed_bf16(const Scenario& scenario, int rank, RankProgram& program) {
  Bf16Job(scenario, rank, program).run();
}

}  // namespace plimsoll
