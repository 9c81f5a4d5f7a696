// Construction of the sharded model (planner/step/engines/deepspeed_stage3_build.hpp).
#include "planner/step/engines/deepspeed_stage3_build.hpp"

#include <map>
#include <string_view>

#include "planner/step/groups.hpp"

namespace plimsoll::zero3 {

namespace {

Shape shape_of(const ParameterDecl& decl) {
  Shape shape;
  for (const std::int64_t size : decl.shape) shape.push({size, Symbol::number});
  return shape;
}

std::string_view module_of(const ParameterDecl& decl) {
  const std::string_view name = decl.name;
  return name.substr(0, name.rfind('.'));
}

}  // namespace

ModelBuilder::ModelBuilder(Trace& trace, const Scenario& scenario, ShardedParameters& parameters)
    : trace_(trace), scenario_(scenario), parameters_(parameters), dtype_(scenario.plan.compute_dtype()) {
  for (const ParameterDecl& decl : scenario.model.parameters) {
    declared_.push_back({&decl, trace.intern(decl.name), {}, {}});
    if (scenario.model.tied_embeddings && decl.role == Role::embedding) head_ = declared_.back();
  }
}

void ModelBuilder::build() {
  Scoped category(trace_.category, Category::parameters);
  const AttentionSpec* attention = scenario_.model.layers.empty() ? nullptr : &scenario_.model.layers.front().attention;
  if (attention) {
    const std::int64_t width = attention->rope_head_dim > 0 ? attention->rope_head_dim : attention->head_dim;
    for (const char* name : {"rotary frequencies", "original rotary frequencies"})
      small_.push_back(trace_.empty({{width / 2, Symbol::head_dim}}, DType::fp32, name));
  }
  small_.push_back(trace_.empty({}, DType::fp32, "barrier flag"));
  switch (scenario_.plan.construction) {
    case Construction::cpu: construct_whole(true); break;
    case Construction::gpu: construct_whole(false); break;
    case Construction::zero_init:
    case Construction::meta: construct_under_zero_init(); break;
  }
  if (scenario_.plan.lora) add_adapters();
}

// PEFT makes them whole in the layers' type, outside of zero.Init, ties the head again, so that its own part goes, and casts
// them to fp32, one by one.
void ModelBuilder::add_adapters() {
  head_.reset();
  std::vector<const Parameter*> made;
  for (const ShardedParameter& sharded : parameters_.all()) {
    if (sharded.parameter->adapter) made.push_back(sharded.parameter);
  }
  for (const Parameter* parameter : made) adapters_.push_back(trace_.empty(parameter->shape, dtype_, parameter->name));
  if (scenario_.plan.lora->fp32) cast_adapters(DType::fp32);
}

void ModelBuilder::cast_adapters(DType dtype) {
  for (Tensor& adapter : adapters_) {
    if (adapter.dtype == dtype) continue;
    Tensor cast = trace_.empty(adapter.shape, dtype, "adapter");
    const KernelKind kind = dtype == DType::fp32 ? KernelKind::upcast : KernelKind::vectorized;
    trace_.compute(Kernel::pointwise(kind, dtype, cast.numel(), adapter.bytes() + cast.bytes()), {&adapter}, {&cast},
                   "cast adapter");
    adapter = std::move(cast);
  }
}

// Parameters of one module are made one after the other and cut together, when the module is complete.
void ModelBuilder::construct_under_zero_init() {
  for (std::size_t first = 0; first < declared_.size();) {
    std::size_t last = first;
    while (last < declared_.size() && module_of(*declared_[last].decl) == module_of(*declared_[first].decl))
      make_whole(declared_[last++]);
    while (first < last) cut(declared_[first++]);
  }
  if (head_) {
    make_whole(*head_);
    cut(*head_);
  }
}

void ModelBuilder::make_whole(Declared& declared) {
  Scoped layer(trace_.layer, static_cast<std::int16_t>(declared.decl->layer));
  const Shape shape = shape_of(*declared.decl);
  const Tensor initial = trace_.empty(shape, DType::fp32, "parameter in fp32");
  declared.whole = trace_.empty(shape, dtype_, declared.name);
  trace_.compute(
      Kernel::pointwise(KernelKind::vectorized, dtype_, shape.numel(), initial.bytes() + declared.whole.bytes()),
      {&initial}, {&declared.whole}, "cast parameter");
}

Tensor ModelBuilder::empty_shard(std::int64_t elements, DType dtype) {
  const Shape shape{{elements, Symbol::parameters}};
  if (!on_host()) return trace_.empty(shape, dtype, "shard");
  return trace_.host_empty(shape, dtype, "shard", Category::parameters, scenario_.plan.offload.pin_parameters);
}

void ModelBuilder::cut(Declared& declared) {
  Scoped layer(trace_.layer, static_cast<std::int16_t>(declared.decl->layer));
  const int ranks = scenario_.plan.world_size;
  const Tensor& whole = declared.whole;
  if (ranks > 1) {
    Collective broadcast;
    broadcast.kind = CollectiveKind::broadcast;
    broadcast.dtype = dtype_;
    broadcast.group = group_id::data_parallel;
    broadcast.full_size = whole.bytes();
    trace_.collective(broadcast, {&whole}, {&whole}, "broadcast parameter");
  }
  declared.shard = empty_shard(ceil_div(whole.numel(), ranks), dtype_);
  const Bytes bytes = declared.shard.bytes();
  if (on_host()) {
    trace_.record(HostCopy{false, true, bytes}, Lane::compute, {&whole}, {&declared.shard}, "shard to the host");
  } else {
    trace_.compute(Kernel::pointwise(KernelKind::flat_copy, dtype_, declared.shard.numel(), bytes * 2), {&whole},
                   {&declared.shard}, "cut parameter");
  }
  declared.whole = {};
}

void ModelBuilder::construct_whole(bool host) {
  const auto make = [&](const Declared& declared) {
    const Shape shape = shape_of(*declared.decl);
    return host ? trace_.host_empty(shape, DType::fp32, declared.name, Category::parameters, false)
                : trace_.empty(shape, dtype_, declared.name);
  };
  for (Declared& declared : declared_) declared.whole = make(declared);
  if (head_) make(*head_);
}

void ModelBuilder::shard() {
  Scoped category(trace_.category, Category::parameters);
  head_.reset();
  // A model that is not sharded yet is cast as a whole.
  const Construction construction = scenario_.plan.construction;
  if (construction == Construction::cpu || construction == Construction::gpu) cast_adapters(dtype_);
  if (construction == Construction::cpu) {
    for (Declared& declared : declared_) {
      declared.whole = trace_.host_empty(shape_of(*declared.decl), dtype_, declared.name, Category::parameters, false);
    }
    for (Declared& declared : declared_) {
      const Tensor moved = trace_.empty(shape_of(*declared.decl), dtype_, declared.name);
      trace_.record(HostCopy{true, false, moved.bytes()}, Lane::compute, {&declared.whole}, {&moved},
                    "model to the device");
      declared.whole = moved;
    }
  }
  for (Declared& declared : declared_) {
    if (declared.whole) cut(declared);
  }
  replace_experts();
}

// Parameters that the engine shares with the Hugging Face model take over its parts.  The others (AutoEP's) are made here.
void ModelBuilder::replace_experts() {
  std::map<const ParameterDecl*, Declared*> by_decl;
  for (Declared& declared : declared_) by_decl[declared.decl] = &declared;
  for (ShardedParameter& sharded : parameters_.all()) {
    const Parameter& parameter = *sharded.parameter;
    Scoped layer(trace_.layer, static_cast<std::int16_t>(parameter.decl ? parameter.decl->layer : -1));
    sharded.on_host = on_host();
    const auto original = by_decl.find(parameter.decl);
    if (original != by_decl.end() && sharded.communicator.index == 0) {
      sharded.shard = std::move(original->second->shard);
    } else {
      sharded.shard = empty_shard(sharded.part, parameter.dtype);
    }
  }
  declared_.clear();
  adapters_.clear();
}

}  // namespace plimsoll::zero3
