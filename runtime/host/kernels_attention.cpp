// Causal grouped-query attention, head by head, with the scores in memory (runtime/host/kernels.hpp).
//   P = softmax(Q K^T / sqrt(d)) over the keys up to the query's own position;  O = P V;  lse = log of the row sums
//   dV = P^T dO;  dP = dO V^T;  dS = P (dP - rowsum(dO O));  dQ = dS K / sqrt(d);  dK = dS^T Q / sqrt(d)
#include "runtime/host/kernels.hpp"
#include "runtime/host/matrix.hpp"

namespace plimsoll::host {

namespace {

template <class S>
struct Heads {
  std::int64_t batch, sequence, q, kv, d;
  explicit Heads(const Call& call)
      : batch(call.sizes[0]), sequence(call.sizes[1]), q(call.sizes[2]), kv(call.sizes[3]), d(call.sizes[4]) {}
  std::int64_t width() const { return (q + 2 * kv) * d; }
  std::int64_t key(std::int64_t head) const { return (q + head / (q / kv)) * d; }
  std::int64_t value(std::int64_t head) const { return (q + kv + head / (q / kv)) * d; }
  S scale() const { return S(1) / std::sqrt(static_cast<S>(d)); }

  /// Scores of one head, without softmax; keys behind the query are at minus infinity.
  Matrix<S> scores(const Matrix<S>& qkv, std::int64_t head) const {
    Matrix<S> s = qkv.middleCols(head * d, d) * qkv.middleCols(key(head), d).transpose() * scale();
    for (std::int64_t i = 0; i < sequence; ++i)
      s.row(i).tail(sequence - 1 - i).setConstant(-std::numeric_limits<S>::infinity());
    return s;
  }
};

}  // namespace

template <class S>
void attention(const Operation& op) {
  const Heads<S> heads(op.call());
  for (std::int64_t b = 0; b < heads.batch; ++b) {
    const Matrix<S> qkv = load<S>(op.reads[0], heads.sequence, heads.width(), b * heads.sequence * heads.width());
    Matrix<S> out(heads.sequence, heads.q * heads.d), lse(heads.sequence, heads.q);
    for (std::int64_t head = 0; head < heads.q; ++head) {
      Matrix<S> p = heads.scores(qkv, head);
      for (std::int64_t i = 0; i < heads.sequence; ++i) {
        const S highest = p.row(i).maxCoeff();
        lse(i, head) = highest + std::log((p.row(i).array() - highest).exp().sum());
        p.row(i) = (p.row(i).array() - lse(i, head)).exp().matrix();
      }
      out.middleCols(head * heads.d, heads.d) = p * qkv.middleCols(heads.value(head), heads.d);
    }
    store(op.writes[0], out, b * out.size());
    store(op.writes[1], lse, b * lse.size());
  }
}

template <class S>
void attention_backward(const Operation& op) {
  const Heads<S> heads(op.call());
  const std::int64_t s = heads.sequence, d = heads.d;
  for (std::int64_t b = 0; b < heads.batch; ++b) {
    const Matrix<S> qkv = load<S>(op.reads[1], s, heads.width(), b * s * heads.width());
    const Matrix<S> d_out = load<S>(op.reads[0], s, heads.q * d, b * s * heads.q * d);
    const Matrix<S> lse = load<S>(op.reads[2], s, heads.q, b * s * heads.q);
    const Matrix<S> out = load<S>(op.reads[3], s, heads.q * d, b * s * heads.q * d);
    Matrix<S> gradient = Matrix<S>::Zero(s, heads.width());
    for (std::int64_t head = 0; head < heads.q; ++head) {
      const Matrix<S> p = (heads.scores(qkv, head).colwise() - lse.col(head)).array().exp().matrix();
      const Matrix<S> d_head = d_out.middleCols(head * d, d);
      const Eigen::Matrix<S, Eigen::Dynamic, 1> dot = d_head.cwiseProduct(out.middleCols(head * d, d)).rowwise().sum();
      const Matrix<S> d_p = d_head * qkv.middleCols(heads.value(head), d).transpose();
      const Matrix<S> d_s = (p.array() * (d_p.array().colwise() - dot.array()) * heads.scale()).matrix();
      gradient.middleCols(heads.value(head), d) += p.transpose() * d_head;
      gradient.middleCols(head * d, d) = d_s * qkv.middleCols(heads.key(head), d);
      gradient.middleCols(heads.key(head), d) += d_s.transpose() * qkv.middleCols(head * d, d);
    }
    store(op.writes[0], gradient, b * gradient.size());
  }
}

template void attention<float>(const Operation&);
template void attention<double>(const Operation&);
template void attention_backward<float>(const Operation&);
template void attention_backward<double>(const Operation&);

}  // namespace plimsoll::host
