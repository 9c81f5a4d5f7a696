// The backward engine and checkpointing (planner/step/autograd/autograd.hpp).
#include "planner/step/autograd/autograd.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "planner/base/give_up.hpp"

namespace plimsoll {

/// A checkpointed block: how to run it again, and what the second run has kept so far.
class CheckpointFrame {
 public:
  struct Stop {};

  CheckpointFrame(Autograd& autograd, std::function<Variable()> block, bool whole)
      : autograd_(autograd),
        block_(std::move(block)),
        whole_(whole),
        autocast_(autograd.autocast),
        layer_(autograd.trace.layer) {}

  std::size_t promise() { return promised_++; }

  /// Called for each kept tensor of the second run; ends it after the last one.
  /// @param parameter it is this one, kept by name: the storage is not held; null: none
  void keep(const Tensor& tensor, const Parameter* parameter) {
    recomputed_.push_back({parameter ? Tensor() : tensor, parameter});
    if (recomputed_.size() == promised_ && !whole_) throw Stop{};
  }

  Tensor take(const std::shared_ptr<CheckpointFrame>& self, std::size_t index) {
    if (!done_) recompute(self);
    const Kept kept = std::exchange(recomputed_[index], {});
    return kept.parameter ? kept.parameter->data : kept.tensor;
  }

 private:
  void recompute(const std::shared_ptr<CheckpointFrame>& self) {
    done_ = true;
    recomputed_.reserve(promised_);
    Scoped recomputing(autograd_.recomputing, true);
    Scoped frame(autograd_.frame, self);
    Scoped enabled(autograd_.enabled, true);
    Scoped autocast(autograd_.autocast, autocast_);
    Scoped layer(autograd_.trace.layer, layer_);
    Scoped cache(autograd_.autocast_cache, std::vector<std::pair<Parameter*, Variable>>{});
    try {
      block_();
    } catch (const Stop&) {  // every kept tensor is there: the rest of the block is not needed
    }
  }

  Autograd& autograd_;
  std::function<Variable()> block_;
  bool whole_;
  bool autocast_;
  std::int16_t layer_;
  std::size_t promised_ = 0;
  bool done_ = false;
  struct Kept {
    Tensor tensor;
    const Parameter* parameter = nullptr;
  };
  std::vector<Kept> recomputed_;
};

void SavedTensor::unpack() {
  if (parameter_) {
    tensor_ = parameter_->data;
  } else if (frame_) {
    tensor_ = frame_->take(frame_, index_);
  }
}

NodeRef Autograd::make_node(std::initializer_list<const Variable*> inputs) {
  if (!enabled || std::none_of(inputs.begin(), inputs.end(), [](const Variable* v) { return v->requires_grad(); }))
    return {};
  NodeRef node = nodes_.make();
  node->sequence = ++sequence_;
  node->layer = trace.layer;
  node->category = trace.category;
  node->compiled = trace.compiled;
  for (const Variable* variable : inputs) {
    node->input_node(node->inputs) = variable->grad_fn;
    GraphNode::Input& input = node->input(node->inputs++);
    input.shape = variable->shape;
    input.output = variable->output_index;
    input.dtype = variable->dtype;
  }
  return node;
}

void Autograd::save(const NodeRef& node, const Tensor& tensor) { save(node, tensor, nullptr); }

void Autograd::save(const NodeRef& node, const Tensor& tensor, const Parameter* by_name) {
  if (!node) return;
  SavedTensor& slot = node->saved(node->saved_count++);
  if (!frame) {
    slot = SavedTensor(tensor);
  } else if (recomputing) {
    // The second run has a graph of its own, which lives while something names its results.
    slot = by_name ? SavedTensor(by_name) : SavedTensor(tensor);
    frame->keep(tensor, by_name);
  } else {
    slot = SavedTensor(frame, frame->promise());
  }
}

void Autograd::save(const NodeRef& node, const Variable& variable) {
  const Parameter* parameter = variable.parameter;
  const bool by_name = parameter && !parameter->pinned_by_autograd;
  if (node && by_name && !frame) {
    node->saved(node->saved_count++) = SavedTensor(parameter);
  } else {
    // A checkpoint keeps a detached alias of what needs a gradient, which holds the storage, and a frozen parameter as it is.
    save(node, variable.data(), by_name && !parameter->trainable ? parameter : nullptr);
  }
}

Variable Autograd::leaf(Parameter& parameter) {
  CHECK(parameter.data, std::string(parameter.name) + " is used while its data is not on this rank");
  Variable variable{parameter.data};
  variable.parameter = &parameter;
  if (!parameter.trainable || !enabled) return variable;
  if (!parameter.accumulator) {
    parameter.accumulator = make_leaf();
    GraphNode& node = *parameter.accumulator;
    node.sequence = std::numeric_limits<std::uint64_t>::max();
    node.category = Category::gradients;
    node.layer = static_cast<std::int16_t>(parameter.decl ? parameter.decl->layer : -1);
    node.backward.set([this, &parameter](BackwardCall& call) {
      Tensor grad = std::move(call.grads[0]);
      trace.program().buffers[grad.buffer()].category = Category::gradients;  // whatever op made it
      if (parameter.on_gradient) {
        parameter.on_gradient(parameter, std::move(grad));
      } else {
        keep_gradient(trace, parameter, std::move(grad));
      }
    });
  }
  variable.grad_fn = parameter.accumulator;
  return variable;
}

Variable Autograd::require_gradient(const Tensor& tensor) {
  Variable variable{tensor};
  if (!enabled) return variable;
  variable.grad_fn = make_leaf();
  GraphNode& node = *variable.grad_fn;
  node.sequence = std::numeric_limits<std::uint64_t>::max();
  node.layer = trace.layer;
  node.category = trace.category;
  node.backward.set([this, tensor](BackwardCall& call) {
    held_by_loss.push_back(tensor);
    held_by_loss.push_back(std::move(call.grads[0]));
  });
  return variable;
}

void keep_gradient(Trace& trace, Parameter& parameter, Tensor grad) {
  if (!parameter.grad) {
    parameter.grad = std::move(grad);
    return;
  }
  const Kernel add = Kernel::pointwise(KernelKind::vectorized, grad.dtype, grad.numel(), grad.bytes() * 3);
  trace.compute(add, {&parameter.grad, &grad}, {&parameter.grad}, "accumulate gradient");
}

void Autograd::take_gemm_workspace() {
  Tensor& workspace = gemm_workspaces_[trace.issuer == Issuer::backward ? 1 : 0];
  if (workspace) return;
  Scoped pool(trace.lane, Lane::compute);
  workspace = trace.empty({{device.gemm_workspace.count}}, DType::int8, "cuBLAS workspace", Category::workspace);
}

Variable Autograd::checkpoint(const std::function<Variable()>& block, bool whole) {
  auto checkpointed = std::make_shared<CheckpointFrame>(*this, block, whole);
  Scoped current(frame, checkpointed);
  Scoped first(recomputing, false);
  return block();
}

void Autograd::count_dependencies(GraphNode* root) {
  ++visit_;
  to_count_.push_back(root);
  root->visit = visit_;
  root->dependencies = 0;
  while (!to_count_.empty()) {
    GraphNode* node = to_count_.back();
    to_count_.pop_back();
    for (std::size_t i = 0; i < node->inputs; ++i) {
      GraphNode* next = node->input_node(i).get();
      if (!next) continue;
      if (next->visit != visit_) {
        next->visit = visit_;
        next->dependencies = 0;
        to_count_.push_back(next);
      }
      ++next->dependencies;
    }
  }
}

namespace {
bool runs_later(const NodeRef& a, const NodeRef& b) { return a->sequence < b->sequence; }
}  // namespace

void Autograd::backward(Variable loss) {
  Scoped issuer(trace.issuer, Issuer::backward);
  Scoped off(enabled, false);
  NodeRef root = loss.grad_fn;
  CHECK(root, "backward needs a loss that depends on a parameter");
  count_dependencies(root.get());
  root->incoming(loss.output_index) = trace.empty({}, DType::fp32, "gradient of the loss", Category::logits_and_loss);
  loss = {};
  ready_.push_back(std::move(root));
  while (!ready_.empty()) {
    give_up_if_unwanted();
    std::pop_heap(ready_.begin(), ready_.end(), runs_later);
    const NodeRef node = std::move(ready_.back());
    ready_.pop_back();
    run(*node);
  }
  for (auto& callback : std::exchange(final_callbacks, {})) callback();
}

void Autograd::run(GraphNode& node) {
  for (std::size_t i = 0; i < node.inputs; ++i) {
    if (node.input_node(i)) node.input_node(i)->prefetch();
  }
  Scoped layer(trace.layer, node.layer);
  Scoped category(trace.category, node.category);
  for (auto& hook : node.pre_hooks) hook();
  Scoped compiled(trace.compiled, node.compiled);
  BackwardCall call{trace, node, {node}, results_, {}};
  for (std::size_t i = 0; i < node.saved_count; ++i) node.saved(i).unpack();
  node.backward(call);
  for (std::size_t i = 0; i < node.inputs; ++i) {
    if (!node.input_node(i)) results_[i].reset();  // a kernel made it beside those that are wanted
  }
  for (std::size_t i = node.saved_count; i-- > 0;) node.saved(i).pack();
  for (std::size_t i = 0; i < node.inputs; ++i) {
    if (results_[i]) fit_to_input(results_[i], node.input(i).shape, node.input(i).dtype);
  }
  for (std::size_t i = 0; i < GraphNode::most_outputs && node.has_incoming(i); ++i) node.incoming(i).reset();
  for (std::size_t i = 0; i < node.saved_count; ++i) node.saved(i).reset();
  for (std::size_t i = 0; i < node.inputs; ++i) {
    if (node.input_node(i)) hand_on(std::move(node.input_node(i)), node.input(i).output, std::move(results_[i]));
  }
  for (auto& [leaf, grad] : call.of_leaves) {
    leaf->dependencies = 1;  // of no other node
    hand_on(std::move(leaf), 0, std::move(grad));
  }
  for (std::size_t i = results_.size(); i-- > 0;) results_[i].reset();
}

// Gives a gradient to the node that made the input, and lets go of that node.
void Autograd::hand_on(NodeRef node, std::size_t output, Tensor grad) {
  if (grad) accumulate(node->incoming(output), std::move(grad));
  if (--node->dependencies > 0) return;
  ready_.push_back(std::move(node));
  std::push_heap(ready_.begin(), ready_.end(), runs_later);
}

void Autograd::accumulate(Tensor& old, Tensor grad) {
  if (!old) {
    old = std::move(grad);
    return;
  }
  // Addends in different memory orders are walked element by element.
  const KernelKind kind = old.permuted == grad.permuted ? KernelKind::vectorized : KernelKind::strided_accumulate;
  const Kernel add = Kernel::pointwise(kind, old.dtype, old.numel(), old.bytes() * 3);
  const Call sum_call{Routine::add, {old.numel()}, {}};
  if (old.storage.references() == 1 && !old.view) {
    trace.compute(add, sum_call, {&old, &grad}, {&old}, "sum of gradients");
    return;
  }
  Tensor sum = trace.empty(old.shape, old.dtype, "sum of gradients");
  trace.compute(add, sum_call, {&old, &grad}, {&sum}, "sum of gradients");
  old = std::move(sum);
}

void Autograd::fit_to_input(Tensor& grad, const Shape& shape, DType dtype) {
  if (shape.numel() >= grad.numel() && grad.dtype == dtype) return;
  Tensor result = grad;
  if (shape.numel() < grad.numel()) {
    const bool over_rows = shape.last().size == grad.shape.last().size;
    const std::int64_t columns = shape.numel();
    result = trace.empty(shape, grad.dtype, over_rows ? "sum over rows" : "sum over columns");
    Kernel sum = Kernel::pointwise(over_rows ? KernelKind::reduce_rows : KernelKind::reduce_last, grad.dtype,
                                   grad.numel(), grad.bytes() + result.bytes());
    if (!over_rows) sum.n = grad.shape.last().size;  // rows of this length
    Tensor staging, counters;
    if (over_rows) {
      const RowSumWorkspace need = row_sum_workspace(grad.numel() / columns, columns, device.multiprocessors);
      if (need.partial_sums.count > 0) {
        staging = trace.empty({{need.partial_sums.count}}, DType::int8, "partial sums", Category::workspace);
        counters = trace.empty({{need.counters.count}}, DType::int8, "partial sum counters", Category::workspace);
      }
    }
    trace.compute(sum, {&grad}, {&result, &staging}, "sum of a broadcast gradient");
    counters = {};
  }
  if (result.dtype != dtype) {
    Tensor cast = trace.empty(result.shape, dtype, "cast gradient");
    const bool up = size_of(dtype) > size_of(result.dtype);
    const Kernel kernel = Kernel::pointwise(up ? KernelKind::upcast : KernelKind::vectorized, dtype, cast.numel(),
                                            cast.bytes() + result.bytes());
    trace.compute(kernel, {&result}, {&cast}, "cast gradient");
    result = std::move(cast);
  }
  grad = std::move(result);
}

RowSumWorkspace row_sum_workspace(std::int64_t rows, std::int64_t columns, int multiprocessors) {
  const auto pow2 = [](std::int64_t x) {
    return x < 1 ? std::int64_t{1} : static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(x)));
  };
  const std::int64_t vector = columns % 4 == 0 ? 4 : 1;
  const std::int64_t threads = 512 / vector;
  const std::int64_t across = columns / vector;
  std::int64_t width = std::min<std::int64_t>(pow2(across), 32);
  const std::int64_t tall = std::min(pow2(rows), threads / width);
  width = std::min(pow2(across), threads / tall);
  const std::int64_t steps = ceil_div(rows, tall);
  const std::int64_t grid = ceil_div(across, width);
  const std::int64_t target = multiprocessors * (2048 / (width * tall));
  if (steps < 256 || grid > target) return {};
  const std::int64_t split = std::max(std::min(ceil_div(target, grid), ceil_div(steps, 16)), ceil_div(steps, 256));
  return {Bytes(4 * columns * split * width * vector), Bytes(4 * grid)};
}

}  // namespace plimsoll
