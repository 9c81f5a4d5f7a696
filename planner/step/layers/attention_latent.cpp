// Latent attention (DeepSeek-V2 and V3, Kimi, Moonlight) and the sparse indexer beside it (DeepSeek-V3.2, GLM-5), as
// Hugging Face's modules compose them (planner/step/layers/attention.hpp).
//   query        h -> r_q, norm, -> A (d_n + d_r), or at once; the last d_r of each head are turned
//   keys, values h -> r_kv + d_r; the first part, normed, -> A (d_n + d_v); the d_r are one turned key for all heads
//   kept beside the projections: q and k joined, by head: 2 N A (d_n + d_r) each; v as part of its projection
//   indexer      no gradient; its largest transient is the keys in fp32 repeated for every query, 4 b S^2 d_i
// Source: allocator traces of steps of DeepSeek-V2, V3 and V3.2.
#include "planner/step/autograd/ops_routing.hpp"
#include "planner/step/autograd/ops_shape.hpp"
#include "planner/step/layers/attention.hpp"

namespace plimsoll {

namespace {

/// Keys that the indexer leaves to a query; all of these models state 2048.
constexpr std::int64_t index_top_k = 2048;

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
  Variable keys{l.c.trace.empty(l.per_head(l.spec.head_dim), latent.dtype, "keys")};
  keys = ops::copy_into(g, keys, key_part);
  keys = ops::copy_into(g, keys, shared);
  return {std::move(keys), std::move(values)};
}

/// Scores of the indexer, its choice of keys, and the mask that follows from it; nothing of it needs a gradient.
Tensor indexed_mask(Latent& l, AttentionModule& module, const Variable& x, const Variable& latent,
                    const RotaryTables& tables) {
  LayerContext& c = l.c;
  Autograd& g = c.g;
  const Dim s{c.sequence(), Symbol::sequence}, b{c.batch(), Symbol::batch};
  const std::int64_t heads = l.spec.index_heads, d = l.spec.index_head_dim;
  const auto made = [&](const Shape& shape, DType dtype, const char* name) {
    Tensor tensor = c.trace.empty(shape, dtype, name);
    ops::launch(c.trace, KernelKind::vectorized, {}, tensor, name);
    return tensor;
  };
  Tensor chosen;
  {
    Scoped no_gradient(g.enabled, false);
    Variable q = linear(c, module.index_q, latent, "indexer query");
    Variable k = norm(c, module.index_k_norm, linear(c, module.index_k, x, "indexer key"));
    {
      const Variable q_part = ops::slice(g, q, {l.n, {heads * l.rope.size}});
      const Variable k_part = ops::slice(g, k, {l.n, l.rope});
      const Variable turned_q = rotate(c, q_part, tables, l.rope);
      const Variable turned_k = rotate(c, k_part, tables, l.rope);
      q = Variable{made(q.shape, q.dtype, "indexer query, turned")};
      k = Variable{made(k.shape, k.dtype, "indexer key, turned")};
    }
    Tensor scores;
    const Shape by_head{b, s, {heads}, s};
    {
      Tensor scaled;
      {
        Tensor raw;
        {
          const Tensor wide_q = made(q.shape, DType::fp32, "indexer query in fp32");
          const Tensor wide_k = made(k.shape, DType::fp32, "indexer key in fp32");
          const Tensor repeated = made({b, s, {d}, s}, DType::fp32, "indexer keys for every query");
          raw = c.trace.empty(by_head, DType::fp32, "indexer scores");
          c.trace.compute(Kernel::gemm(heads, s.size, d, DType::fp32, c.batch() * s.size), {&wide_q, &repeated}, {&raw},
                          "indexer");
        }
        scaled = made(by_head, DType::fp32, "indexer scores, scaled");
      }
      scores = made(by_head, DType::fp32, "indexer scores, not negative");
    }
    const Variable weights = linear(c, module.index_weights, x, "indexer head weights");
    Tensor summed = made({b, s, s}, DType::fp32, "indexer scores of all heads");
    summed = made({b, s, s}, DType::fp32, "indexer scores, causal");
    const Dim kept{std::min<std::int64_t>(s.size, index_top_k)};
    const Tensor values = made({b, s, kept}, DType::fp32, "largest indexer scores");
    const Tensor indices = made({b, s, kept}, DType::int64, "their keys");
    chosen = made({b, s, kept}, DType::int32, "chosen keys");
  }
  const Tensor excluded = made({b, s, s}, DType::boolean, "keys not chosen");
  return made({b, s, s}, DType::boolean, "mask of chosen keys");
}

}  // namespace

Variable latent_attention(LayerContext& c, AttentionModule& module, const Variable& x, const RotaryTables& tables) {
  Autograd& g = c.g;
  Latent l(c, *module.spec);
  const AttentionSpec& spec = *module.spec;
  // Cleared in the order of their first assignment: the query before the keys.
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
  Heads heads;
  heads.q = ops::concatenate(g, query_rest, turned, "queries");
  heads.q_by_head = true;
  auto keys_and_values = expand_keys_and_values(l, module, keys_latent, shared_key);
  heads.k = std::move(keys_and_values[0]);
  heads.v = std::move(keys_and_values[1]);
  Tensor mask;
  if (spec.index_heads > 0) mask = indexed_mask(l, module, x, query_state, tables);
  const Variable mixed = attend(c, heads, {spec.q_heads, spec.q_heads, spec.head_dim, spec.value_head_dim}, nullptr);
  const Variable output = linear(c, module.o, mixed, "attention projection");
  query_rest = {};
  return output;
}

}  // namespace plimsoll
