// Of what is the backward graph made?  Nodes, one an operation of the forward: where the gradients of its inputs go, what it
// keeps, and how it computes them.  A node is counted by reference, as in PyTorch: what it keeps dies with it.
//
// A step makes a node for each of some ten thousand operations, so nodes are pooled, and the few that have more than three
// inputs or keep more than two tensors have the rest elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "planner/step/autograd/trace.hpp"

namespace plimsoll {

class CheckpointFrame;
class GraphNode;
class GraphNodes;
struct Parameter;

/// Counted reference to a node of the backward graph.
class NodeRef {
 public:
  NodeRef() = default;
  explicit NodeRef(GraphNode* node);
  NodeRef(const NodeRef& other) : NodeRef(other.node_) {}
  NodeRef(NodeRef&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  NodeRef& operator=(NodeRef other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~NodeRef();
  explicit operator bool() const { return node_ != nullptr; }
  GraphNode* operator->() const { return node_; }
  GraphNode& operator*() const { return *node_; }
  GraphNode* get() const { return node_; }

 private:
  GraphNode* node_ = nullptr;
};

/// A tensor kept for backward; or, inside a checkpointed block, the promise to compute it again; or only the name of a
/// weight, whose storage the framework empties and fills behind autograd's back.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(Tensor tensor) : tensor_(std::move(tensor)) {}
  explicit SavedTensor(const Parameter* parameter) : parameter_(parameter) {}
  SavedTensor(std::shared_ptr<CheckpointFrame> frame, std::size_t index) : frame_(std::move(frame)), index_(index) {}

  /// Makes the tensor present until pack(); recomputes the block when it was checkpointed.
  void unpack();
  /// Lets go of what only unpack() made present.
  void pack() {
    if (parameter_ || frame_) tensor_.reset();
  }
  const Tensor& tensor() const { return tensor_; }
  void reset() {
    tensor_.reset();
    parameter_ = nullptr;
    frame_.reset();
  }

 private:
  Tensor tensor_;
  const Parameter* parameter_ = nullptr;
  std::shared_ptr<CheckpointFrame> frame_;
  std::size_t index_ = 0;
};

/// One call of a node's backward: the gradients of its outputs, and those it produces for its inputs.
struct BackwardCall {
  /// The gradients by forward output, up to four.
  struct Gradients {
    GraphNode& node;
    Tensor& operator[](std::size_t output) const;
  };
  Trace& trace;
  GraphNode& node;
  Gradients grads{node};
  std::array<Tensor, 4>& out;  ///< by forward input; empty at first
  /// Gradients of leaves that are no inputs of the node, handed on after those that are, in this order.
  std::vector<std::pair<NodeRef, Tensor>> of_leaves;
  /// What the node kept, unpacked (or computed again) before it runs; none beyond.
  const Tensor& saved(std::size_t index) const;
  /// Lets go of a kept tensor before the node has run to its end.
  void drop(std::size_t index);
  bool wants(std::size_t input) const;
};

/// What computes a node's gradients: a function that lies in the node itself unless it has captured much.
class BackwardFunction {
 public:
  BackwardFunction() = default;
  BackwardFunction(const BackwardFunction&) = delete;
  BackwardFunction& operator=(const BackwardFunction&) = delete;
  ~BackwardFunction() { reset(); }

  template <class Function>
  void set(Function function) {
    if constexpr (sizeof(Function) > capacity) {
      set([held = std::make_unique<Function>(std::move(function))](BackwardCall& call) { (*held)(call); });
    } else {
      static_assert(alignof(Function) <= alignof(std::max_align_t));
      reset();
      ::new (static_cast<void*>(place_.data())) Function(std::move(function));
      call_ = [](void* place, BackwardCall& call) { (*std::launder(static_cast<Function*>(place)))(call); };
      if constexpr (!std::is_trivially_destructible_v<Function>)
        destroy_ = [](void* place) { std::destroy_at(std::launder(static_cast<Function*>(place))); };
    }
  }
  void operator()(BackwardCall& call) { call_(place_.data(), call); }
  void reset() {
    if (destroy_) destroy_(place_.data());
    destroy_ = nullptr;
  }

 private:
  static constexpr std::size_t capacity = 128;
  void (*call_)(void*, BackwardCall&) = nullptr;
  void (*destroy_)(void*) = nullptr;
  alignas(std::max_align_t) std::array<std::byte, capacity> place_;
};

/// A node of the backward graph.
class alignas(64) GraphNode {
 public:
  /// An input of the forward, and as which output of its node it was made.  A gradient wider than the input (a broadcast) is
  /// summed to its shape, one of another type is cast to it.
  struct Input {
    Shape shape;
    std::uint8_t output = 0;
    DType dtype = DType::bf16;
  };
  static constexpr std::size_t most_inputs = 4, most_outputs = 4, most_saved = 10;

  /// The node that made an input; none: no gradient is needed.
  NodeRef& input_node(std::size_t i) { return input_nodes_[i]; }
  Input& input(std::size_t i) { return i < inline_inputs ? inputs_[i] : rest().inputs[i - inline_inputs]; }
  SavedTensor& saved(std::size_t i) { return i < inline_saved ? saved_[i] : rest().saved[i - inline_saved]; }
  /// Gradient of an output, gathered until all have come.
  Tensor& incoming(std::size_t i) { return i == 0 ? incoming_ : rest().incoming[i - 1]; }
  bool has_incoming(std::size_t i) const { return i == 0 || rest_; }

  /// Asks for its memory, which a run touches soon.
  void prefetch() const {
    for (std::size_t at = 0; at < sizeof(GraphNode); at += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(this) + at);
  }

 private:
  friend class NodeRef;
  friend class GraphNodes;
  static constexpr std::size_t inline_inputs = 3, inline_saved = 2;
  struct Rest {
    std::array<Input, most_inputs - inline_inputs> inputs;
    std::array<SavedTensor, most_saved - inline_saved> saved;
    std::array<Tensor, most_outputs - 1> incoming;
  };
  Rest& rest() { return rest_ ? *rest_ : take_rest(); }
  Rest& take_rest();
  void clear();

  // What a walk over the graph reads is one line of the cache; what follows is in the order in which a run comes across it.
  std::array<NodeRef, most_inputs> input_nodes_;
  GraphNodes* pool_ = nullptr;
  std::uint32_t references_ = 0;

 public:
  std::int32_t dependencies = 0;
  std::uint64_t sequence = 0;
  std::uint32_t visit = 0;
  std::int16_t layer = -1;
  std::uint8_t inputs = 0;
  std::uint8_t saved_count = 0;

 private:
  Tensor incoming_;
  std::array<Input, inline_inputs> inputs_;
  std::array<SavedTensor, inline_saved> saved_;
  std::unique_ptr<Rest> rest_;

 public:
  Category category = Category::activations;     ///< of what its backward allocates: as in its forward
  bool compiled = false;                         ///< its backward belongs to compiled code, as its forward
  std::vector<std::function<void()>> pre_hooks;  ///< run when the node becomes current, before its backward
  BackwardFunction backward;
};

/// The nodes of a graph; outlives all references to them.
class GraphNodes {
 public:
  GraphNodes() = default;
  GraphNodes(const GraphNodes&) = delete;
  GraphNodes& operator=(const GraphNodes&) = delete;

  /// A node without inputs.
  NodeRef make() {
    if (free_.empty()) grow();
    GraphNode* node = free_.back();
    free_.pop_back();
    node->pool_ = this;
    return NodeRef(node);
  }

 private:
  friend class NodeRef;
  friend class GraphNode;
  using Block = std::array<GraphNode, 32>;
  void grow();
  void take_back(GraphNode* node);

  std::vector<std::unique_ptr<GraphNode::Rest>> free_rests_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<GraphNode*> free_;
};

inline NodeRef::NodeRef(GraphNode* node) : node_(node) {
  if (node_) ++node_->references_;
}

inline NodeRef::~NodeRef() {
  if (node_ && --node_->references_ == 0) node_->pool_->take_back(node_);
}

inline Tensor& BackwardCall::Gradients::operator[](std::size_t output) const { return node.incoming(output); }

inline void BackwardCall::drop(std::size_t index) { node.saved(index).reset(); }

inline bool BackwardCall::wants(std::size_t input) const {
  return input < node.inputs && static_cast<bool>(node.input_node(input));
}

/// A tensor in the graph: where its gradient goes.
struct Variable : Tensor {
  NodeRef grad_fn;  ///< the node that made it; none: no gradient is needed
  std::uint8_t output_index = 0;
  Parameter* parameter = nullptr;  ///< set for leaves
  bool requires_grad() const { return static_cast<bool>(grad_fn); }

  Variable() = default;
  Variable(Tensor tensor) : Tensor(std::move(tensor)) {}  // NOLINT: a tensor is a variable without a graph
  /// The data without its history.
  const Tensor& data() const { return *this; }
};

}  // namespace plimsoll
