// The loss of a causal language model and the load-balancing loss of its routers (planner/step/layers/layers.hpp).
//
//   full           logits 2 N V, their fp32 copy 4 N V, log-softmax 4 N V (kept); backward two more of 4 N V
//   chunks of t    each chunk of tokens is checkpointed: forward 10 t V at a time and nothing kept but the hidden states;
//                  backward makes a chunk's logits again and sums its gradients of the head and of the hidden states
// Source: loss_utils.py and load_balancing_loss_func of transformers 5.17, and allocator traces of real steps.  Chunks are
// assumed to be written plainly: a loop over slices of the final hidden states, each under torch.utils.checkpoint.
#include <algorithm>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/layers.hpp"

namespace plimsoll {

namespace {

// Labels padded by one instead of shifting the logits, and what the loss reads of them: with several sequences a copy.
struct Labels {
  Tensor padded, shifted;
};

Labels shifted_labels(LayerContext& c) {
  const Tensor padded = c.trace.empty({{c.tokens().size + c.batch()}}, DType::int64, "padded labels");
  return {padded, c.batch() > 1 ? c.trace.empty({c.tokens()}, DType::int64, "shifted labels") : padded};
}

// logits -> cross-entropy; `given`: the labels, made here if there are none.
Variable cross_entropy(LayerContext& c, const Variable& bf16_logits, const Tensor& given) {
  Autograd& g = c.g;
  Labels made;  // the padded ones are a name of the function, which dies when it returns, after the fp32 logits
  const Dim n = bf16_logits.shape.dim(0);
  const Variable logits = ops::cast(g, bf16_logits, DType::fp32, "logits in fp32");
  if (!given) made = shifted_labels(c);
  const Tensor& labels = given ? given : made.shifted;
  NodeRef softmax_node = g.make_node({&logits}, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    call.out[0] = call.trace.empty(kept.shape, DType::fp32, "log-softmax gradient");
    ops::launch(call.trace, KernelKind::log_softmax_backward, {&call.grads[0], &kept}, call.out[0],
                "log-softmax backward");
  });
  Tensor probabilities = c.trace.empty(logits.shape, DType::fp32, "log-softmax");
  Kernel kernel =
      Kernel::pointwise(KernelKind::log_softmax, DType::fp32, logits.numel(), logits.bytes() + probabilities.bytes());
  kernel.n = logits.shape.last().size;  // rows of this length
  c.trace.compute(kernel, {&logits}, {&probabilities}, "log-softmax");
  g.save(softmax_node, probabilities);
  Variable log_softmax{std::move(probabilities)};
  log_softmax.grad_fn = std::move(softmax_node);

  const Shape shape = log_softmax.shape;
  NodeRef loss_node = g.make_node({&log_softmax}, [shape](BackwardCall& call) {
    call.out[0] = call.trace.empty(shape, DType::fp32, "nll gradient");
    ops::launch(call.trace, KernelKind::fill, {}, call.out[0], "nll backward");
  });
  Tensor loss = c.trace.empty({}, DType::fp32, "loss");
  const Tensor weight = c.trace.empty({}, DType::fp32, "loss weight");
  c.trace.compute(Kernel::pointwise(KernelKind::small, DType::fp32, n.size, Bytes(n.size * 4)), {&log_softmax, &labels},
                  {&loss}, "nll loss");
  g.save(loss_node, labels);
  g.save(loss_node, weight);
  g.save(loss_node, log_softmax.data());
  return ops::output_of(std::move(loss), std::move(loss_node));
}

Tensor small(LayerContext& c, const Shape& shape, DType dtype, const char* name, const Tensor* read) {
  Tensor tensor = c.trace.empty(shape, dtype, name);
  ops::launch(c.trace, KernelKind::small, {read}, tensor, name);
  return tensor;
}

/// Tokens per expert, added to those of the layers before.  bincount reads the smallest and the largest id on the host.
void count_experts(LayerContext& c, const Tensor& experts, Dim count, Tensor& total) {
  for (int i = 0; i < 2; ++i) {
    const Tensor bound = small(c, {}, DType::int64, "extreme expert id", &experts);
    c.trace.record(HostSync{}, Lane::host, {&bound}, {}, "bincount");
  }
  Tensor sum;
  {
    Tensor wide;
    {
      const Tensor counts = small(c, {count}, DType::int64, "tokens per expert", &experts);
      wide = small(c, {count}, DType::fp32, "tokens per expert", &counts);
    }
    sum = small(c, {count}, DType::fp32, "tokens per expert", &wide);
  }
  total = std::move(sum);
}

// E sum_e (share of tokens on e) (mean probability of e), over the router logits of all layers.  Every layer's softmax is
// kept; its top k lives until the next layer's.
Variable auxiliary_loss(LayerContext& c, const std::vector<Variable>& router_logits) {
  Autograd& g = c.g;
  const Dim e = router_logits.front().shape.last();
  const auto mixture = std::find_if(c.scenario.model.layers.begin(), c.scenario.model.layers.end(),
                                    [](const LayerSpec& layer) { return layer.moe.has_value(); });
  const Dim k{mixture->moe->top_k, Symbol::top_k};
  Variable probability;
  ops::TopK chosen;
  Tensor counts = small(c, {e}, DType::fp32, "tokens per expert", nullptr);
  probability = Variable{small(c, {e}, DType::fp32, "router probability per expert", nullptr)};
  for (const Variable& logits : router_logits) {
    Variable scores;
    {
      const DType dtype = g.autocast ? DType::fp32 : logits.dtype;
      const Variable wide = ops::cast(g, logits, dtype, "router logits in fp32");
      scores = ops::softmax(g, wide, dtype, "auxiliary loss softmax");
    }
    chosen = ops::top_k(g, scores, k, "auxiliary loss top k");
    count_experts(c, chosen.indices, e, counts);
    Variable sum;
    {
      const Variable wide = ops::cast(g, scores, DType::fp32, "router probabilities in fp32");
      sum = ops::sum_rows(g, wide, "sum of router probabilities");
    }
    probability = ops::add(g, probability, sum, "router probability per expert");
  }
  const Variable share{small(c, {e}, DType::fp32, "share of tokens per expert", &counts)};
  const Variable mean = ops::scale(g, probability, "mean router probability");
  const Variable product = ops::mul(g, share, mean, "auxiliary loss", KernelKind::small);
  const Variable total = ops::sum_all(g, product, "auxiliary loss");
  return ops::scale(g, total, "auxiliary loss");
}

Variable chunked_loss(LayerContext& c, LinearModule& head, const Variable& hidden) {
  Autograd& g = c.g;
  const Tensor labels = shifted_labels(c).shifted;
  const std::int64_t tokens = c.tokens().size, chunk = c.scenario.plan.loss_chunk;
  Variable total;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const Dim rows{std::min(chunk, tokens - first), Symbol::tokens};
    const Variable part = ops::slice(g, hidden, {rows, c.hidden()});
    const Variable loss = g.checkpoint([&c, &head, part, labels] {
      const Variable logits = linear(c, head, part, "logits");
      return cross_entropy(c, logits, labels);
    });
    total = total ? ops::add(g, total, loss, "loss") : loss;
  }
  return ops::scale(g, total, "mean loss");
}

}  // namespace

Variable language_loss(LayerContext& c, LinearModule& head, const Variable& hidden,
                       std::vector<Variable> router_logits) {
  Scoped category(c.trace.category, Category::logits_and_loss);
  Variable logits, loss;
  if (c.scenario.plan.loss_chunk > 0) {
    loss = chunked_loss(c, head, hidden);
  } else {
    logits = linear(c, head, hidden, "logits");
    loss = cross_entropy(c, logits, {});
  }
  if (!router_logits.empty()) {
    const Variable balance = auxiliary_loss(c, router_logits);
    const Variable weighted = ops::scale(c.g, balance, "weighted auxiliary loss");
    loss = ops::add_in_place(c.g, loss, weighted);
  }
  // The output object is cleared from its last field: the loss's logits, then each layer's router logits, the last first.
  std::reverse(router_logits.begin(), router_logits.end());
  if (logits) c.outputs.push_back(logits);
  std::move(router_logits.begin(), router_logits.end(), std::back_inserter(c.outputs));
  return loss;
}

}  // namespace plimsoll
