// In which order does backward run, and when does each gradient and each kept tensor die?  PyTorch's rules:
//   - the ready node with the highest sequence number (the last one created in forward) runs first, leaves before all;
//   - after a node has run: what it was given dies, then what it kept, then its results are handed on;
//   - two gradients of one tensor are summed in place only if the earlier one owns its storage alone and is no view;
//   - a gradient wider than its input (a broadcast) is reduced after the node has computed all of its results.
// Source: the allocator traces of real steps, event by event.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "planner/spec/model.hpp"
#include "planner/step/autograd/graph.hpp"

namespace plimsoll {

/// A weight of the model on this rank: its current full data, its gradient, its place in the graph.
struct Parameter {
  const ParameterDecl* decl = nullptr;
  const char* name = "";
  int index = 0;  ///< position in construction order
  int group = 0;  ///< which mesh: 0 dense, 1 expert
  Shape shape;    ///< of what this rank computes with (experts: the local ones)
  DType dtype = DType::bf16;
  bool trainable = true;
  bool pinned_by_autograd = true;  ///< what keeps it for backward holds its storage, not only its name
  bool adapter = false;            ///< of a low-rank adapter, made when the model is there
  bool quantized = false;          ///< frozen, in 4 bits: `data` is packed, and products work on a 16-bit copy
  Tensor data;                     ///< full data now; undefined while it is sharded away
  Tensor grad;
  /// Called with each finished gradient; default: keep it, add to an earlier one in place.
  std::function<void(Parameter&, Tensor)> on_gradient;
  NodeRef accumulator;  ///< AccumulateGrad of the current graph

  std::int64_t numel() const { return shape.numel(); }
};

/// What becomes of a finished gradient unless the parameter says otherwise: kept, or added to an earlier one in place.
void keep_gradient(Trace& trace, Parameter& parameter, Tensor grad);

/// What kernels need to know of the device.
struct DeviceTraits {
  int multiprocessors = 132;                     ///< reductions size their workspaces by it
  Bytes gemm_workspace{std::int64_t{32} << 20};  ///< cuBLAS, per host thread that runs GEMMs: 32 MiB on Hopper
};

/// The graph builder and the backward engine on one trace.
class Autograd {
  GraphNodes nodes_;  // dies last: all that follows may refer to nodes

 public:
  Autograd(Trace& trace, DeviceTraits device) : trace(trace), device(device) {}
  Trace& trace;
  const DeviceTraits device;
  bool enabled = true;  ///< false: nothing is kept (no_grad)

  /// Autocast to bf16: linears work on bf16 copies of fp32 weights, cached until the region ends.
  bool autocast = false;
  std::vector<std::pair<Parameter*, Variable>> autocast_cache;

  /// A node for an op with these inputs; null if none of them needs a gradient.
  template <class Function>
  NodeRef make_node(std::initializer_list<const Variable*> inputs, Function backward) {
    NodeRef node = make_node(inputs);
    if (node) node->backward.set(std::move(backward));
    return node;
  }
  /// A node without inputs: a leaf of the graph.
  NodeRef make_leaf() { return nodes_.make(); }
  /// Keeps a tensor for the node's backward, in order of its index.
  void save(const NodeRef& node, const Tensor& tensor);
  void save(const NodeRef& node, const Variable& variable);
  /// The parameter as a graph leaf (its data must be present).
  Variable leaf(Parameter& parameter);

  /// The tensor as a graph leaf that needs a gradient, no parameter.  Both it and its gradient live as long as the loss's
  /// graph: until held_by_loss is cleared.
  Variable require_gradient(const Tensor& tensor);
  std::vector<Tensor> held_by_loss;

  /// cuBLAS takes its workspace at the first product of each host thread (forward's, autograd's) and keeps it.
  void take_gemm_workspace();

  /// Runs backward from `loss`; its own gradient is a scalar.
  void backward(Variable loss);
  /// Runs at the end of the running backward, after all nodes.
  std::vector<std::function<void()>> final_callbacks;

  /// Runs `block` without keeping its inner tensors; they are computed again when backward needs the first of them, and the
  /// second run stops as soon as the last kept one is there.  `block` may read only what it captured.
  /// @param whole the second run cannot stop early: the block is compiled code
  Variable checkpoint(const std::function<Variable()>& block, bool whole = false);
  /// The block being recorded as checkpointed (null outside); used by SavedTensor.
  std::shared_ptr<CheckpointFrame> frame;
  bool recomputing = false;

 private:
  friend class CheckpointFrame;
  NodeRef make_node(std::initializer_list<const Variable*> inputs);
  void save(const NodeRef& node, const Tensor& tensor, const Parameter* by_name);
  void count_dependencies(GraphNode* root);
  void run(GraphNode& node);
  void hand_on(NodeRef node, std::size_t output, Tensor grad);
  void accumulate(Tensor& old, Tensor grad);
  void fit_to_input(Tensor& grad, const Shape& shape, DType dtype);

  std::array<Tensor, 2> gemm_workspaces_;  // of the forward's and of autograd's thread
  std::uint64_t sequence_ = 0;
  std::uint32_t visit_ = 0;
  std::vector<NodeRef> ready_;  // a heap by sequence
  std::vector<GraphNode*> to_count_;
  std::array<Tensor, GraphNode::most_inputs> results_;  // of the node that runs
};

/// What a sum over the rows of [rows, columns] stages when blocks share a column: partial sums of 4 c n w v bytes and one
/// 4-byte counter per block column; zero for small inputs.  Source: measured reductions and the kernel's block arithmetic.
struct RowSumWorkspace {
  Bytes partial_sums;
  Bytes counters;
};
RowSumWorkspace row_sum_workspace(std::int64_t rows, std::int64_t columns, int multiprocessors);

}  // namespace plimsoll
