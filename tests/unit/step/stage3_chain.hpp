// A chain of modules with one parameter each, whose hooks a test calls itself: what ZeRO stage 3 gathers and keeps can then be
// counted by hand.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "planner/step/engines/deepspeed_stage3_coordinator.hpp"

namespace plimsoll {

/// Modules m0, m1, ... below a top module, m_i with a parameter of sizes[i] elements (none if 0).
class Stage3Chain {
 public:
  explicit Stage3Chain(const std::vector<std::int64_t>& sizes, Plan plan = two_ranks()) : plan_(std::move(plan)) {
    add(model_);
    for (const std::int64_t size : sizes) {
      Module& module = modules_.emplace_back();
      add(module);
      model_.children.push_back(&module);
      if (size == 0) continue;
      decls_.push_back({"p" + std::to_string(decls_.size()), Role::q, -1, {size}, size, false, true});
      Parameter& parameter = model_.parameters_in_order.emplace_back();
      parameter.decl = &decls_.back();
      parameter.name = decls_.back().name.c_str();
      parameter.index = static_cast<int>(decls_.size()) - 1;
      parameter.shape = {{size}};
      module.parameters.push_back(&parameter);
    }
  }

  /// Two ranks; nothing persistent; no prefetch and no reuse unless a test asks for them.
  static Plan two_ranks() {
    Plan plan;
    plan.world_size = 2;
    plan.zero.stage = 3;
    plan.zero.overlap_comm = true;
    plan.zero.stage3_param_persistence_threshold = 0;
    plan.zero.stage3_prefetch_bucket_size = 0;
    plan.zero.stage3_max_reuse_distance = 0;
    return plan;
  }

  /// After the last change of modules and plan.
  void start(bool on_host = false) {
    parameters_ = std::make_unique<zero3::ShardedParameters>(trace_, plan_, 0, model_);
    for (zero3::ShardedParameter& sharded : parameters_->all()) {
      const Shape shape{{sharded.part}};
      sharded.on_host = on_host;
      sharded.shard = on_host ? trace_.host_empty(shape, DType::bf16, "shard", Category::parameters, true)
                              : trace_.empty(shape, DType::bf16, "shard", Category::parameters);
    }
    coordinator_ = std::make_unique<zero3::Coordinator>(*parameters_, model_, plan_.zero);
  }

  Plan& plan() { return plan_; }
  TorchModel& model() { return model_; }
  Module& module(std::size_t i) { return modules_[i]; }
  zero3::ShardedParameters& parameters() { return *parameters_; }
  zero3::Coordinator& coordinator() { return *coordinator_; }
  Trace& trace() { return trace_; }
  const RankProgram& program() const { return program_; }

  void visit(std::size_t i) {
    coordinator_->enter(modules_[i]);
    coordinator_->leave(modules_[i]);
  }
  /// Forward through all modules, then backward.
  void step() {
    coordinator_->begin_forward();
    for (std::size_t i = 0; i < modules_.size(); ++i) visit(i);
    for (std::size_t i = modules_.size(); i-- > 0;) visit(i);
  }

  /// Elements of the gathers since `first`, in order.
  std::vector<std::int64_t> gathered(OpId first = 0) const {
    std::vector<std::int64_t> result;
    for (OpId id = first; id < program_.ops.size(); ++id) {
      if (const auto* c = std::get_if<Collective>(&program_.ops[id].action)) result.push_back(c->full_size.count / 2);
    }
    return result;
  }
  /// Names of what is allocated (+) and freed (-) since `first`, without the shards.
  std::vector<std::string> events(OpId first = 0) const {
    std::vector<std::string> result;
    for (OpId id = first; id < program_.ops.size(); ++id) {
      const auto* alloc = std::get_if<Alloc>(&program_.ops[id].action);
      const auto* free = std::get_if<Free>(&program_.ops[id].action);
      if (!alloc && !free) continue;
      const BufferDecl& buffer = program_.buffers[alloc ? alloc->buffer : free->buffer];
      if (std::string(buffer.name) == "shard") continue;
      result.push_back((alloc ? "+" : "-") + std::string(buffer.name) + " " + std::to_string(buffer.size.count / 2));
    }
    return result;
  }
  bool whole(int parameter) { return (*parameters_)[parameter].presence == zero3::Presence::available; }

 private:
  void add(Module& module) {
    module.id = static_cast<int>(model_.modules.size());
    model_.modules.push_back(&module);
  }

  Plan plan_;
  RankProgram program_;
  Trace trace_{program_};
  std::deque<ParameterDecl> decls_;
  TorchModel model_;
  std::deque<Module> modules_;
  std::unique_ptr<zero3::ShardedParameters> parameters_;
  std::unique_ptr<zero3::Coordinator> coordinator_;
};

}  // namespace plimsoll
