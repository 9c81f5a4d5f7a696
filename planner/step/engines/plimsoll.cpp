// The reference runtime's own engine: ZeRO on the dense mesh, expert parallelism times ZeRO on the expert mesh, fused layers,
// all memory in one arena (planner/step/engines/engines.hpp).
//
// A layer's dense weights are one group, its local experts another, embedding and head one each; a group of P elements on n
// ranks pads to n.  v bytes an element (bf16: 2).  Stage 3: the shard vP/n is gathered one layer ahead into vP (the head beside
// the last layer), freed after use, gathered again in backward; the last layer's is kept for it.  Gradients: vP per group
// while its backward runs (stages 0, 1: until the step), reduce-scattered into vP/n and added to 4P/n in fp32 (written there
// where a step does it once: nothing is cleared then); stages 0 and 1 all-reduce once per step.  What is added to a shard is
// added on the lane that computes, since kernels beside each other share one device; by copy engines the other rank's part
// comes over as it is, and both are added at once.  The last addition of a step also sums squares for the norm.  Master
// (where the weights are 16-bit) and moments: 12 P/n fp32 (stage 0: n = 1).  A group that one rank has to itself (the experts
// where ep is all ranks) is never gathered or reduced.
// Back-pressure: a gather waits for the compute of the layer before last; what follows a layer's backward for the reductions of
// the layer before it, which are added then, so that at most one layer's gradients are unreduced while the next one's are made.
//
// The report: one fp32 vector with the squared gradient norm, the losses and the experts' counts, summed over all ranks once
// a step; the optimizer clips by it, the host prints it.
#include <algorithm>
#include <map>
#include <set>

#include "planner/spec/topology.hpp"
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
  int index = 0;  ///< of this rank among those that share it
  std::int16_t layer = -1;
  std::set<const Parameter*> written;  ///< whose gradients stand in full_gradient
  Tensor shard, full, full_gradient, gradient_shard, master, first, second;
  std::int64_t shard_numel() const { return numel / mesh; }
};

/// Gradients of a group on their way to its shard.
struct Reduction {
  ShardGroup* group = nullptr;
  Tensor own;           ///< this rank's part of its own gradients (stages 0 and 1: of the sum)
  Tensor part;          ///< stages 2 and 3: what comes
  bool is_sum = false;  ///< `part` is the sum over all ranks, not the other rank's part
};

class PlimsollJob final : public TorchJob {
 public:
  PlimsollJob(const Scenario& scenario, int rank, RankProgram& program) : TorchJob(scenario, rank, program) {
    layers_.routing = route(scenario, rank);
    layers_.expert_group = group_id::expert_parallel;
    shrink_experts();
    make_groups();
    prepare_layers();
  }

 private:
  int stage() const { return plan().zero.stage; }
  /// Ranks that share the group's parameters, whatever the stage.  A rank that has them to itself sends none of them.
  int ranks_of(const ShardGroup& group) const { return mesh_size(*group.parameters.front()); }
  bool is_gathered(const ShardGroup& group) const { return stage() == 3 && ranks_of(group) > 1; }
  DType type() const { return plan().compute_dtype(); }

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
        group.index = group.mesh == 1 ? 0 : parameter.group == 1 ? rank_ / plan().expert_parallel : rank_;
      }
      ShardGroup& group = groups_[found->second];
      group.parameters.push_back(&parameter);
      group.numel += parameter.numel();
      group_of_[&parameter] = found->second;
    }
    for (ShardGroup& group : groups_) group.numel = round_up(group.numel, group.mesh);
  }

  /// What the layers need beside the model's modules.
  void prepare_layers() {
    fused_.loss_chunk = plan().loss_chunk;
    const std::int64_t ranks = plan().world_size;
    fused_.loss_scale = 1.0 / static_cast<double>(plan().tokens() * plan().gradient_accumulation * ranks);
    if (!model_->layers.empty()) {
      fused_.rotary_constants = static_cast<std::int64_t>(program_.constants.size());
      const std::vector<double> table =
          rotary_frequency_table(scenario_.model, model_->layers.front().attention.spec->head_dim);
      program_.constants.insert(program_.constants.end(), table.begin(), table.end());
    }
    ReportLayout& report = program_.report;
    for (const DecoderLayerModule& layer : model_->layers) {
      if (!layer.is_moe) continue;
      ++report.moe_layers;
      report.experts = layer.moe.spec->experts;
    }
    report.numel = round_up(report_slot::counts + report.moe_layers * report.experts, ranks);
    program_.feed = {plan().tokens(), plan().sequence, scenario_.model.vocab};
  }

  Tensor flat(std::int64_t numel, DType dtype, const char* name, Category category) {
    return trace_.empty({{numel, Symbol::parameters}}, dtype, name, category);
  }

  void construct() override {
    trace_.begin_phase("model_built");
    for (ShardGroup& group : groups_) {
      Scoped layer(trace_.layer, group.layer);
      const bool sharded = is_gathered(group);
      Tensor& home = sharded ? group.shard : group.full;
      home = flat(sharded ? group.shard_numel() : group.numel, type(), sharded ? "weight shard" : "weights",
                  Category::parameters);
      if (!sharded) bind(group);
    }
    trace_.begin_phase("initialized");
    for (ShardGroup& group : groups_) {
      Scoped layer(trace_.layer, group.layer);
      const std::int64_t n = group.shard_numel();
      if (plan().master_fp32 && type() != DType::fp32)
        group.master = flat(n, DType::fp32, "master weights", Category::master_weights);
      group.gradient_shard = flat(n, DType::fp32, "gradient shard", Category::gradients);
      group.first = flat(n, DType::fp32, "adam first moment", Category::optimizer_moments);
      group.second = flat(n, DType::fp32, "adam second moment", Category::optimizer_moments);
      declare(group);
    }
    const Shape report{{program_.report.numel}};
    fused_.report = trace_.empty(report, DType::fp32, "step report", Category::temporaries);
    host_report_ = trace_.host_empty(report, DType::fp32, "step report", Category::temporaries, true);
    program_.report.device = fused_.report.buffer();
    program_.report.host = host_report_.buffer();
  }

  /// Says where the group's parameters lie, for those who fill, save and load them.
  void declare(const ShardGroup& group) {
    FlatGroup out;
    out.name = group.name;
    out.layer = group.layer;
    out.group = group.group;
    out.numel = group.numel;
    out.shard_numel = group.shard_numel();
    out.shard_first = group.shard_numel() * group.index;
    out.weights = (is_gathered(group) ? group.shard : group.full).buffer();
    out.weights_first = is_gathered(group) ? out.shard_first : 0;
    out.weights_numel = is_gathered(group) ? out.shard_numel : group.numel;
    if (group.master) out.master = group.master.buffer();
    out.gradient = group.gradient_shard.buffer();
    out.first_moment = group.first.buffer();
    out.second_moment = group.second.buffer();
    out.first_slot = static_cast<std::uint32_t>(program_.slots.size());
    std::int64_t offset = 0;
    for (const Parameter* parameter : group.parameters) {
      ParameterSlot slot{parameter->name, offset, parameter->numel(), 0, parameter->numel(), 0};
      if (parameter->group == 1) {
        slot.first = slot.numel * (rank_ % plan().expert_parallel);
        slot.whole_numel = slot.numel * plan().expert_parallel;
      }
      if (parameter->shape.rank > 1) slot.initial_std = scenario_.model.numerics.initializer_range;
      offset += slot.numel;
      program_.slots.push_back(slot);
    }
    out.slot_count = static_cast<std::uint32_t>(group.parameters.size());
    program_.flat_groups.push_back(out);
  }

  void bind(ShardGroup& group) {
    std::int64_t offset = 0;
    for (Parameter* parameter : group.parameters) {
      parameter->data = group.full.part(offset, parameter->shape);
      offset += parameter->numel();
    }
  }
  static void unbind(ShardGroup& group) {
    for (Parameter* parameter : group.parameters) parameter->data = {};
    group.full = {};
  }

  /// Issues the gather of a group (stage 3); its readers wait for it through the buffer.
  void gather(ShardGroup& group) {
    if (!is_gathered(group) || group.full) return;
    Scoped lane(trace_.lane, Lane::gather);
    Scoped layer(trace_.layer, group.layer);
    trace_.wait_for(Lane::gather, Lane::compute);
    group.full = flat(group.numel, type(), "gathered weights", Category::gathered_parameters);
    trace_.host_work(HostWorkKind::collective_issue, 1, "gather");
    trace_.collective(of_group(CollectiveKind::all_gather, type(), group.group, group.full.bytes()), {&group.shard},
                      {&group.full}, "gather weights");
    bind(group);
  }
  Collective of_group(CollectiveKind kind, DType dtype, GroupId group, Bytes size) const {
    const Group& members = members_[group];
    const GroupShape shape = group_of_rank(members.size, members.stride, rank_);
    return {kind, dtype, group, size, {}, reference_carrier(scenario_.cluster, shape, kind, size)};
  }
  void release(ShardGroup& group) {
    if (is_gathered(group)) unbind(group);
  }
  void for_layer(int layer, void (PlimsollJob::*action)(ShardGroup&)) {
    for (ShardGroup& group : groups_) {
      if (group.layer == layer && layer >= 0) (this->*action)(group);
    }
  }
  ShardGroup& outside(const Parameter* parameter) { return groups_[group_of_.at(parameter)]; }
  int last_layer() const { return static_cast<int>(model_->layers.size()) - 1; }

  /// The place in the group's gradient buffer of parameters that lie side by side; the buffer appears with its first user.
  GradientPlace gradient_of(const std::vector<Parameter*>& parameters) {
    ShardGroup& group = outside(parameters.front());
    if (!group.full_gradient) {
      Scoped layer(trace_.layer, group.layer);
      group.full_gradient = flat(group.numel, type(), "gradients of a group", Category::gradients);
      group.written.clear();
      clear_padding(group);
    }
    std::int64_t offset = 0;
    const auto& all = group.parameters;
    auto first = all.begin();
    for (; *first != parameters.front(); ++first) offset += (*first)->numel();
    CHECK(all.end() - first >= std::ssize(parameters) && std::equal(parameters.begin(), parameters.end(), first),
          "a product over weights that do not lie side by side");
    GradientPlace place{group.full_gradient.part(offset, parameters.front()->shape), false};
    for (const Parameter* parameter : parameters) place.add = !group.written.insert(parameter).second || place.add;
    return place;
  }
  void clear_padding(ShardGroup& group) {
    std::int64_t used = 0;
    for (const Parameter* parameter : group.parameters) used += parameter->numel();
    if (used == group.numel) return;
    const Tensor padding = group.full_gradient.part(used, {{group.numel - used}});
    trace_.compute(Kernel::pointwise(KernelKind::memset, type(), padding.numel(), padding.bytes()),
                   {Routine::fill_zero, {padding.numel()}, {}}, {}, {&padding}, "clear padding");
  }

  bool is_last_micro_batch() const { return trace_.micro_batch + 1 == plan().gradient_accumulation; }

  /// Sends a group's finished gradients to where they are summed (stages 2, 3; in the last micro-batch also 0 and 1).
  void reduce(ShardGroup& group) {
    if (!group.full_gradient || (stage() < 2 && !is_last_micro_batch())) return;
    Scoped layer(trace_.layer, group.layer);
    const std::int64_t n = group.shard_numel();
    const Tensor gradients = std::exchange(group.full_gradient, {});
    const Tensor own = group.mesh == 1 ? gradients : gradients.part(n * group.index, {{n, Symbol::parameters}});
    if (ranks_of(group) == 1) return add_to_shard({&group, own, {}});
    Scoped lane(trace_.lane, Lane::reduce);
    trace_.wait_for(Lane::reduce, Lane::compute);
    trace_.host_work(HostWorkKind::collective_issue, 1, "reduce");
    const bool scatters = stage() >= 2;
    const Collective sum = of_group(scatters ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce, type(),
                                    group.group, gradients.bytes());
    const Tensor part = scatters ? flat(n, type(), "reduced gradients", Category::communication_buckets) : Tensor{};
    trace_.collective(sum, {&gradients}, {scatters ? &part : &gradients}, "reduce gradients");
    reductions_.push_back({&group, own, part, scatters && sum.carrier == Carrier::kernels});
  }
  /// What comes next on the lane that computes follows the reductions under way, and adds what they brought to the shards.
  void finish_reductions() {
    for (const Reduction& reduction : reductions_) add_to_shard(reduction);
    reductions_.clear();
  }
  /// True if a step adds to each shard more than once; else what is added takes the place of what stood there.
  bool accumulates() const { return stage() >= 2 && plan().gradient_accumulation > 1; }
  void add_to_shard(const Reduction& reduction) {
    const ShardGroup& group = *reduction.group;
    Scoped layer(trace_.layer, group.layer);
    const Tensor none, &shard = group.gradient_shard, &first = reduction.is_sum ? reduction.part : reduction.own,
                       &second = reduction.is_sum ? none : reduction.part;
    const bool adds = accumulates(), counts = is_last_micro_batch();
    const Kernel kernel = Kernel::pointwise(KernelKind::vectorized, DType::fp32, group.shard_numel(),
                                            shard.bytes() * (adds ? 2 : 1) + first.bytes() * (second ? 2 : 1));
    // Every shard counts once in the norm, though several ranks may hold it.
    const double share = static_cast<double>(group.mesh) / static_cast<double>(ranks_of(group));
    trace_.compute(kernel,
                   {Routine::accumulate, {group.shard_numel(), adds ? 0 : 1, second ? 2 : 1, counts ? 1 : 0}, {share}},
                   {&first, &second, adds ? &shard : &none}, {&shard, counts ? &fused_.report : &none},
                   "accumulate gradient shard");
  }

  void before_forward(bool first_micro_batch) override {
    if (!first_micro_batch) return;
    const Tensor& report = fused_.report;
    trace_.compute(Kernel::pointwise(KernelKind::memset, DType::fp32, report.numel(), report.bytes()),
                   {Routine::fill_zero, {report.numel()}, {}}, {}, {&report}, "clear the report");
  }

  /// Tokens and labels of the micro-batch come from the host.
  void feed(const Variable& ids) {
    fused_.labels = trace_.empty({layers_.tokens()}, DType::int64, "labels");
    trace_.record(HostCopy{true, true, ids.bytes()}, Lane::copy_in, {}, {&ids.data()}, "tokens");
    trace_.record(HostCopy{true, true, fused_.labels.bytes()}, Lane::copy_in, {}, {&fused_.labels}, "labels");
  }

  Variable run_forward(const Variable& ids) override {
    gather(outside(model_->embedding));
    if (last_layer() >= 0) for_layer(0, &PlimsollJob::gather);
    feed(ids);  // the host makes tokens while the gathers run
    Variable x = fused_embedding(fused_, *model_, ids);
    if (!scenario_.model.tied_embeddings) release(outside(model_->embedding));
    for (DecoderLayerModule& layer : model_->layers) x = run_layer(layer, std::move(x));
    ShardGroup& head = outside(model_->head.weight);
    ShardGroup& norm = outside(model_->norm.weight);
    gather(head);
    gather(norm);
    Variable loss = fused_loss(fused_, *model_, x);
    fused_.labels = {};
    release(head);
    if (stage() >= 2 && !scenario_.model.tied_embeddings) reduce(head);
    return loss;
  }

  Variable run_layer(DecoderLayerModule& module, Variable x) {
    const int l = module.layer;
    Scoped layer(trace_.layer, static_cast<std::int16_t>(l));
    for_layer(l, &PlimsollJob::gather);
    if (l < last_layer()) {
      for_layer(l + 1, &PlimsollJob::gather);
    } else {
      gather(outside(model_->head.weight));
      gather(outside(model_->norm.weight));
    }
    // Backward leaves the layer through this node: its gradients are complete.
    NodeRef left = autograd_.make_node({&x}, [this, l](BackwardCall& call) {
      ops::pass_through(call);
      for_layer(l, &PlimsollJob::release);
      finish_reductions();
      for_layer(l, &PlimsollJob::reduce);
    });
    Variable entry{x.data()};
    entry.grad_fn = std::move(left);
    x = {};
    const bool again = plan().recompute.every > 0 && l % plan().recompute.every == 0;
    Variable out =
        again ? autograd_.checkpoint([this, &module, entry] { return fused_decoder_layer(fused_, module, entry); })
              : fused_decoder_layer(fused_, module, entry);
    // Backward enters through the output's node: gather this layer, and the next one down.
    out.grad_fn->pre_hooks.emplace_back([this, l] {
      for_layer(l, &PlimsollJob::gather);
      if (l > 0) for_layer(l - 1, &PlimsollJob::gather);
    });
    if (l < last_layer()) for_layer(l, &PlimsollJob::release);  // backward begins with the last one
    return out;
  }

  void after_backward(bool) override {
    for (ShardGroup& group : groups_) {
      if (group.layer >= 0) continue;
      release(group);
      reduce(group);
    }
    finish_reductions();
  }

  void optimizer_step() override {
    const Tensor& report = fused_.report;
    trace_.collective(of_group(CollectiveKind::all_reduce, DType::fp32, group_id::data_parallel, report.bytes()),
                      {&report}, {&report}, "step report");
    trace_.record(HostCopy{false, true, report.bytes()}, Lane::copy_out, {&report}, {&host_report_}, "step report");
    for (ShardGroup& group : groups_) step_group(group);
    trace_.record(HostSync{Lane::copy_out}, Lane::host, {}, {}, "step report");
    trace_.wait_for(Lane::compute, Lane::copy_out);  // the next step clears it
  }
  void step_group(ShardGroup& group) {
    Scoped layer(trace_.layer, group.layer);
    const Tensor& home = is_gathered(group) ? group.shard : group.full;
    const std::int64_t n = group.shard_numel();
    const Tensor weights = is_gathered(group) ? home : home.part(n * group.index, {{n, Symbol::parameters}});
    const Tensor& master = group.master ? group.master : weights;
    const Tensor& gradient = group.gradient_shard;
    const bool clears = accumulates();
    const Bytes bytes = gradient.bytes() * (clears ? 2 : 1) + group.first.bytes() * 4 + master.bytes() * 2 +
                        (group.master ? weights.bytes() : Bytes(0));
    const Kernel kernel = Kernel::pointwise(KernelKind::adamw, DType::fp32, n, bytes);
    const Call call{Routine::adamw, {n, group.master ? 1 : 0, clears ? 1 : 0}, {plan().gradient_clipping}};
    const std::initializer_list<const Tensor*> reads{&gradient, &master, &group.first, &group.second, &fused_.report};
    if (clears) {
      trace_.compute(kernel, call, reads, {&master, &group.first, &group.second, &weights, &gradient}, "adamw");
    } else {
      trace_.compute(kernel, call, reads, {&master, &group.first, &group.second, &weights}, "adamw");
    }
    if ((stage() == 1 || stage() == 2) && ranks_of(group) > 1) {
      trace_.collective(of_group(CollectiveKind::all_gather, type(), group.group, home.bytes()), {&home}, {&home},
                        "gather weights");
    }
  }

  std::vector<ShardGroup> groups_;
  std::map<const Parameter*, std::size_t> group_of_;
  const std::vector<Group> members_ = groups_of(scenario_);  // by GroupId
  std::vector<Reduction> reductions_;                        // under way
  FusedContext fused_{layers_, [this](const std::vector<Parameter*>& p) { return gradient_of(p); }, 0, 1, {}, {}, 0};
  Tensor host_report_;
};

}  // namespace

void build_plimsoll(const Scenario& scenario, int rank, RankProgram& program) {
  PlimsollJob(scenario, rank, program).run();
}

}  // namespace plimsoll
