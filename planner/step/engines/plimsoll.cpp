// The reference runtime's own engine: ZeRO on the dense mesh, expert parallelism times ZeRO on the expert mesh, fused layers,
// all memory in one arena (planner/step/engines/engines.hpp).
//
// A layer's dense weights are one group, its local experts another, embedding and head one each; a group of P elements on n
// ranks pads to n.  Stage 3: the bf16 shard 2P/n is gathered one layer ahead into 2P, freed after use, gathered again in
// backward.  Gradients: 2P per group while its backward runs (stages 0, 1: until the step), reduce-scattered in bf16 into
// 2P/n and added to 4P/n in fp32; stages 0 and 1 all-reduce once per step.  Master and moments: 12 P/n fp32 (stage 0: n = 1).
// Back-pressure: a gather waits for the compute of the layer before last; a reduction for the one before it, so at most two
// groups' gradients are unreduced.
#include <algorithm>
#include <map>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/engines.hpp"
#include "planner/step/engines/torch_job.hpp"
#include "planner/step/groups.hpp"
#include "planner/step/layers/fused.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {

namespace {

/// Parameters that are gathered, reduced and stepped together.
struct ShardGroup {
  const char* name = "";
  std::vector<Parameter*> parameters;
  std::int64_t numel = 0;  ///< padded to the mesh
  int mesh = 1;
  GroupId group = group_id::data_parallel;
  std::int16_t layer = -1;
  Tensor shard, full, full_gradient, gradient_shard, master, first, second;
  std::int64_t shard_numel() const { return numel / mesh; }
};

class PlimsollJob final : public TorchJob {
 public:
  PlimsollJob(const Scenario& scenario, int rank, RankProgram& program) : TorchJob(scenario, rank, program) {
    layers_.routing = route(scenario, rank);
    layers_.expert_group = group_id::expert_parallel;
    shrink_experts();
    make_groups();
  }

 private:
  int stage() const { return plan().zero.stage; }

  /// Only E / ep experts live here.
  void shrink_experts() {
    for (Parameter& parameter : model_->parameters_in_order) {
      if (parameter.group == 1) parameter.shape.sizes[0] /= plan().expert_parallel;
    }
  }

  void make_groups() {
    std::map<std::pair<int, int>, std::size_t> index;
    for (Parameter& parameter : model_->parameters_in_order) {
      const int layer = parameter.decl->layer;
      // Outside the layers each parameter is its own group: the head is not needed where the embedding is.
      const std::pair<int, int> key{layer, layer < 0 ? 2 + parameter.index : parameter.group};
      const auto [found, added] = index.try_emplace(key, groups_.size());
      if (added) {
        ShardGroup& group = groups_.emplace_back();
        group.name = parameter.group == 1 ? "experts" : layer < 0 ? parameter.name : "layer";
        group.layer = static_cast<std::int16_t>(layer);
        group.mesh = stage() == 0 ? 1 : mesh_size(parameter);
        group.group = parameter.group == 1 ? group_id::expert_data_parallel : group_id::data_parallel;
      }
      ShardGroup& group = groups_[found->second];
      group.parameters.push_back(&parameter);
      group.numel += parameter.numel();
      group_of_[&parameter] = found->second;
    }
    for (ShardGroup& group : groups_) group.numel = round_up(group.numel, group.mesh);
  }

  Tensor flat(std::int64_t numel, DType dtype, const char* name, Category category) {
    return trace_.empty({{numel, Symbol::parameters}}, dtype, name, category);
  }

  void construct() override {
    trace_.begin_phase("model_built");
    for (ShardGroup& group : groups_) {
      Scoped layer(trace_.layer, group.layer);
      const bool sharded = stage() == 3;
      Tensor& home = sharded ? group.shard : group.full;
      home = flat(sharded ? group.shard_numel() : group.numel, DType::bf16, sharded ? "weight shard" : "weights",
                  Category::parameters);
      if (!sharded) bind(group);
    }
    trace_.begin_phase("initialized");
    for (ShardGroup& group : groups_) {
      Scoped layer(trace_.layer, group.layer);
      const std::int64_t n = group.shard_numel();
      if (plan().master_fp32) group.master = flat(n, DType::fp32, "master weights", Category::master_weights);
      group.gradient_shard = flat(n, DType::fp32, "gradient shard", Category::gradients);
      group.first = flat(n, DType::fp32, "adam first moment", Category::optimizer_moments);
      group.second = flat(n, DType::fp32, "adam second moment", Category::optimizer_moments);
    }
  }

  void bind(ShardGroup& group) {
    for (Parameter* parameter : group.parameters) parameter->data = group.full.view_as(parameter->shape);
  }
  static void unbind(ShardGroup& group) {
    for (Parameter* parameter : group.parameters) parameter->data = {};
    group.full = {};
  }

  /// Issues the gather of a group (stage 3); its readers wait for it through the buffer.
  void gather(ShardGroup& group) {
    if (stage() < 3 || group.full) return;
    Scoped lane(trace_.lane, Lane::gather);
    Scoped layer(trace_.layer, group.layer);
    trace_.wait_for(Lane::gather, Lane::compute);
    group.full = flat(group.numel, DType::bf16, "gathered weights", Category::gathered_parameters);
    trace_.host_work(HostWorkKind::collective_issue, 1, "gather");
    trace_.collective({CollectiveKind::all_gather, DType::bf16, group.group, group.full.bytes(), {}}, {&group.shard},
                      {&group.full}, "gather weights");
    bind(group);
  }
  void release(ShardGroup& group) {
    if (stage() == 3) unbind(group);
  }
  void for_layer(int layer, void (PlimsollJob::*action)(ShardGroup&)) {
    for (ShardGroup& group : groups_) {
      if (group.layer == layer && layer >= 0) (this->*action)(group);
    }
  }
  ShardGroup& outside(const Parameter* parameter) { return groups_[group_of_.at(parameter)]; }
  int last_layer() const { return static_cast<int>(model_->layers.size()) - 1; }

  /// The view of the group's gradient buffer that belongs to a parameter; the buffer appears with its first user.
  Tensor gradient_of(Parameter& parameter) {
    ShardGroup& group = outside(&parameter);
    if (!group.full_gradient) {
      Scoped layer(trace_.layer, group.layer);
      group.full_gradient = flat(group.numel, DType::bf16, "gradients of a group", Category::gradients);
      trace_.compute(Kernel::pointwise(KernelKind::memset, DType::bf16, group.numel, group.full_gradient.bytes()), {},
                     {&group.full_gradient}, "clear gradients");
    }
    return group.full_gradient.view_as(parameter.shape);
  }

  /// Reduces a group's finished gradients into the fp32 shard (stages 2, 3; at the boundary also 0 and 1).
  void reduce(ShardGroup& group) {
    if (!group.full_gradient || (stage() < 2 && !boundary_)) return;
    // At most two groups' gradients are unreduced: what comes next waits for the reduction before this one.
    trace_.wait_for(Lane::compute, Lane::reduce);
    if (unreduced_.size() > 1) unreduced_.erase(unreduced_.begin());
    Scoped layer(trace_.layer, group.layer);
    {
      Scoped lane(trace_.lane, Lane::reduce);
      trace_.wait_for(Lane::reduce, Lane::compute);
      trace_.host_work(HostWorkKind::collective_issue, 1, "reduce");
      if (stage() < 2) {
        trace_.collective({CollectiveKind::all_reduce, DType::bf16, group.group, group.full_gradient.bytes(), {}},
                          {&group.full_gradient}, {&group.full_gradient}, "reduce gradients");
        add_to_shard(group, group.full_gradient);
      } else {
        const Tensor part =
            flat(group.shard_numel(), DType::bf16, "reduced gradients", Category::communication_buckets);
        trace_.collective({CollectiveKind::reduce_scatter, DType::bf16, group.group, group.full_gradient.bytes(), {}},
                          {&group.full_gradient}, {&part}, "reduce gradients");
        add_to_shard(group, part);
      }
    }
    unreduced_.push_back(std::move(group.full_gradient));
    group.full_gradient = {};
  }
  void add_to_shard(ShardGroup& group, const Tensor& part) {
    trace_.compute(Kernel::pointwise(KernelKind::mixed_mul, DType::fp32, group.shard_numel(),
                                     group.gradient_shard.bytes() * 2 + part.bytes()),
                   {&part, &group.gradient_shard}, {&group.gradient_shard}, "accumulate gradient shard");
  }

  Variable run_forward(const Variable& ids) override {
    FusedContext fused{layers_, [this](Parameter& p) { return gradient_of(p); }, plan().loss_chunk};
    gather(outside(model_->embedding));
    if (last_layer() >= 0) for_layer(0, &PlimsollJob::gather);
    Variable x = fused_embedding(fused, *model_, ids);
    if (!scenario_.model.tied_embeddings) release(outside(model_->embedding));
    for (DecoderLayerModule& layer : model_->layers) x = run_layer(fused, layer, std::move(x));
    ShardGroup& head = outside(model_->head.weight);
    ShardGroup& norm = outside(model_->norm.weight);
    gather(head);
    gather(norm);
    Variable loss = fused_loss(fused, *model_, x);
    release(head);
    return loss;
  }

  Variable run_layer(FusedContext& fused, DecoderLayerModule& module, Variable x) {
    const int l = module.layer;
    Scoped layer(trace_.layer, static_cast<std::int16_t>(l));
    for_layer(l, &PlimsollJob::gather);
    if (l < last_layer()) for_layer(l + 1, &PlimsollJob::gather);
    // Backward leaves the layer through this node: its gradients are complete.
    NodeRef left = autograd_.make_node({&x}, [this, l](BackwardCall& call) {
      ops::pass_through(call);
      for_layer(l, &PlimsollJob::release);
      for_layer(l, &PlimsollJob::reduce);
    });
    Variable entry{x.data()};
    entry.grad_fn = std::move(left);
    x = {};
    const bool again = plan().recompute.every > 0 && l % plan().recompute.every == 0;
    Variable out = again ? autograd_.checkpoint([&fused_ = fused_state(fused), &module, entry] {
      return fused_decoder_layer(fused_, module, entry);
    })
                         : fused_decoder_layer(fused, module, entry);
    // Backward enters through the output's node: gather this layer, and the next one down.
    out.grad_fn->pre_hooks.emplace_back([this, l] {
      for_layer(l, &PlimsollJob::gather);
      if (l > 0) for_layer(l - 1, &PlimsollJob::gather);
    });
    for_layer(l, &PlimsollJob::release);
    return out;
  }

  /// The context that recomputation uses outlives the forward; every layer and step uses the same.
  FusedContext& fused_state(const FusedContext& fused) {
    if (!recompute_context_) recompute_context_ = std::make_unique<FusedContext>(fused);
    return *recompute_context_;
  }

  void before_backward(bool boundary) override { boundary_ = boundary; }
  void after_backward(bool) override {
    for (ShardGroup& group : groups_) {
      if (group.layer < 0) {
        release(group);
        reduce(group);
      }
    }
    unreduced_.clear();
  }

  void optimizer_step() override {
    trace_.wait_for(Lane::compute, Lane::reduce);
    const Tensor norm = trace_.empty({}, DType::fp32, "gradient norm", Category::temporaries);
    for (ShardGroup& group : groups_) {
      trace_.compute(
          Kernel::pointwise(KernelKind::reduce_norm, DType::fp32, group.shard_numel(), group.gradient_shard.bytes()),
          {&group.gradient_shard}, {&norm}, "gradient norm");
    }
    trace_.collective({CollectiveKind::all_reduce, DType::fp32, group_id::data_parallel, Bytes(4), {}}, {&norm},
                      {&norm}, "gradient norm");
    for (ShardGroup& group : groups_) step_group(group, norm);
  }

  void step_group(ShardGroup& group, const Tensor& norm) {
    Scoped layer(trace_.layer, group.layer);
    const Tensor& weights = stage() == 3 ? group.shard : group.full;
    const Tensor& master = group.master ? group.master : weights;
    const std::int64_t n = group.shard_numel();
    trace_.compute(Kernel::pointwise(KernelKind::adamw, DType::fp32, n, Bytes(30 * n)),
                   {&group.gradient_shard, &master, &group.first, &group.second, &norm},
                   {&master, &group.first, &group.second, &weights, &group.gradient_shard}, "adamw");
    if (stage() == 1 || stage() == 2) {
      trace_.collective({CollectiveKind::all_gather, DType::bf16, group.group, weights.bytes(), {}}, {&weights},
                        {&weights}, "gather weights");
    }
  }

  std::vector<ShardGroup> groups_;
  std::map<const Parameter*, std::size_t> group_of_;
  std::vector<Tensor> unreduced_;
  std::unique_ptr<FusedContext> recompute_context_;
  bool boundary_ = true;
};

}  // namespace

void build_plimsoll(const Scenario& scenario, int rank, RankProgram& program) {
  PlimsollJob(scenario, rank, program).run();
}

}  // namespace plimsoll
