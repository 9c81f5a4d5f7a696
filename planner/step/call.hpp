// What does a launch compute?  For interpreters that execute the program: the routine, its sizes, and which of the op's
// buffers are which.  Engine plimsoll states it for every launch; the other engines' launches are priced only (none).
//
// Operands are the op's reads, then its writes, each at its offset (RankProgram::offsets), row-major, without gaps.
// N tokens, h hidden, R rows of routed tokens, E experts, El local ones, k experts a token.
#pragma once

#include <array>
#include <cstdint>

namespace plimsoll {

using BufferId = std::uint32_t;

enum class Routine : std::uint8_t {
  none,
  copy,       ///< y = x                       reads x; writes y; sizes {n}
  add,        ///< c = a + b                   reads a, b; writes c; {n}
  fill_zero,  ///< x = 0                       writes x; {n}
  product,    ///< y[m,n] (+)= op(A) op(B)     reads A, B; writes y; {m, n, k, A transposed, B transposed, add}
  /// Rows in segments (source, local expert), each with that expert's matrix.
  ///   form 0  y[R,n] = x[R,k] W[e][n,k]^T         reads x, W; writes y
  ///   form 1  y[R,n] = x[R,k] W[e][k,n]           reads x, W; writes y
  ///   form 2  W[e][n,k] (+)= a[R,n]^T b[R,k]      reads a, b; writes W
  /// {form, n, k, El, sources, rows of a segment (0: as the last operand read counts them), add}
  grouped_product,
  embedding,           ///< reads ids, table; writes y[N,h]; {N, h, V}
  embedding_backward,  ///< reads dy, ids; writes dtable (+)=; {N, h, V, add}
  /// stream = x (+ branch); y = stream * rstd * w, rstd = 1 / sqrt(mean(stream^2) + eps)
  /// reads x, [branch], w; writes [stream], y, rstd; {rows, h, branch}; scalars {eps}
  norm,
  /// reads dy, [dstream], stream, rstd, w; writes dx, dw (+)=; {rows, h, dstream, add}
  norm_backward,
  /// Turns the heads of q and k in [N, (A + 2 K) d] by their position, in place, or back.
  /// reads qkv; writes qkv; {N, A, K, d, S, first constant: d/2 frequencies, backward}
  rotary,
  /// RMSNorm of each head of q and k, then rotary; v is copied.
  /// reads qkv, wq, wk; writes turned; {N, A, K, d, S, first constant}; scalars {eps}
  head_norm_rotary,
  /// reads d, qkv (as it was before), wq, wk; writes d (in place), dwq, dwk (+)=; {N, A, K, d, S, first constant, add}
  head_norm_rotary_backward,
  attention,           ///< causal; reads qkv; writes out[N, A d], lse[N, A]; {b, S, A, K, d}
  attention_backward,  ///< reads dout, qkv, lse, out; writes dqkv; {b, S, A, K, d}
  /// y = silu(gate) * up (* weight of the row); rows beyond those counted are left alone.
  /// reads [gate | up][R, 2I], [weights[R]], [counts]; writes y[R, I]; {R, I, weighted, number of counts (0: all rows)}
  swiglu,
  swiglu_backward,  ///< reads dy, [gate | up], [weights], [counts]; writes d[gate | up], [dweights]; as swiglu
  /// logits become their gradient: (softmax - onehot(label)) * scale; loss (+)= scale * sum(-log p), also in the report.
  /// reads logits, labels; writes logits, loss, report; {rows, V, first chunk}; scalars {scale}
  cross_entropy,
  /// Softmax over E, the k largest, renormalised if asked; each choice gets a slot among the rows sent, by expert, then by
  /// token: after those of earlier experts (capacity 0) or in [e C, (e + 1) C), -1 beyond it: dropped.
  /// reads logits[N,E]; writes slots[N,k], weights[rows sent], counts[2,E] (sent; chosen), report
  /// {N, E, k, C, renormalise, layer's first count in the report (0: recomputed, nothing is reported)}
  /// scalars {scale, balance, z}: losses balance E sum_e (chosen_e / N) mean_t p_te + z mean_t lse_t^2, times scale
  route,
  route_backward,  ///< reads dweights, slots, logits, counts; writes dlogits; as route
  scatter_rows,    ///< rows[slot] = x[t]; unused rows are 0 if asked.  reads x, slots; writes rows; {N, h, k, R, clear}
  /// Rows from (source, expert) to (expert, source) order, or back.  Counts as for grouped_product.
  /// reads rows, [counts]; writes rows; {R, width, El, sources, rows of a segment (0: counted), back}
  regroup,
  gather_rows,  ///< y[t] = sum_j rows[slot(t, j)].  reads rows, slots; writes y; {N, h, k, R}
  /// fp32 shard += parts, or = parts if first; if it counts, report[squared norm] += scale * sum shard^2.
  /// reads one or two parts, shard unless first; writes shard, [report]; {n, first, parts, counts}; scalars {scale}
  accumulate,
  /// Decoupled weight decay; clipped by the norm in the report; a norm that is not finite skips the update.
  /// reads gradient, master, first, second, report; writes master, first, second, weights, gradient if it is cleared
  /// {n, master is another buffer than the weights, the gradient is cleared}; scalars {clip (0: none)}
  adamw,
};
const char* name_of(Routine routine);

struct Call {
  Routine routine = Routine::none;
  std::array<std::int64_t, 7> sizes{};
  std::array<double, 3> scalars{};
  bool operator==(const Call&) const = default;
};

/// Entries of the step's report, fp32, summed over ranks at the end of a step.
namespace report_slot {
inline constexpr std::int64_t squared_norm = 0;
inline constexpr std::int64_t loss = 1;
inline constexpr std::int64_t balance_loss = 2;
inline constexpr std::int64_t z_loss = 3;
inline constexpr std::int64_t dropped = 4;
inline constexpr std::int64_t counts = 5;  ///< tokens that chose each expert, MoE layer by MoE layer
}  // namespace report_slot

/// Where a parameter (or this rank's experts of it) lies in the flat vector of its group.
struct ParameterSlot {
  const char* name = "";
  std::int64_t offset = 0;       ///< of its first element in the flat vector
  std::int64_t numel = 0;        ///< elements held by the flat vector
  std::int64_t first = 0;        ///< index of the first of them in the whole parameter
  std::int64_t whole_numel = 0;  ///< of the whole parameter
  double initial_std = 0;        ///< standard deviation of its initial values; 0: they are 1
};

/// Parameters that are sharded together: a flat vector of `numel` elements, of which a rank owns [shard_first, + shard_numel).
struct FlatGroup {
  static constexpr BufferId none = ~BufferId{0};
  const char* name = "";
  int layer = -1;
  std::uint16_t group = 0;  ///< the ranks that share it
  std::int64_t numel = 0, shard_first = 0, shard_numel = 0;
  BufferId weights = none;         ///< as the layers read them
  std::int64_t weights_first = 0;  ///< which elements that buffer holds: the shard, or all
  std::int64_t weights_numel = 0;
  BufferId master = none, first_moment = none, second_moment = none, gradient = none;  ///< of the shard
  std::uint32_t first_slot = 0, slot_count = 0;
};

/// The report's buffers and how many counts it holds.
struct ReportLayout {
  BufferId device = FlatGroup::none, host = FlatGroup::none;
  std::int64_t moe_layers = 0, experts = 0, numel = 0;
};

/// The buffers into which a micro-batch's tokens are copied.
struct FeedLayout {
  std::int64_t tokens = 0, sequence = 0, vocab = 0;
};

}  // namespace plimsoll
