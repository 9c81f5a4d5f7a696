// PyTorch's fully_shard on every decoder layer and on the root (planner/step/engines/engines.hpp).
//
// Before a layer's forward its parameters are gathered, after it they are resharded (or kept); a hook on the layer's output
// gathers them again before its backward, and a node on its input reshards and reduces after it.  The root's turn comes when
// all of backward is over.  Weights are emptied and filled behind autograd's back: what keeps a weight for backward keeps its
// name only.
#include <algorithm>
#include <deque>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/engines.hpp"
#include "planner/step/engines/fsdp_group.hpp"
#include "planner/step/engines/torch_job.hpp"

namespace plimsoll {

namespace {

/// Hooks on the modules that were wrapped.
class FsdpHooks final : public ModuleHooks {
 public:
  FsdpHooks(Autograd& autograd, FsdpContext& context, bool reshard)
      : autograd_(autograd), context_(context), reshard_(reshard) {}

  void wrap(const Module& module, FsdpGroup& group) {
    if (by_module_.size() <= static_cast<std::size_t>(module.id))
      by_module_.resize(static_cast<std::size_t>(module.id) + 1);
    by_module_[static_cast<std::size_t>(module.id)] = &group;
  }

  void before_forward(Module& module, Variable& input) override {
    FsdpGroup* group = group_of(module);
    if (!group) return;
    group->pre_forward();
    if (!input.requires_grad()) return;
    NodeRef node = autograd_.make_node({&input}, [group](BackwardCall& call) {
      group->post_backward();
      ops::pass_through(call);
    });
    Variable hooked{input.data()};
    hooked.grad_fn = std::move(node);
    input = std::move(hooked);
  }

  void after_forward(Module& module, Variable& output) override {
    FsdpGroup* group = group_of(module);
    if (!group) return;
    group->post_forward(reshard_);
    if (output.requires_grad()) output.grad_fn->pre_hooks.emplace_back([group] { group->pre_backward(); });
    if (module.id == 0) {  // the root: the last layer's gathered buffer dies
      context_.trace.wait_for(Lane::copy_in, context_.last_copy_out);
      context_.trace.wait_for(Lane::gather, context_.last_copy_out);
      context_.last_gather = {};
    }
  }

 private:
  /// Null where nothing happens: a module that is not wrapped, or a layer run again, whose weights are there already.
  FsdpGroup* group_of(const Module& module) const {
    if (autograd_.recomputing || static_cast<std::size_t>(module.id) >= by_module_.size()) return nullptr;
    return by_module_[static_cast<std::size_t>(module.id)];
  }

  Autograd& autograd_;
  FsdpContext& context_;
  bool reshard_;
  std::vector<FsdpGroup*> by_module_;
};

class Fsdp2Job final : public TorchJob {
 public:
  Fsdp2Job(const Scenario& scenario, int rank, RankProgram& program)
      : TorchJob(scenario, rank, program),
        context_{.trace = trace_,
                 .shards = plan().world_size / plan().fsdp.replicate,
                 .replicas = plan().fsdp.replicate,
                 .shard_dtype = plan().master_fp32 ? DType::fp32 : plan().compute_dtype(),
                 .reduce_dtype = plan().fsdp.reduce_dtype,
                 .multiprocessors = autograd_.device.multiprocessors,
                 .on_host = plan().offload.parameters != OffloadDevice::none,
                 .pinned = plan().offload.pin_parameters,
                 .last_gather = {},
                 .last_reduce_input = {},
                 .forward_order = {}},
        hooks_(autograd_, context_, plan().fsdp.reshard_after_forward) {
    make_groups();
    layers_.hooks = &hooks_;
  }

 private:
  void make_groups() {
    FsdpGroup& root = groups_.emplace_back(context_, -1);
    hooks_.wrap(*model_, root);
    for (DecoderLayerModule& layer : model_->layers) hooks_.wrap(layer, groups_.emplace_back(context_, layer.layer));
    const int shard_rank = rank_ % context_.shards;
    for (Parameter& parameter : model_->parameters_in_order) {
      parameter.pinned_by_autograd = false;
      parameter.on_gradient = [this](Parameter& owner, Tensor gradient) {
        trace_.host_work(HostWorkKind::accumulate_grad, 1, "accumulate gradient");
        owner.grad = std::move(gradient);
      };
      const int group = parameter.decl->layer + 1;  // what no layer holds is the root's
      groups_[static_cast<std::size_t>(group)].add(parameter, shard_rank);
    }
  }

  /// Shards in the order of the model's parameters, not of the groups.
  std::vector<FsdpParameter*> in_model_order() {
    std::vector<FsdpParameter*> order(model_->parameters_in_order.size());
    for (FsdpGroup& group : groups_) {
      for (FsdpParameter& p : group.parameters()) order[static_cast<std::size_t>(p.parameter->index)] = &p;
    }
    return order;
  }

  Tensor new_shard(const FsdpParameter& p) {
    return trace_.empty({{p.padded, Symbol::parameters}}, context_.shard_dtype, p.parameter->name,
                        Category::parameters);
  }

  Tensor host_shard(const FsdpParameter& p, bool pinned) {
    return trace_.host_empty({{p.padded, Symbol::parameters}}, context_.shard_dtype, p.parameter->name,
                             Category::parameters, pinned);
  }

  void construct() override {
    trace_.begin_phase("initialized");
    switch (plan().construction) {
      case Construction::gpu: shard_from(false); break;
      case Construction::cpu: shard_from(true); break;
      case Construction::meta:
      case Construction::zero_init: materialise(); break;
    }
    frequencies_ = rotary_frequencies(trace_, scenario_.model);
  }

  // Built on the meta device, sharded there, then materialised: a tied head names the embedding, which is made twice.
  // The weights are then drawn: random numbers and their product with the standard deviation, a shard each.
  void materialise() {
    const std::vector<FsdpParameter*> order = in_model_order();
    if (context_.on_host) {
      for (FsdpParameter* p : order) p->shard = host_shard(*p, false);
      return;
    }
    for (FsdpParameter* p : order) p->shard = new_shard(*p);
    if (scenario_.model.tied_embeddings) {
      for (FsdpParameter* p : order) {
        if (p->parameter == model_->embedding) p->shard = new_shard(*p);
      }
    }
    for (FsdpParameter* p : order) {
      if (p->local == 0) continue;
      const Shape shape{{p->local, Symbol::parameters}};
      Tensor random = trace_.empty(shape, context_.shard_dtype, "random weights", Category::temporaries);
      ops::launch(trace_, KernelKind::fill, {}, random, "draw weights");
      const Tensor scaled = trace_.empty(shape, context_.shard_dtype, "scaled random weights", Category::temporaries);
      ops::launch(trace_, KernelKind::vectorized, {&random}, scaled, "scale weights");
      random = {};
      ops::launch(trace_, KernelKind::vectorized, {&scaled}, p->shard, "set weights");
    }
  }

  // Built whole on the GPU or on the host, then sharded group by group (layers first, the root last): a group's full weights
  // are on the GPU, and die when the group has its shards.
  void shard_from(bool host) {
    std::vector<Tensor> whole;
    for (Parameter& parameter : model_->parameters_in_order) {
      whole.push_back(
          host ? trace_.host_empty(parameter.shape, context_.shard_dtype, parameter.name, Category::parameters, false)
               : trace_.empty(parameter.shape, context_.shard_dtype, parameter.name, Category::parameters));
    }
    const auto shard = [&](FsdpGroup& group) {
      std::vector<Tensor> moved;
      for (FsdpParameter& p : group.parameters()) {
        Tensor& source = whole[static_cast<std::size_t>(p.parameter->index)];
        if (host) {
          Tensor copy = trace_.empty(source.shape, source.dtype, p.parameter->name, Category::parameters);
          trace_.record(HostCopy{true, false, source.bytes()}, Lane::compute, {&source}, {&copy}, "move to the GPU");
          source = std::move(copy);
        }
        moved.push_back(std::move(source));
      }
      for (std::size_t i = 0; i < moved.size(); ++i) {
        FsdpParameter& p = group.parameters()[i];
        p.shard = new_shard(p);
        ops::launch(trace_, KernelKind::flat_copy, {&moved[i]}, p.shard, "cut shard");
      }
    };
    for (std::size_t i = 1; i < groups_.size(); ++i) shard(groups_[i]);
    shard(groups_.front());
  }

  // The first forward pins shards that were materialised in pageable memory.
  void pin_shards() {
    for (FsdpParameter* p : in_model_order()) p->shard = host_shard(*p, true);
  }

  void before_forward(bool) override {
    if (context_.on_host && context_.pinned && step_ == 0) {
      if (!pinned_) pin_shards();
      pinned_ = true;
    }
    // The gather streams wait for whatever changed the shards.
    trace_.wait_for(Lane::copy_in, Lane::compute);
    trace_.wait_for(Lane::gather, Lane::compute);
  }

  void before_backward(bool) override {
    autograd_.final_callbacks.emplace_back([this] {
      for (FsdpGroup& group : groups_) group.finalize();
      context_.forward_order.clear();
      trace_.wait_for(Lane::compute, Lane::reduce);
      if (context_.replicas > 1) trace_.wait_for(Lane::compute, Lane::exchange);
      context_.last_reduce_input = {};
    });
  }

  void optimizer_step() override {
    std::vector<Tensor> tensors;
    std::vector<const Tensor*> gradients;
    const std::vector<FsdpParameter*> order = in_model_order();
    for (FsdpParameter* p : order) {
      if (!p->gradient || p->local == 0) continue;
      tensors.push_back(p->shard.view_as({{p->local, Symbol::parameters}}));
      gradients.push_back(&p->gradient);
    }
    if (context_.on_host) {
      step_on_host(tensors, gradients);
      for (FsdpParameter* p : order) p->gradient = {};
      return;
    }
    if (plan().gradient_clipping > 0) clip_gradients(trace_, gradients, context_.shard_group());
    adamw_step(trace_, plan().optimizer.implementation, plan().optimizer.moments, tensors, gradients, states_);
    for (FsdpParameter* p : order) p->gradient = {};
  }

  // torch's AdamW on CPU tensors, without temporaries; moments are made in the first step and never pinned.
  void step_on_host(const std::vector<Tensor>& tensors, const std::vector<const Tensor*>& gradients) {
    trace_.record(HostSync{Lane::reduce}, Lane::host, {}, {}, "gradients to the CPU optimizer");
    const DType moments = plan().optimizer.moments;
    states_.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      AdamState& state = states_[i];
      for (Tensor* moment : {&state.first, &state.second}) {
        if (!*moment)
          *moment = trace_.host_empty(tensors[i].shape, moments, "adam moment", Category::optimizer_moments, false);
      }
      const Bytes bytes = tensors[i].bytes() * 2 + gradients[i]->bytes() + state.first.bytes() * 4;
      trace_.record(HostWork{HostWorkKind::cpu_adam, tensors[i].numel(), bytes}, Lane::host,
                    {&tensors[i], gradients[i], &state.first, &state.second},
                    {&tensors[i], &state.first, &state.second}, "adamw");
    }
  }

  FsdpContext context_;
  FsdpHooks hooks_;
  bool pinned_ = false;
  std::deque<FsdpGroup> groups_;  // the root, then the layers
  std::vector<Tensor> frequencies_;
  std::vector<AdamState> states_;
};

}  // namespace

void build_fsdp2(const Scenario& scenario, int rank, RankProgram& program) { Fsdp2Job(scenario, rank, program).run(); }

}  // namespace plimsoll
