// Attention with its scores in memory (planner/step/layers/attention.hpp): softmax(q k^T / sqrt(d) + mask) v, keys and values
// repeated to the query's heads.  b batch, A query heads, S sequence, N = b S:
//   kept       softmax in fp32 4 b A S^2 and its 16-bit copy 2 b A S^2 (fp32: once; with sinks only 2 b A S (S + 1)),
//              repeated k and v, q in head order
//   transient  scores, scaled and masked scores 2 b A S^2 each, and in 16 bits their fp32 copy 4 b A S^2
// Source: eager_attention_forward of transformers 5.17 and allocator traces of eager Llama (bf16, autocast) and gpt-oss steps.
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/attention.hpp"

namespace plimsoll {

namespace {

class EagerAttention {
 public:
  EagerAttention(LayerContext& c, const AttentionSizes& sizes)
      : c_(c),
        g_(c.g),
        s_(sizes),
        narrow_(c.g.autocast ? DType::bf16 : DType::fp32),
        square_{{c.batch(), Symbol::batch},
                {sizes.q_heads, Symbol::heads},
                {c.sequence(), Symbol::sequence},
                {c.sequence(), Symbol::sequence}} {}

  Variable run(const Heads& heads, Parameter* sinks) {
    narrow_ = g_.autocast ? DType::bf16 : heads.q.dtype;
    Variable scores, values, keys;  // freed in this order when the function returns: keys first
    keys = repeat(heads.k, s_.head_dim, "repeated k");
    values = repeat(heads.v, s_.value_dim, "repeated v");
    {
      const Variable raw = first_product(heads, keys);
      scores = ops::scale(g_, raw, "scaled scores");
    }
    scores = masked(scores);
    Variable weights = sinks ? softmax_with_sinks(scores, *sinks) : softmax(scores, heads.q.dtype);
    scores = {};
    c_.attention_weights = weights.data();
    Variable result;
    {
      const Variable mixed = second_product(weights, values);
      result = ops::contiguous(g_, mixed, "attention output in token order");
    }
    return result;
  }

 private:
  std::int64_t batches() const { return c_.batch() * s_.q_heads; }

  /// Repeated heads are a copy, but for those of a single one, which a view can show as many.
  bool is_copied() const { return s_.kv_heads != s_.q_heads && s_.kv_heads > 1; }

  Variable repeat(const Variable& x, std::int64_t width, const char* name) {
    if (s_.kv_heads == s_.q_heads) return x;
    const Shape wide{c_.tokens(), {s_.q_heads * width, Symbol::q_width}};
    const Variable expanded = ops::expand(g_, x, wide);
    return is_copied() ? ops::contiguous(g_, expanded, name) : expanded;
  }

  /// A batched product reads heads one after the other: what lies by token is copied, unless there is one batch.
  Variable in_head_order(const Variable& x, bool by_head, const char* name) {
    return by_head || c_.batch() == 1 ? x : ops::contiguous(g_, x, name);
  }

  Variable first_product(const Heads& heads, const Variable& keys) {
    // Autocast converts the second operand first.
    Variable k = ops::cast(g_, keys, narrow_, "k cast");
    const Variable narrow = ops::cast(g_, heads.q, narrow_, "q cast");
    const Variable q = in_head_order(narrow, heads.q_by_head, "q by head");
    k = in_head_order(k, is_copied() || heads.q_by_head, "k by head");
    return product(q, k, square_, c_.sequence(), s_.head_dim, "attention scores");
  }

  Variable second_product(const Variable& weights, const Variable& values) {
    const Variable narrow = ops::cast(g_, weights, narrow_, "attention weights");
    const Variable v = in_head_order(values, is_copied(), "v by head");
    const Variable mixed = product(narrow, v, {c_.tokens(), {s_.q_heads * s_.value_dim, Symbol::q_width}}, s_.value_dim,
                                   c_.sequence(), "attention output");
    return ops::view(g_, mixed, mixed.shape, c_.batch() > 1);  // its gradient comes by token
  }

  /// One batched product of [b A] matrices; `mat2` (the second operand) gets its gradient first and is let go first.  An
  /// operand is kept for the other's gradient, if that one has any: a layer of which only queries are trained keeps no weights.
  Variable product(const Variable& a, const Variable& b, const Shape& shape, std::int64_t n, std::int64_t inner,
                   const char* name) {
    const Shape sa = a.shape, sb = b.shape;
    const DType dtype = a.dtype;
    const std::int64_t count = batches(), rows = c_.sequence();
    const std::size_t slot_of_a = a.requires_grad() ? 1 : 0;
    NodeRef node = g_.make_node({&a, &b}, [=](BackwardCall& call) {
      const auto gradient = [&](std::size_t operand, std::size_t slot, const Shape& shape_of, const Kernel& kernel) {
        if (!call.wants(operand)) return;
        Tensor& out = call.out[operand];
        out = call.trace.empty(shape_of, dtype, "gradient of an attention product");
        call.trace.compute(kernel, {&call.grads[0], &call.saved(slot)}, {&out}, "attention product");
      };
      gradient(1, slot_of_a, sb, Kernel::gemm(inner, n, rows, dtype, count));
      gradient(0, 0, sa, Kernel::gemm(rows, inner, n, dtype, count));
    });
    if (a.requires_grad()) g_.save(node, b);
    if (b.requires_grad()) g_.save(node, a);
    Tensor result = c_.trace.empty(shape, a.dtype, name);
    c_.trace.compute(Kernel::gemm(rows, n, inner, a.dtype, count), {&a, &b}, {&result}, "attention product");
    return ops::output_of(std::move(result), std::move(node));
  }

  /// A mask of fp32 (autocast) widens the scores.
  Variable masked(const Variable& scores) {
    CHECK(!c_.masks.empty(), "attention with scores in memory needs its mask");
    return ops::add(g_, scores, Variable{c_.masks.front()}, "masked scores");
  }

  Variable softmax(const Variable& scores, DType dtype) {
    Variable weights;
    {
      const Variable wide = ops::cast(g_, scores, DType::fp32, "scores in fp32");
      weights = ops::softmax(g_, wide, DType::fp32, "attention weights in fp32");
    }
    return ops::cast(g_, weights, dtype, "attention weights");
  }

  /// The sinks are one more column of the scores; the largest of each row is taken off before the softmax.
  Variable softmax_with_sinks(const Variable& scores, Parameter& sinks) {
    Shape wide = square_;
    ++wide.sizes[3];
    const Variable leaf = g_.leaf(sinks);
    Shape column = square_;
    column.sizes[3] = 1;
    const Variable one = ops::expand(g_, leaf, column);
    {
      const Variable joined = join(scores, one, wide);
      const Variable largest = row_maximum(joined, column);
      combined_ = shifted(joined, largest);
    }
    const Variable weights = ops::softmax(g_, combined_, combined_.dtype, "attention weights");
    return ops::slice(g_, weights, square_);
  }

  Variable join(const Variable& scores, const Variable& one, const Shape& wide) {
    const Shape first = scores.shape, second = one.shape;
    NodeRef node = g_.make_node({&scores, &one}, [first, second](BackwardCall& call) {
      call.out[0] = call.grads[0].view_as(first);
      call.out[1] = call.grads[0].view_as(second);
    });
    Tensor result = c_.trace.empty(wide, scores.dtype, "scores and sinks");
    ops::launch(c_.trace, KernelKind::concatenate, {&scores, &one}, result, "scores and sinks");
    return ops::output_of(std::move(result), std::move(node));
  }

  Variable row_maximum(const Variable& x, const Shape& column) {
    const Shape full = x.shape;
    NodeRef node = g_.make_node({&x}, [full](BackwardCall& call) {
      call.out[0] = call.trace.empty(full, call.grads[0].dtype, "gradient of a maximum");
      ops::launch(call.trace, KernelKind::fill, {&call.grads[0], &call.saved(0)}, call.out[0], "max backward");
    });
    Tensor values = c_.trace.empty(column, x.dtype, "largest score");
    const Tensor index = c_.trace.empty(column, DType::int64, "place of the largest score");
    ops::launch(c_.trace, KernelKind::reduce_last, {&x}, values, "largest score");
    g_.save(node, index);
    return ops::output_of(std::move(values), std::move(node));
  }

  Variable shifted(const Variable& x, const Variable& largest) {
    NodeRef node = g_.make_node({&x, &largest}, [](BackwardCall& call) {
      call.out[1] = call.trace.empty(call.grads[0].shape, call.grads[0].dtype, "negated gradient");
      ops::launch(call.trace, KernelKind::vectorized, {&call.grads[0]}, call.out[1], "sub backward");
      call.out[0] = call.grads[0];
    });
    Tensor result = c_.trace.empty(x.shape, x.dtype, "scores under their largest");
    ops::launch(c_.trace, KernelKind::vectorized, {&x, &largest}, result, "scores under their largest");
    return ops::output_of(std::move(result), std::move(node));
  }

  LayerContext& c_;
  Autograd& g_;
  AttentionSizes s_;
  DType narrow_;
  Shape square_;
  Variable combined_;  ///< scores and sinks, named until the function returns
};

}  // namespace

Variable eager_attention(LayerContext& c, const Heads& heads, const AttentionSizes& sizes, Parameter* sinks) {
  return EagerAttention(c, sizes).run(heads, sinks);
}

std::vector<Tensor> attention_masks(LayerContext& c, DType dtype) {
  const Dim s{c.sequence(), Symbol::sequence};
  bool sinks = false;
  for (const LayerSpec& layer : c.scenario.model.layers) sinks = sinks || layer.attention.sinks;
  const bool windows = sinks || c.scenario.model.family == "qwen2_moe";
  std::vector<Tensor> masks;
  // gpt-oss alternates windows and full attention: one mask for each.  Qwen2-MoE makes both, and reads one.
  for (int i = 0; i < (windows ? 2 : 1); ++i) {
    const Tensor allowed = c.trace.empty({s, s}, DType::boolean, "causal mask");
    ops::launch(c.trace, KernelKind::vectorized, {}, allowed, "causal mask");
    masks.push_back(c.trace.empty({{c.batch(), Symbol::batch}, s, s}, dtype, "additive mask"));
    ops::launch(c.trace, KernelKind::vectorized, {&allowed}, masks.back(), "additive mask");
  }
  return masks;
}

}  // namespace plimsoll
