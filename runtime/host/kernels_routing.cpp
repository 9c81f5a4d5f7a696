// Router and the movement of rows (runtime/host/kernels.hpp).
#include <algorithm>
#include <numeric>

#include "runtime/host/kernels.hpp"
#include "runtime/host/matrix.hpp"

namespace plimsoll::host {

namespace {

template <class S>
struct Router {
  std::int64_t tokens, experts, k, capacity;
  bool renormalise;
  std::int64_t reported;
  double scale, balance, z;

  explicit Router(const Call& call)
      : tokens(call.sizes[0]),
        experts(call.sizes[1]),
        k(call.sizes[2]),
        capacity(call.sizes[3]),
        renormalise(call.sizes[4] != 0),
        reported(call.sizes[5]),
        scale(call.scalars[0]),
        balance(call.scalars[1]),
        z(call.scalars[2]) {}

  /// Softmax in place; returns the log of the sum.
  static S softmax(Eigen::Ref<Row<S>> row) {
    const S highest = row.maxCoeff();
    const S lse = highest + std::log((row.array() - highest).exp().sum());
    row = (row.array() - lse).exp().matrix();
    return lse;
  }

  /// The k most probable experts, the earlier one first where two are equal.
  std::vector<std::int64_t> chosen(const Row<S>& p) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [&](std::int64_t a, std::int64_t b) { return p(a) > p(b) || (p(a) == p(b) && a < b); });
    order.resize(static_cast<std::size_t>(k));
    return order;
  }

  S sum_of(const Row<S>& p, const std::vector<std::int64_t>& experts_of_token) const {
    if (!renormalise) return S(1);
    S sum = 0;
    for (const std::int64_t e : experts_of_token) sum += p(e);
    return sum;
  }
};

}  // namespace

template <class S>
void route(const Operation& op) {
  const Router<S> router(op.call());
  const std::int64_t n = router.tokens, experts = router.experts;
  Matrix<S> p = load<S>(op.reads[0], n, experts);
  std::int32_t *slots = mutable_integers(op.writes[0]), *counts = mutable_integers(op.writes[2]);
  float *weights = singles(op.writes[1]), *report = singles(op.writes[3]);
  double squared_lse = 0;
  std::vector<std::vector<std::int64_t>> choices;
  std::fill(counts, counts + 2 * experts, 0);
  for (std::int64_t t = 0; t < n; ++t) {
    const auto lse = static_cast<double>(Router<S>::softmax(p.row(t)));
    squared_lse += lse * lse;
    choices.push_back(router.chosen(p.row(t)));
    for (const std::int64_t e : choices.back()) ++counts[experts + e];
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(experts));
  std::int64_t dropped = 0, sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    next[static_cast<std::size_t>(e)] = router.capacity > 0 ? e * router.capacity : sum;
    sum += counts[experts + e];
    counts[e] = router.capacity > 0
                    ? static_cast<std::int32_t>(std::min<std::int64_t>(counts[experts + e], router.capacity))
                    : counts[experts + e];
    dropped += counts[experts + e] - counts[e];
  }
  if (router.capacity > 0) std::fill(weights, weights + experts * router.capacity, 0.0F);
  for (std::int64_t t = 0; t < n; ++t) {
    const auto& chosen = choices[static_cast<std::size_t>(t)];
    const S total = router.sum_of(p.row(t), chosen);
    for (std::size_t j = 0; j < chosen.size(); ++j) {
      const std::int64_t e = chosen[j], slot = next[static_cast<std::size_t>(e)]++;
      const bool kept = router.capacity == 0 || slot < (e + 1) * router.capacity;
      slots[t * router.k + static_cast<std::int64_t>(j)] = kept ? static_cast<std::int32_t>(slot) : -1;
      if (kept) weights[slot] = static_cast<float>(p(t, e) / total);
    }
  }
  if (router.reported == 0) return;
  const auto tokens = static_cast<double>(n);
  double balance = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    balance += counts[experts + e] / tokens * static_cast<double>(p.col(e).sum()) / tokens;
    report[router.reported + e] += static_cast<float>(counts[experts + e]);
  }
  report[report_slot::balance_loss] +=
      static_cast<float>(router.scale * router.balance * static_cast<double>(experts) * balance);
  report[report_slot::z_loss] += static_cast<float>(router.scale * router.z * squared_lse / tokens);
  report[report_slot::dropped] += static_cast<float>(dropped);
}

// w_j = p_j / sum of the chosen p: dp_j = (dw_j - sum_i dw_i w_i) / sum; softmax: dl = p (dp - sum p dp)
template <class S>
void route_backward(const Operation& op) {
  const Router<S> router(op.call());
  const std::int64_t n = router.tokens, experts = router.experts;
  Matrix<S> logits = load<S>(op.reads[2], n, experts);
  const std::int32_t *slots = integers(op.reads[1]), *counts = integers(op.reads[3]);
  const float* d_weights = singles(op.reads[0]);
  const auto tokens = static_cast<double>(n);
  Row<S> pull(experts);  // of the balancing loss on every probability
  for (std::int64_t e = 0; e < experts; ++e)
    pull(e) = static_cast<S>(router.scale * router.balance * static_cast<double>(experts) * counts[experts + e] /
                             tokens / tokens);
  for (std::int64_t t = 0; t < n; ++t) {
    Row<S> p = logits.row(t);
    const S lse = Router<S>::softmax(p);
    const auto chosen = router.chosen(p);
    const S total = router.sum_of(p, chosen);
    Row<S> d_p = pull;
    S mean = 0;
    const auto d_weight = [&](std::size_t j) {
      const std::int32_t slot = slots[t * router.k + static_cast<std::int64_t>(j)];
      return slot < 0 ? S(0) : static_cast<S>(d_weights[slot]);
    };
    if (router.renormalise) {
      for (std::size_t j = 0; j < chosen.size(); ++j) mean += d_weight(j) * p(chosen[j]) / total;
    }
    for (std::size_t j = 0; j < chosen.size(); ++j) d_p(chosen[j]) += (d_weight(j) - mean) / total;
    const S z = static_cast<S>(router.scale * router.z * 2 / tokens) * lse;
    logits.row(t) = p.cwiseProduct((d_p.array() - p.dot(d_p) + z).matrix());
  }
  store(op.writes[0], logits);
}

template <class S>
void scatter_rows(const Operation& op) {
  const auto [tokens, h, k, rows, clear, a, b] = op.call().sizes;
  const std::int32_t* slots = integers(op.reads[1]);
  const std::int64_t row_bytes = h * size_of(op.reads[0].dtype);
  if (clear) std::memset(op.writes[0].data, 0, static_cast<std::size_t>(rows * row_bytes));
  for (std::int64_t i = 0; i < tokens * k; ++i) {
    if (slots[i] < 0) continue;
    std::memcpy(op.writes[0].data + slots[i] * row_bytes, op.reads[0].data + i / k * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
}

template <class S>
void gather_rows(const Operation& op) {
  const auto [tokens, h, k, rows, clear, a, b] = op.call().sizes;
  const std::int32_t* slots = integers(op.reads[1]);
  Matrix<S> y = Matrix<S>::Zero(tokens, h);
  for (std::int64_t i = 0; i < tokens * k; ++i) {
    if (slots[i] >= 0) y.row(i / k) += load<S>(op.reads[0], 1, h, slots[i] * h);
  }
  store(op.writes[0], y);
}

void regroup(const Operation& op) {
  const auto [rows, width, local, sources, segment, back, a] = op.call().sizes;
  const std::int64_t row_bytes = width * size_of(op.reads[0].dtype);
  const auto rows_of = [&, segment = segment, local = local](std::int64_t source, std::int64_t e) {
    return segment > 0 ? segment : std::int64_t{integers(op.reads[1])[source * local + e]};
  };
  std::vector<std::int64_t> arrival(static_cast<std::size_t>(sources * local));  // first row of (source, expert)
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < sources * local; ++i) {
    arrival[static_cast<std::size_t>(i)] = next;
    next += rows_of(i / local, i % local);
  }
  std::int64_t by_expert = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    for (std::int64_t s = 0; s < sources; ++s) {
      const std::int64_t from = arrival[static_cast<std::size_t>(s * local + e)], count = rows_of(s, e);
      std::memcpy(op.writes[0].data + (back ? from : by_expert) * row_bytes,
                  op.reads[0].data + (back ? by_expert : from) * row_bytes,
                  static_cast<std::size_t>(count * row_bytes));
      by_expert += count;
    }
  }
}

#define INSTANTIATE(S)                               \
  template void route<S>(const Operation&);          \
  template void route_backward<S>(const Operation&); \
  template void scatter_rows<S>(const Operation&);   \
  template void gather_rows<S>(const Operation&);
INSTANTIATE(float)
INSTANTIATE(double)
#undef INSTANTIATE

}  // namespace plimsoll::host
