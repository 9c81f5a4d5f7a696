// What dies with a node, and in which order (planner/step/autograd/graph.hpp).
#include "planner/step/autograd/graph.hpp"

namespace plimsoll {

const Tensor& BackwardCall::saved(std::size_t index) const {
  static const Tensor none;
  return index < node.saved_count ? node.saved(index).tensor() : none;
}

GraphNode::Rest& GraphNode::take_rest() {
  if (pool_->free_rests_.empty()) pool_->free_rests_.push_back(std::make_unique<Rest>());
  rest_ = std::move(pool_->free_rests_.back());
  pool_->free_rests_.pop_back();
  return *rest_;
}

// A node that has not run: what its function captured goes first, then gradients that came, what it kept, and at last the
// nodes of its inputs, each the latest first.
void GraphNode::clear() {
  backward.reset();
  pre_hooks.clear();
  for (std::size_t i = rest_ ? most_outputs : 1; i-- > 0;) incoming(i).reset();
  for (std::size_t i = saved_count; i-- > 0;) saved(i).reset();
  for (std::size_t i = inputs; i-- > 0;) input_node(i) = {};
  if (rest_) pool_->free_rests_.push_back(std::move(rest_));
  sequence = 0;
  layer = -1;
  category = Category::activations;
  compiled = false;
  inputs = 0;
  saved_count = 0;
}

void GraphNodes::grow() {
  blocks_.push_back(std::make_unique_for_overwrite<Block>());
  for (auto node = blocks_.back()->rbegin(); node != blocks_.back()->rend(); ++node) free_.push_back(&*node);
}

void GraphNodes::take_back(GraphNode* node) {
  node->clear();
  free_.push_back(node);
}

}  // namespace plimsoll
