// ZeRO stage 3 of DeepSpeed: the job of one rank (planner/step/engines/deepspeed.hpp).
//
// Hooks are identity nodes of the graph: one on a module's output, whose backward is the module's pre-backward hook, and one
// on its positional input, if that needs a gradient, whose backward is the post-backward hook.  Modules without the second
// (the top module, the body, attention called by keyword, the embedding) are left at the end of backward.
// Source: DeepSpeed 0.19.8, checked against allocator traces and measured phases.
#include <algorithm>

#include "planner/step/autograd/ops.hpp"
#include "planner/step/engines/deepspeed.hpp"
#include "planner/step/engines/deepspeed_stage3_build.hpp"
#include "planner/step/engines/deepspeed_stage3_optimizer.hpp"
#include "planner/step/engines/torch_job.hpp"

namespace plimsoll {

namespace {

using zero3::Coordinator;
using zero3::Gradients;
using zero3::ShardedParameters;

/// The hooks on modules.
class Zero3Hooks final : public ModuleHooks {
 public:
  Zero3Hooks(Autograd& autograd, Coordinator& coordinator, Gradients& gradients, const TorchModel& model)
      : autograd_(autograd), coordinator_(coordinator), gradients_(gradients), top_(model.outermost()) {
    inside_leaf_.resize(model.modules.size());
    for (const Module* module : model.modules) {
      if (module->zero3_leaf || inside_leaf_[static_cast<std::size_t>(module->id)]) mark_inside(*module);
    }
  }

  void before_forward(Module& module, Variable& input) override {
    if (inside_leaf(module)) return;
    if (&module == &top_) coordinator_.begin_forward();
    hook("before forward");
    // What a recomputation fetches belongs to the module that backward entered last.
    coordinator_.enter(module, autograd_.recomputing && !entered_.empty() ? entered_.back() : nullptr);
    if (!module.keyword_input) wrap(input, [this, &module] { after_backward(module); });
  }

  void after_forward(Module& module, Variable& output) override {
    if (inside_leaf(module)) return;
    hook("after forward");
    coordinator_.leave(module, false);
    wrap(output, [this, &module] { before_backward(module); });
  }

  /// The end of backward: modules whose post-backward hook did not run are left, the latest first.
  void leave_rest() {
    while (!entered_.empty()) coordinator_.leave(*pop(entered_.size() - 1), true);
  }

  bool inside_leaf(const Module& module) const { return inside_leaf_[static_cast<std::size_t>(module.id)]; }

 private:
  void mark_inside(const Module& module) {
    for (const Module* child : module.children) {
      inside_leaf_[static_cast<std::size_t>(child->id)] = true;
      mark_inside(*child);
    }
  }

  void hook(const char* role) { autograd_.trace.host_work(HostWorkKind::zero3_module_hook, 1, role); }

  template <class Action>
  void wrap(Variable& variable, Action action) {
    NodeRef node = autograd_.make_node({&variable}, [action](BackwardCall& call) {
      action();
      ops::pass_through(call);
    });
    if (!node) return;
    variable.grad_fn = std::move(node);
    variable.output_index = 0;
  }

  void before_backward(const Module& module) {
    hook("before backward");
    entered_.push_back(&module);
    coordinator_.enter(module, nullptr);
  }

  void after_backward(const Module& module) {
    hook("after backward");
    if (module.zero3_leaf) gradients_.leaf_ready(coordinator_.fetched_by(module));
    for (std::size_t i = entered_.size(); i-- > 0;) {
      if (entered_[i] != &module) continue;
      pop(i);
      break;
    }
    coordinator_.leave(module, true);
  }

  const Module* pop(std::size_t i) {
    const Module* module = entered_[i];
    entered_.erase(entered_.begin() + static_cast<std::ptrdiff_t>(i));
    return module;
  }

  Autograd& autograd_;
  Coordinator& coordinator_;
  Gradients& gradients_;
  const Module& top_;
  std::vector<bool> inside_leaf_;
  std::vector<const Module*> entered_;  // before backward, and not yet left
};

/// Does autograd keep a weight's storage?  It keeps a parameter that an operator takes as it is by itself, and the engine
/// empties and fills it behind autograd's back; but fused experts, and linear weights outside of the engine's own linear,
/// enter as transposed views, whose storage stays.
bool is_pinned(const Parameter& parameter, bool engine_linear) {
  if (parameter.adapter) return !engine_linear;
  const Role role = parameter.decl ? parameter.decl->role : Role::other;
  switch (role) {
    case Role::experts_gate_up:
    case Role::experts_down:
    case Role::other: return true;
    case Role::final_norm:
    case Role::input_norm:
    case Role::post_attention_norm:
    case Role::q_norm:
    case Role::k_norm:
    case Role::q_a_norm:
    case Role::kv_a_norm:
    case Role::attention_norm:
    case Role::index_k_norm: return false;
    default: return !engine_linear;
  }
}

TorchModel& with_leaves(TorchModel& model, const Plan& plan) {
  zero3::mark_leaves_by_granularity(model, plan.zero.stage3_module_granularity_threshold);
  return model;
}

class Zero3Job final : public TorchJob {
 public:
  Zero3Job(const Scenario& scenario, int rank, RankProgram& program)
      : TorchJob(scenario, rank, program),
        parameters_(trace_, plan(), rank, *model_),
        coordinator_(parameters_, with_leaves(*model_, plan()), plan().zero),
        gradients_(parameters_, plan()),
        optimizer_(parameters_, gradients_, scenario, rank, model_->parameters_in_order),
        builder_(trace_, scenario, parameters_),
        hooks_(autograd_, coordinator_, gradients_, *model_) {
    layers_.hooks = &hooks_;
    // zero.Init replaces F.linear, entered around the model's construction or given the finished model by the engine.
    layers_.zero3_linear = plan().zero.memory_efficient_linear;
    std::vector<bool> in_leaf(model_->parameters_in_order.size());
    for (const Module* module : model_->modules) {
      if (!module->zero3_leaf) continue;
      leaves_.push_back(module);
      for (const int index : coordinator_.fetched_by(*module)) in_leaf[static_cast<std::size_t>(index)] = true;
    }
    for (Parameter& parameter : model_->parameters_in_order) {
      // A compiled program takes each weight as an input and keeps it by name.
      const bool compiled = plan().compile && parameter.decl && parameter.decl->layer >= 0;
      parameter.pinned_by_autograd = !compiled && is_pinned(parameter, layers_.zero3_linear);
      const bool leaf = in_leaf[static_cast<std::size_t>(parameter.index)];
      parameter.on_gradient = [this, leaf](Parameter& p, Tensor gradient) {
        leaf ? keep_gradient(trace_, p, std::move(gradient)) : gradients_.ready(p, std::move(gradient));
      };
    }
  }

 private:
  void construct() override {
    trace_.begin_phase("model_built");
    builder_.build();
    trace_.begin_phase("initialized");
    builder_.shard();
    optimizer_.initialize();
  }

  // In the first step the first micro-batch records the order of visits and the second makes the small parameters whole.
  std::int64_t first_alike() const override { return step_ == 0 ? 2 : 1; }

  void before_forward(bool first_micro_batch) override { first_micro_batch_ = first_micro_batch; }

  void before_backward(bool boundary) override { gradients_.begin_micro_batch(first_micro_batch_, boundary); }

  void after_backward(bool) override {
    Scoped issuer(trace_.issuer, Issuer::backward);
    for (const Module* leaf : leaves_) {
      // A leaf whose input needs no gradient has no hook of its own at its backward's end.
      const std::vector<int>& held = coordinator_.fetched_by(*leaf);
      const bool waiting = std::any_of(
          held.begin(), held.end(), [&](int index) { return static_cast<bool>(parameters_[index].parameter->grad); });
      if (waiting) gradients_.leaf_ready(held);
    }
    gradients_.finish();
    hooks_.leave_rest();
  }

  void optimizer_step() override {
    coordinator_.release_all();
    optimizer_.step();
  }

  void save() override {
    Scoped category(trace_.category, Category::temporaries);
    if (plan().zero.stage3_gather_16bit_weights_on_model_save) save_16bit();
    save_checkpoint();
  }

  // Before saving all parameters are sharded; the persistent ones are gathered again in the end.  Module by module, the
  // parameters are gathered on every rank, and rank 0 collects the whole model in host memory.
  void save_16bit() {
    if (plan().moe.implementation == MoeImplementation::autoep) return;  // refused by the engine
    trace_.begin_phase("save_16bit");
    forget_last_step();
    coordinator_.release_all();
    std::vector<Tensor> collected;
    std::vector<bool> seen(model_->parameters_in_order.size());
    for (const Module* module : model_->modules) {
      for (const Parameter* parameter : module->parameters) parameters_.gather_now({parameter->index});
      for (const Parameter* parameter : module->parameters) {
        if (rank_ == 0 && !seen[static_cast<std::size_t>(parameter->index)]) {
          collected.push_back(
              trace_.host_empty(parameter->shape, parameter->dtype, parameter->name, Category::temporaries, false));
          trace_.record(HostCopy{false, false, collected.back().bytes()}, Lane::compute, {&parameter->data},
                        {&collected.back()}, "save parameter");
        }
        seen[static_cast<std::size_t>(parameter->index)] = true;
        parameters_.release(parameter->index);
      }
    }
    parameters_.gather_persistent();
  }

  // One storage at a time passes through pageable host memory; what is there already is written where it stands.
  void save_checkpoint() {
    trace_.begin_phase("save_checkpoint");
    forget_last_step();
    coordinator_.release_all();
    for (const zero3::SubGroup& group : optimizer_.sub_groups()) {
      for (const Tensor* tensor : {&group.master, &group.states.front().first, &group.states.front().second}) {
        const HostWork writing{HostWorkKind::python, 1, tensor->bytes()};
        if (group.on_host) {
          trace_.record(writing, Lane::host, {tensor}, {}, "save optimizer state");
          continue;
        }
        const Tensor copy = trace_.host_empty(tensor->shape, tensor->dtype, "storage on its way to a file",
                                              Category::temporaries, false);
        trace_.record(HostCopy{false, false, copy.bytes()}, Lane::compute, {tensor}, {&copy}, "save optimizer state");
        trace_.record(writing, Lane::host, {&copy}, {}, "save optimizer state");
      }
    }
    parameters_.gather_persistent();
  }

  ShardedParameters parameters_;
  Coordinator coordinator_;
  Gradients gradients_;
  zero3::Optimizer optimizer_;
  zero3::ModelBuilder builder_;
  Zero3Hooks hooks_;
  std::vector<const Module*> leaves_;
  bool first_micro_batch_ = true;
};

}  // namespace

void build_deepspeed_zero3(const Scenario& scenario, int rank, RankProgram& program) {
  Zero3Job(scenario, rank, program).run();
}

}  // namespace plimsoll
