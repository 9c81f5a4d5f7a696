// Products, embedding, sums (runtime/host/kernels.hpp).
#include "runtime/host/kernels.hpp"
#include "runtime/host/matrix.hpp"

namespace plimsoll::host {

// y[m,n] (+)= op(A)[m,k] op(B)[k,n]
template <class S>
void product(const Operation& op) {
  const auto [m, n, k, a_transposed, b_transposed, add, unused] = op.call().sizes;
  const Matrix<S> a = a_transposed ? load<S>(op.reads[0], k, m) : load<S>(op.reads[0], m, k);
  const Matrix<S> b = b_transposed ? load<S>(op.reads[1], n, k) : load<S>(op.reads[1], k, n);
  Matrix<S> y(m, n);
  if (a_transposed) {
    y.noalias() = a.transpose() * b;
  } else if (b_transposed) {
    y.noalias() = a * b.transpose();
  } else {
    y.noalias() = a * b;
  }
  store_or_add(op.writes[0], y, add != 0);
}

// The rows of expert e, from all sources, lie side by side.
template <class S>
void grouped_product(const Operation& op) {
  const auto [form, n, k, local, sources, segment, add] = op.call().sizes;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < local; ++e) {
    std::int64_t rows = segment * sources;
    if (segment == 0) {
      for (std::int64_t s = 0; s < sources; ++s) rows += integers(op.reads[2])[s * local + e];
    }
    if (form == 2) {
      const Matrix<S> a = load<S>(op.reads[0], rows, n, first * n), b = load<S>(op.reads[1], rows, k, first * k);
      store_or_add(op.writes[0], Matrix<S>(a.transpose() * b), add != 0, e * n * k);
    } else {
      const Matrix<S> x = load<S>(op.reads[0], rows, k, first * k);
      const Matrix<S> w = form == 0 ? load<S>(op.reads[1], n, k, e * n * k) : load<S>(op.reads[1], k, n, e * n * k);
      store(op.writes[0], form == 0 ? Matrix<S>(x * w.transpose()) : Matrix<S>(x * w), first * n);
    }
    first += rows;
  }
}

template <class S>
void embedding(const Operation& op) {
  const auto [tokens, h, vocab, a, b, c, d] = op.call().sizes;
  const Matrix<S> table = load<S>(op.reads[1], vocab, h);
  Matrix<S> y(tokens, h);
  for (std::int64_t t = 0; t < tokens; ++t) y.row(t) = table.row(indices(op.reads[0])[t]);
  store(op.writes[0], y);
}

template <class S>
void embedding_backward(const Operation& op) {
  const auto [tokens, h, vocab, add, a, b, c] = op.call().sizes;
  const Matrix<S> dy = load<S>(op.reads[0], tokens, h);
  Matrix<S> table = Matrix<S>::Zero(vocab, h);
  for (std::int64_t t = 0; t < tokens; ++t) table.row(indices(op.reads[1])[t]) += dy.row(t);
  store_or_add(op.writes[0], table, add != 0);
}

template <class S>
void add(const Operation& op) {
  const std::int64_t n = op.call().sizes[0];
  store(op.writes[0], load<S>(op.reads[0], 1, n) + load<S>(op.reads[1], 1, n));
}

// p = softmax(logits); loss = -log p[label]; d logits = (p - onehot) scale
template <class S>
void cross_entropy(const Operation& op) {
  const auto [rows, vocab, first, a, b, c, d] = op.call().sizes;
  const auto scale = static_cast<S>(op.call().scalars[0]);
  Matrix<S> logits = load<S>(op.reads[0], rows, vocab);
  double loss = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t label = indices(op.reads[1])[r];
    const S highest = logits.row(r).maxCoeff();
    const S lse = highest + std::log((logits.row(r).array() - highest).exp().sum());
    loss += static_cast<double>(lse - logits(r, label));
    logits.row(r) = ((logits.row(r).array() - lse).exp() * scale).matrix();
    logits(r, label) -= scale;
  }
  store(op.writes[0], logits);
  const auto scaled = static_cast<float>(loss * op.call().scalars[0]);
  float& total = singles(op.writes[1])[0];
  total = first ? scaled : total + scaled;
  singles(op.writes[2])[report_slot::loss] += scaled;
}

#define INSTANTIATE(S)                                   \
  template void product<S>(const Operation&);            \
  template void grouped_product<S>(const Operation&);    \
  template void embedding<S>(const Operation&);          \
  template void embedding_backward<S>(const Operation&); \
  template void add<S>(const Operation&);                \
  template void cross_entropy<S>(const Operation&);
INSTANTIATE(float)
INSTANTIATE(double)
#undef INSTANTIATE

}  // namespace plimsoll::host
