// Latent attention (DeepSeek-V2 and V3, Kimi, Moonlight) and the sparse indexer beside it (DeepSeek-V3.2, GLM-5), as
// Hugging Face's modules compose them (planner/step/layers/attention.hpp).
//   query        h -> r_q, norm, -> A (d_n + d_r), or at once; the last d_r of each head are turned
//   keys, values h -> r_kv + d_r; the first part, normed, -> A (d_n + d_v); the d_r are one turned key for all heads
//   kept beside the projections: q and k joined, by head: 2 N A (d_n + d_r) each; v as part of its projection
//   indexer      no gradient; its largest transient is the keys in fp32 repeated for every query, 4 b S^2 d_i
// Source: allocator traces of steps of DeepSeek-V2, V3 and V3.2.
#include <algorithm>

#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/attention.hpp"

namespace plimsoll {

namespace {

struct Latent {
  LayerContext& c;
  const AttentionSpec& spec;
  Dim n, nope, rope, value;

  Latent(LayerContext& context, const AttentionSpec& attention)
      : c(context),
        spec(attention),
        n(context.tokens()),
        nope{attention.head_dim - attention.rope_head_dim, Symbol::head_dim},
        rope{attention.rope_head_dim, Symbol::head_dim},
        value{attention.value_head_dim, Symbol::head_dim} {}
  Shape per_head(std::int64_t width) const { return {n, {spec.q_heads * width}}; }
};

/// The query's latent (empty where the query is projected at once).
Variable query_latent(LayerContext& c, AttentionModule& module, const Variable& x) {
  return norm(c, module.q_a_norm, linear(c, module.q_a, x, "query latent"));
}

/// Keys and values of all heads from the latent and the shared turned key.
std::array<Variable, 2> expand_keys_and_values(Latent& l, AttentionModule& module, const Variable& latent,
                                               const Variable& turned_key) {
  Autograd& g = l.c.g;
  const Variable projected = linear(l.c, module.kv_b, latent, "keys and values");
  const Variable both = ops::view(g, projected, projected.shape, true);
  auto [key_part, values] = ops::split_last(g, both, l.per_head(l.nope.size), l.per_head(l.value.size));
  const Variable shared = ops::expand(g, turned_key, l.per_head(l.rope.size));
  Variable keys{l.c.trace.empty(l.per_head(l.spec.head_dim), projected.dtype, "keys")};
  keys = ops::copy_into(g, keys, key_part);
  keys = ops::copy_into(g, keys, shared);
  return {std::move(keys), std::move(values)};
}

/// The sparse indexer.  Nothing of it needs a gradient; what its function names lives until it returns.
class Indexer {
 public:
  Indexer(Latent& l, AttentionModule& module) : l_(l), c_(l.c), module_(module) {}

  /// The keys that each query keeps [b, S, k].
  Tensor choose(const Variable& x, const Variable& latent, const RotaryTables& tables) {
    Scoped no_gradient(c_.g.enabled, false);
    const Dim heads{l_.spec.index_heads};
    Tensor chosen, indices, summed, scores;
    Variable k_norm, k_turned, k, q_projected, q_turned, q;
    q_projected = linear(c_, module_.index_q, latent, "indexer query");
    {
      const Variable raw = linear(c_, module_.index_k, x, "indexer key");
      k_norm = norm(c_, module_.index_k_norm, raw);
    }
    q_turned = rotate(c_, ops::slice(c_.g, q_projected, {l_.n, {heads.size * l_.rope.size}}), tables, l_.rope);
    k_turned = rotate(c_, ops::slice(c_.g, k_norm, {l_.n, l_.rope}), tables, l_.rope);
    q = Variable{made(q_projected.shape, q_projected.dtype, "indexer query, turned")};
    k = Variable{made(k_norm.shape, k_norm.dtype, "indexer key, turned")};
    scores = head_scores(q, k);
    const Variable weights = linear(c_, module_.index_weights, x, "indexer head weights");
    {
      const Tensor all = made(square(), DType::fp32, "indexer scores of all heads");
      const Tensor causal = made(square(), DType::fp32, "causal mask in fp32");
      summed = made(square(), DType::fp32, "indexer scores, causal");
    }
    const Shape kept{batch(), s(), {std::min(s().size, l_.spec.index_top_k)}};
    {
      const Tensor values = made(kept, DType::fp32, "largest indexer scores");
      indices = made(kept, DType::int64, "their keys");
    }
    chosen = made(kept, DType::int32, "chosen keys");
    indices = {};
    q = {};
    q_turned = {};
    q_projected = {};
    return chosen;
  }

  /// True where a query leaves a key out.
  Tensor left_out(const Tensor& chosen) {
    Tensor mask;
    {
      const Tensor ones = made(square(), DType::boolean, "all keys");
      const Tensor wide = made(chosen.shape, DType::int64, "chosen keys in 64 bits");
      mask = made(square(), DType::boolean, "keys left out");
    }
    return mask;
  }

  /// The causal mask without what is left out, and the additive form that the fused kernel reads and keeps.
  Tensor mask(const Tensor& left_out) {
    const Tensor kept = made(square(), DType::boolean, "keys kept");
    ops::launch(c_.trace, KernelKind::vectorized, {&left_out}, kept, "keys kept");
    return made(square(), DType::boolean, "mask of chosen keys");
  }
  Tensor bias() { return made(square(), DType::bf16, "additive mask of chosen keys"); }

 private:
  Dim batch() const { return {c_.batch(), Symbol::batch}; }
  Dim s() const { return {c_.sequence(), Symbol::sequence}; }
  Shape square() const { return {batch(), s(), s()}; }
  Tensor made(const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = c_.trace.empty(shape, dtype, name);
    ops::launch(c_.trace, KernelKind::vectorized, {}, tensor, name);
    return tensor;
  }

  /// relu(q k^T / sqrt(d)) of every head in fp32; the product repeats the keys for each query.
  Tensor head_scores(const Variable& q, const Variable& k) {
    const Dim heads{l_.spec.index_heads}, d{l_.spec.index_head_dim};
    const Shape by_head{batch(), s(), heads, s()};
    Tensor scaled;
    {
      Tensor raw;
      {
        Tensor repeated;
        const Tensor wide_q = made(q.shape, DType::fp32, "indexer query in fp32");
        const Tensor wide_k = made(k.shape, DType::fp32, "indexer key in fp32");
        repeated = made({batch(), s(), d, s()}, DType::fp32, "indexer keys for every query");
        raw = c_.trace.empty(by_head, DType::fp32, "indexer scores");
        c_.trace.compute(Kernel::gemm(heads.size, s().size, d.size, DType::fp32, c_.batch() * s().size),
                         {&wide_q, &wide_k, &repeated}, {&raw}, "indexer");
        repeated = {};
      }
      scaled = made(by_head, DType::fp32, "indexer scores, scaled");
    }
    return made(by_head, DType::fp32, "indexer scores, not negative");
  }

  Latent& l_;
  LayerContext& c_;
  AttentionModule& module_;
};

}  // namespace

Variable latent_attention(LayerContext& c, AttentionModule& module, const Variable& x, const RotaryTables& tables) {
  Autograd& g = c.g;
  Latent l(c, *module.spec);
  const AttentionSpec& spec = *module.spec;
  // Cleared in the order of their first assignment: the query before the keys.
  Heads heads;
  Variable shared_key, keys_latent, compressed, turned, query, query_state;
  if (spec.q_lora_rank > 0) {
    if (spec.index_heads > 0) query_state = query_latent(c, module, x);
    query = linear(c, module.q_b, query_state ? query_state : query_latent(c, module, x), "query");
  } else {
    query = linear(c, module.q, x, "query");
  }
  query = ops::view(g, query, query.shape, true);
  auto [query_rest, query_rotary] = ops::split_last(g, query, l.per_head(l.nope.size), l.per_head(l.rope.size));
  compressed = linear(c, module.kv_a, x, "compressed keys and values");
  auto [latent, key_rotary] = ops::split_last(g, compressed, {l.n, {spec.kv_lora_rank}}, {l.n, l.rope});
  keys_latent = norm(c, module.kv_a_norm, latent);
  latent = {};
  {
    auto rotated = rotate_both(c, query_rotary, key_rotary, tables, l.rope.size, l.rope.size);
    turned = std::move(rotated[0]);
    shared_key = std::move(rotated[1]);
  }
  query_rotary = {};
  key_rotary = {};
  heads.q = ops::concatenate(g, query_rest, turned, "queries");
  heads.q_by_head = true;
  auto keys_and_values = expand_keys_and_values(l, module, keys_latent, shared_key);
  heads.k = std::move(keys_and_values[0]);
  heads.v = std::move(keys_and_values[1]);
  Tensor left_out, chosen;
  Variable mixed;
  if (spec.index_heads > 0) {
    Indexer indexer(l, module);
    chosen = indexer.choose(x, query_state, tables);
    left_out = indexer.left_out(chosen);
    const Tensor mask = indexer.mask(left_out);
    heads.bias = indexer.bias();
    mixed = attend(c, heads, {spec.q_heads, spec.q_heads, spec.head_dim, spec.value_head_dim}, nullptr);
    heads.bias = {};
  } else {
    mixed = attend(c, heads, {spec.q_heads, spec.q_heads, spec.head_dim, spec.value_head_dim}, nullptr);
  }
  Variable output = linear(c, module.o, mixed, "attention projection");
  query_rest = {};
  return output;
}

}  // namespace plimsoll
