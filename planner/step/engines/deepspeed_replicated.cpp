// Construction, broadcast and saving under DeepSpeed's stages 0 to 2 (planner/step/engines/deepspeed_replicated.hpp).
#include "planner/step/engines/deepspeed_replicated.hpp"

#include <algorithm>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/groups.hpp"

namespace plimsoll {

ReplicatedJob::ReplicatedJob(const Scenario& scenario, int rank, RankProgram& program)
    : TorchJob(scenario, rank, program), groups_(optimizer_groups(plan(), rank, model_->parameters_in_order)) {
  on_expert_mesh_ = std::any_of(model_->parameters_in_order.begin(), model_->parameters_in_order.end(),
                                [this](const Parameter& p) { return on_expert_mesh(plan(), p); });
}

void ReplicatedJob::communicate(CollectiveKind kind, const Tensor& tensor, Bytes full_size, GroupId group,
                                std::int64_t ranks, const char* role) {
  if (ranks <= 1) return;
  trace_.host_work(HostWorkKind::collective_issue, 1, role);
  trace_.collective({kind, tensor.dtype, group, full_size, {}}, {&tensor}, {&tensor}, role);
}

void ReplicatedJob::construct() {
  trace_.begin_phase("model_built");
  build_model();
  trace_.begin_phase("initialized");
  const bool on_host = plan().construction == Construction::cpu;
  if (on_host) cast_on_host();
  if (plan().moe.implementation == MoeImplementation::autoep) replace_by_autoep();
  if (on_host) {
    place_on_device();
  } else {
    cast_on_device();
  }
  for (Parameter& parameter : model_->parameters_in_order) {
    const bool expert = on_expert_mesh(plan(), parameter);
    communicate(CollectiveKind::broadcast, parameter.data, parameter.data.bytes(),
                expert ? group_id::expert_data_parallel : group_id::data_parallel, mesh_size(parameter), "broadcast");
  }
  initialize_optimizer();
}

Tensor ReplicatedJob::build(const Shape& shape, const char* name) {
  if (plan().construction == Construction::cpu) {
    return trace_.host_empty(shape, DType::fp32, name, Category::parameters, false);
  }
  // On the GPU models are built in bf16 whatever 16-bit type they are trained in.
  const DType dtype = plan().compute_dtype() == DType::fp32 ? DType::fp32 : DType::bf16;
  return trace_.empty(shape, dtype, name, Category::parameters);
}

// Module by module; a tied head is made, then dropped.  Native MoE layers are put into the finished model, layer by layer.
void ReplicatedJob::build_model() {
  std::map<const ParameterDecl*, Parameter*> by_decl;
  std::map<int, std::vector<Parameter*>> own;  // by layer: what the model's file does not name
  const auto& listed = scenario_.model.parameters;
  for (Parameter& parameter : model_->parameters_in_order) {
    const bool named = parameter.decl >= listed.data() && parameter.decl < listed.data() + listed.size();
    if (named) {
      by_decl[parameter.decl] = &parameter;
    } else if (!parameter.adapter) {
      own[parameter.decl->layer].push_back(&parameter);
    }
  }
  for (const ParameterDecl& decl : listed) {
    if (const auto found = by_decl.find(&decl); found != by_decl.end()) {
      Parameter& parameter = *found->second;
      parameter.data =
          parameter.quantized ? quantized_weight(trace_, parameter) : build(parameter.shape, parameter.name);
    } else if (plan().moe.implementation == MoeImplementation::loop) {  // every expert is built on its own
      for (Parameter* parameter : own[decl.layer]) parameter->data = build(parameter->shape, parameter->name);
      own.erase(decl.layer);
    } else {
      Shape shape;
      for (const std::int64_t extent : decl.shape) shape.push({extent, Symbol::number});
      replaced_[decl.layer].push_back(build(shape, decl.name.c_str()));
    }
  }
  if (scenario_.model.tied_embeddings) build(model_->embedding->shape, "tied head before it is dropped");
  const std::int64_t frequencies = std::max<std::int64_t>(1, scenario_.model.layers.front().attention.head_dim / 2);
  for (const char* name : {"rotary frequencies", "original rotary frequencies"}) {
    rotary_.push_back(plan().construction == Construction::cpu
                          ? trace_.host_empty({{frequencies}}, DType::fp32, name, Category::parameters, false)
                          : trace_.empty({{frequencies}}, DType::fp32, name, Category::parameters));
  }
  if (plan().lora) add_adapters();
  if (plan().moe.implementation != MoeImplementation::native) return;
  for (auto& [layer, parameters] : own) insert_native_moe(layer, parameters, replaced_[layer]);
  replaced_.clear();
}

void ReplicatedJob::add_adapters() {
  if (plan().construction != Construction::cpu) {
    attach_adapters(trace_, *model_, plan().compute_dtype() == DType::fp32 ? DType::fp32 : DType::bf16,
                    plan().lora->fp32);
    return;
  }
  for (Parameter& parameter : model_->parameters_in_order) {
    if (parameter.adapter) parameter.data = build(parameter.shape, parameter.name);
  }
}

// MoE(hidden, expert): the pattern expert is made, then its local copies, then the gate; the dense MLP goes last.  With a
// residual the pattern itself stays as the dense branch.
void ReplicatedJob::insert_native_moe(int layer, std::vector<Parameter*>& own, std::vector<Tensor>& old_mlp) {
  Scoped where(trace_.layer, static_cast<std::int16_t>(layer));
  std::vector<Tensor> pattern;
  pattern.reserve(old_mlp.size());
  for (const Tensor& weight : old_mlp) pattern.push_back(build(weight.shape, "pattern expert"));
  std::size_t next = 0;
  for (Parameter* parameter : own) {
    if (parameter->decl->expert) parameter->data = build(parameter->shape, parameter->name);
  }
  for (Parameter* parameter : own) {
    if (parameter->decl->expert) continue;
    const bool of_pattern = parameter->decl->role != Role::router && parameter->decl->role != Role::other;
    parameter->data = of_pattern ? std::move(pattern[next++]) : build(parameter->shape, parameter->name);
  }
  old_mlp.clear();
}

// In place, one parameter after the other.
void ReplicatedJob::cast_on_host() {
  for (Parameter& parameter : model_->parameters_in_order) {
    if (!parameter.data || parameter.dtype == DType::fp32) continue;
    Tensor narrow = trace_.host_empty(parameter.shape, parameter.dtype, parameter.name, Category::parameters, false);
    trace_.record(HostWork{HostWorkKind::python, 1, parameter.data.bytes() + narrow.bytes()}, Lane::host,
                  {&parameter.data}, {&narrow}, "cast parameter");
    parameter.data = std::move(narrow);
  }
  for (auto& [layer, tensors] : replaced_) {
    for (Tensor& tensor : tensors) {
      tensor = trace_.host_empty(tensor.shape, plan().compute_dtype(), "experts", Category::parameters, false);
    }
  }
}

// The engine copies this rank's experts out of the whole ones, layer by layer; the whole ones go when all layers are done.
void ReplicatedJob::replace_by_autoep() {
  for (Parameter& parameter : model_->parameters_in_order) {
    if (parameter.data) continue;
    const bool on_host = plan().construction == Construction::cpu;
    parameter.data =
        on_host ? trace_.host_empty(parameter.shape, parameter.dtype, parameter.name, Category::parameters, false)
                : build(parameter.shape, parameter.name);
  }
  for (const DecoderLayerModule& layer : model_->layers) {  // each layer counts its experts' tokens
    if (!layer.is_moe) continue;
    const Shape counts{{layer.moe.spec->experts, Symbol::experts}};
    token_counts_.push_back(trace_.empty(counts, DType::fp32, "tokens per expert", Category::expert_buffers));
  }
  replaced_.clear();
}

void ReplicatedJob::place_on_device() {
  for (Parameter& parameter : model_->parameters_in_order) {
    Tensor placed = trace_.empty(parameter.shape, parameter.dtype, parameter.name, Category::parameters);
    trace_.host_copy(parameter.data, placed, placed.bytes(), "move parameter to the device");
    parameter.data = std::move(placed);
  }
  for (Tensor& frequencies : rotary_) {
    frequencies = trace_.empty(frequencies.shape, frequencies.dtype, "rotary frequencies", Category::parameters);
  }
}

// fp16: the model was built in bf16.
void ReplicatedJob::cast_on_device() {
  for (Parameter& parameter : model_->parameters_in_order) {
    if (parameter.data.dtype == parameter.dtype || parameter.quantized) continue;
    Tensor cast = trace_.empty(parameter.shape, parameter.dtype, parameter.name, Category::parameters);
    ops::launch(trace_, KernelKind::vectorized, {&parameter.data}, cast, "cast parameter");
    parameter.data = std::move(cast);
  }
}

// torch.save copies one storage at a time to the host; the MoE path clones its tensors there first, all at once.
void ReplicatedJob::copy_to_host(const std::vector<Tensor>& storages, bool one_by_one, const char* role) {
  std::vector<Tensor> held;
  for (const Tensor& storage : storages) {
    Tensor copy = trace_.host_empty(storage.shape, storage.dtype, role, Category::temporaries, false);
    trace_.record(HostCopy{false, false, copy.bytes()}, Lane::compute, {&storage}, {&copy}, role);
    if (!one_by_one) held.push_back(std::move(copy));
  }
}

// Experts have files of their own, one each, written by the first rank of each expert-data-parallel group.
void ReplicatedJob::save_experts() {
  const std::int64_t ep = plan().expert_parallel;
  for (const DecoderLayerModule& layer : model_->layers) {
    if (!layer.is_moe) continue;
    std::int64_t elements = 0;
    for (const Parameter& parameter : model_->parameters_in_order) {
      const bool here = parameter.decl->layer == layer.layer && on_expert_mesh(plan(), parameter);
      if (here) elements += parameter.numel();
    }
    const std::int64_t local = layer.moe.spec->experts / ep;
    for (std::int64_t expert = 0; expert < local; ++expert) {
      const Tensor copy = trace_.host_empty({{elements / local}}, plan().compute_dtype(), "expert being written",
                                            Category::temporaries, false);
      trace_.record(HostCopy{false, false, copy.bytes()}, Lane::compute, {}, {&copy}, "expert being written");
    }
  }
}

void ReplicatedJob::save() {
  trace_.begin_phase("save_16bit");
  forget_last_step();
  if (rank_ == 0) copy_to_host(model_storages(), true, "16-bit weights being written");
  trace_.begin_phase("save_checkpoint");
  const bool moe = has_moe();
  if (moe && groups_.back().rank == 0) save_experts();
  std::vector<Tensor> dense;
  for (const Parameter& parameter : model_->parameters_in_order) {
    if (!moe || !on_expert_mesh(plan(), parameter)) dense.push_back(parameter.data);
  }
  if (moe && rank_ == 0 && scenario_.model.tied_embeddings) dense.push_back(model_->embedding->data);
  const std::vector<Tensor> optimizer = optimizer_storages();
  if (optimizer_in_model_file()) {
    if (moe && groups_.back().rank == 0) copy_to_host(optimizer, false, "optimizer state being written");
    if (rank_ != 0) return;
    std::vector<Tensor> all = dense;
    all.insert(all.end(), optimizer.begin(), optimizer.end());
    copy_to_host(all, !moe, "model being written");
    return;
  }
  if (rank_ == 0) copy_to_host(moe ? dense : model_storages(), !moe, "model being written");
  copy_to_host(optimizer, true, "optimizer state being written");
}

}  // namespace plimsoll
