// The training loop common to all engines (planner/step/engines/torch_job.hpp).
#include "planner/step/engines/torch_job.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/groups.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {

DeviceTraits traits_of(const DeviceSpec& device) {
  DeviceTraits traits;
  if (device.multiprocessors > 0) traits.multiprocessors = device.multiprocessors;
  // cuBLAS workspace per handle and stream: 32 MiB on compute capability 9, 2 x 4 MiB + 8 x 16 KiB elsewhere.
  const bool hopper = device.compute_capability >= 90 && device.compute_capability < 100;
  traits.gemm_workspace =
      hopper ? Bytes(std::int64_t{32} << 20) : Bytes((std::int64_t{8} << 20) + (std::int64_t{128} << 10));
  return traits;
}

std::vector<Tensor> rotary_frequencies(Trace& trace, const ModelSpec& model) {
  std::vector<Tensor> result;
  if (model.layers.empty()) return result;
  const AttentionSpec& attention = model.layers.front().attention;
  const std::int64_t width = attention.rope_head_dim > 0 ? attention.rope_head_dim : attention.head_dim;
  for (const char* name : {"rotary frequencies", "original rotary frequencies"})
    result.push_back(trace.empty({{width / 2, Symbol::head_dim}}, DType::fp32, name, Category::parameters));
  return result;
}

Tensor quantized_weight(Trace& trace, const Parameter& parameter) {
  const std::int64_t n = parameter.numel();
  const std::int64_t bytes = ceil_div(n, 2) + ceil_div(n, 64) + 4 * ceil_div(n, std::int64_t{64} * 256);
  return trace.empty({{bytes}}, DType::int8, parameter.name, Category::parameters);
}

void attach_adapters(Trace& trace, TorchModel& model, DType base, bool fp32) {
  Scoped category(trace.category, Category::parameters);
  for (Parameter& parameter : model.parameters_in_order) {
    if (parameter.adapter) parameter.data = trace.empty(parameter.shape, base, parameter.name);
  }
  for (Parameter& parameter : model.parameters_in_order) {
    if (!parameter.adapter || base == DType::fp32 || !fp32) continue;
    Tensor wide = trace.empty(parameter.shape, DType::fp32, parameter.name);
    ops::launch(trace, KernelKind::upcast, {&parameter.data}, wide, "adapter in fp32");
    parameter.data = std::move(wide);
  }
}

TorchJob::TorchJob(const Scenario& scenario, int rank, RankProgram& program)
    : scenario_(scenario),
      rank_(rank),
      program_(program),
      trace_(program),
      autograd_(trace_, traits_of(scenario.cluster.device)),
      model_(build_modules(scenario)),
      layers_{autograd_, trace_, scenario_, nullptr, false, route(scenario, rank), group_id::expert_parallel, {}} {
  // The program outlives the scenario and the model.
  for (Parameter& parameter : model_->parameters_in_order) parameter.name = trace_.intern(parameter.name);
}

int TorchJob::mesh_size(const Parameter& parameter) const {
  return parameter.group == 1 ? plan().expert_data_parallel() : plan().world_size;
}

Variable TorchJob::run_forward(const Variable& ids) { return causal_lm_loss(layers_, *model_, ids); }

namespace {

/// PyTorch walks what lies apart by index arithmetic, whose cost grows with the dimensions; those of size one do not count.
/// Heads of several sequences have four dimensions, those of one three: a strided kernel's m says so.
void note_dimensions(RankProgram& program, std::int64_t sequences) {
  for (Kernel& kernel : program.kernels) {
    switch (kernel.kind) {
      case KernelKind::strided_neg:
      case KernelKind::strided_copy:
      case KernelKind::strided_add:
      case KernelKind::strided_accumulate:
      case KernelKind::strided_mul:
      case KernelKind::mixed_mul:
        if (kernel.m == 0) kernel.m = sequences > 1 ? 4 : 3;
        break;
      default: break;
    }
  }
}

}  // namespace

void TorchJob::run() {
  // Ops of a module in a job of one micro-batch a step: up to 240 in models of this repository.  What is reserved and not
  // written takes no memory; what does not fit is copied.
  constexpr std::size_t of_module = 208;
  trace_.reserve(of_module * model_->modules.size());
  construct();
  step(false);
  program_.steady_first = trace_.next_op();
  step(true);
  program_.steady_end = trace_.next_op();
  save();
  trace_.stop();
  note_dimensions(program_, plan().micro_batch);
}

void TorchJob::step(bool steady) {
  const std::int64_t micro_batches = plan().gradient_accumulation;
  const char* earlier = steady ? "steady_accumulation" : "first_step_accumulation";
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    const bool last = i + 1 == micro_batches;
    // Between the first and the last one all micro-batches are alike: one is traced and stands for all of them.
    const std::int64_t alike = micro_batches - 1 - i;
    const bool repeated = i == first_alike() && alike > 1;
    const OpId first = trace_.next_op();
    if (last) {
      micro_batch(i, steady ? "steady_forward" : "first_step_forward",
                  steady ? "steady_backward" : "first_step_backward");
    } else {
      micro_batch(i, earlier, earlier);
    }
    // Two steps of micro-batches like the first, and half as much for the optimizer and for saving.
    if (!steady && i == 0) trace_.reserve(first + (trace_.next_op() - first) * traced_micro_batches() * 5 / 2);
    if (repeated) {
      trace_.end_phases();
      program_.repeats.push_back({first, trace_.next_op(), alike});
      i = micro_batches - 2;
    }
  }
  trace_.begin_phase(steady ? "steady_step" : "first_step_step");
  Scoped issuer(trace_.issuer, Issuer::optimizer);
  optimizer_step();
  ++step_;
}

std::size_t TorchJob::traced_micro_batches() const {
  return static_cast<std::size_t>(std::min(plan().gradient_accumulation, first_alike() + 2));
}

void TorchJob::forget_last_step() {
  autograd_.held_by_loss.clear();
  ids_ = {};
}

void TorchJob::micro_batch(std::int64_t index, const char* forward_phase, const char* backward_phase) {
  const bool boundary = index + 1 == plan().gradient_accumulation;
  trace_.micro_batch = static_cast<std::uint16_t>(index);
  trace_.begin_phase(forward_phase);
  const Dim tokens = layers_.tokens();
  if (index == 0) forget_last_step();
  ids_ = Variable{trace_.empty({tokens}, DType::int64, "input ids")};
  before_forward(index == 0);
  Variable loss;
  {
    Scoped autocast(autograd_.autocast, plan().precision == Precision::bf16_autocast);
    loss = run_forward(ids_);
    autograd_.held_by_loss = {loss.data()};  // in place of the earlier micro-batch's
    after_forward();
    layers_.outputs.clear();
    autograd_.autocast_cache.clear();
  }
  loss = ops::add_constant(autograd_, loss, "loss over micro-batches");
  trace_.begin_phase(backward_phase);
  before_backward(boundary);
  autograd_.backward(std::move(loss));
  after_backward(boundary);
}

namespace {

/// Block-wise 8-bit moments (bitsandbytes): a byte an element and an fp32 scale for each 256; small tensors stay in fp32.
void make_8_bit(Trace& trace, const Tensor& tensor, AdamState& state) {
  constexpr std::int64_t block = 256, least = 4096;
  const bool small = tensor.numel() < least;
  const DType type = small ? DType::fp32 : DType::int8;
  const Shape scales{{ceil_div(tensor.numel(), block), Symbol::number}};
  state.first = trace.empty(tensor.shape, type, "adam first moment", Category::optimizer_moments);
  state.second = trace.empty(tensor.shape, type, "adam second moment", Category::optimizer_moments);
  if (small) return;
  state.first_scale = trace.empty(scales, DType::fp32, "scales of the first moment", Category::optimizer_moments);
  state.second_scale = trace.empty(scales, DType::fp32, "scales of the second moment", Category::optimizer_moments);
}

void adam_kernel(Trace& trace, KernelKind kind, const Tensor& tensor, const Tensor& gradient, AdamState& state) {
  const std::int64_t n = tensor.numel();
  const Bytes bytes = tensor.bytes() * 2 + gradient.bytes() + state.first.bytes() * 4;
  trace.compute(Kernel::pointwise(kind, tensor.dtype, n, bytes), {&tensor, &gradient, &state.first, &state.second},
                {&tensor, &state.first, &state.second}, "adamw");
}

}  // namespace

void adamw_step(Trace& trace, OptimizerImplementation implementation, DType moments, const std::vector<Tensor>& tensors,
                const std::vector<const Tensor*>& gradients, std::vector<AdamState>& states) {
  // The 8-bit optimizer updates each tensor in one kernel, as the fused one does, and counts steps on the host.
  const bool fused = implementation == OptimizerImplementation::fused || moments == DType::int8;
  if (states.empty()) {
    states.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      AdamState& state = states[i];
      if (moments == DType::int8) {
        make_8_bit(trace, tensors[i], state);
        continue;
      }
      if (fused) state.step = trace.empty({}, DType::fp32, "adam step", Category::optimizer_moments);
      state.first = trace.empty(tensors[i].shape, moments, "adam first moment", Category::optimizer_moments);
      state.second = trace.empty(tensors[i].shape, moments, "adam second moment", Category::optimizer_moments);
    }
  }
  trace.host_work(HostWorkKind::optimizer_parameter, static_cast<std::int64_t>(tensors.size()), "adamw");
  std::vector<Tensor> roots;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto temporary = [&](const char* name) {
      roots.push_back(trace.empty(tensors[i].shape, moments, name, Category::temporaries));
    };
    if (!fused) temporary("square roots of second moments");
    // The list's roots are divided in place; a single tensor's give a new one.
    if (implementation == OptimizerImplementation::single) temporary("denominator");
    adam_kernel(trace, fused ? KernelKind::adamw : KernelKind::adamw_pass, tensors[i], *gradients[i], states[i]);
    if (implementation == OptimizerImplementation::single) roots.clear();
  }
}

void clip_gradients(Trace& trace, const std::vector<const Tensor*>& gradients, std::optional<GroupId> sharded_over) {
  std::vector<Tensor> norms;
  norms.reserve(gradients.size());
  for (const Tensor* gradient : gradients) {
    norms.push_back(trace.empty({}, DType::fp32, "gradient norm", Category::temporaries));
    trace.compute(Kernel::pointwise(KernelKind::reduce_norm, gradient->dtype, gradient->numel(), gradient->bytes()),
                  {gradient}, {&norms.back()}, "gradient norm");
  }
  const Tensor stacked = trace.empty({{static_cast<std::int64_t>(gradients.size())}}, DType::fp32,
                                     "stacked gradient norms", Category::temporaries);
  const Tensor total = trace.empty({}, DType::fp32, "total gradient norm", Category::temporaries);
  trace.compute(Kernel::pointwise(KernelKind::small, DType::fp32, stacked.numel(), stacked.bytes()), {&stacked},
                {&total}, "total gradient norm");
  if (sharded_over) {
    Collective sum;
    sum.kind = CollectiveKind::all_reduce;
    sum.dtype = DType::fp32;
    sum.group = *sharded_over;
    sum.full_size = total.bytes();
    trace.host_work(HostWorkKind::collective_issue, 1, "gradient norm");
    trace.collective(sum, {&total}, {&total}, "gradient norm");
  }
  for (const Tensor* gradient : gradients) {
    trace.compute(
        Kernel::pointwise(KernelKind::scalar_tensor_mul, gradient->dtype, gradient->numel(), gradient->bytes() * 2),
        {gradient, &total}, {gradient}, "clip gradient");
  }
}

}  // namespace plimsoll
