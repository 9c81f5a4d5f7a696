// Norms, rotary embedding, activation (runtime/host/kernels.hpp).
#include "runtime/host/kernels.hpp"
#include "runtime/host/matrix.hpp"

namespace plimsoll::host {

namespace {

/// d/dx of y = x r w with r = 1 / sqrt(mean(x^2) + eps), n elements: r (g - xhat mean(xhat g)), g = w dy, xhat = x r.
template <class S>
Row<S> norm_gradient(const Row<S>& x, const Row<S>& dy, const Row<S>& w, S r) {
  const Row<S> g = w.cwiseProduct(dy), hat = x * r;
  return r * (g - hat * (hat.dot(g) / static_cast<S>(x.size())));
}

/// Pairs (i, i + d/2) of a head turned by position times frequency i; backwards by the opposite angle.
template <class S>
void turn(Eigen::Ref<Row<S>> head, std::int64_t position, const double* frequencies, bool back) {
  const std::int64_t half = head.size() / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i] * (back ? -1 : 1);
    const S c = static_cast<S>(std::cos(angle)), s = static_cast<S>(std::sin(angle));
    const S first = head(i), second = head(i + half);
    head(i) = first * c - second * s;
    head(i + half) = second * c + first * s;
  }
}

}  // namespace

template <class S>
void norm(const Operation& op) {
  const auto [rows, h, branch, a, b, c, d] = op.call().sizes;
  const auto eps = static_cast<S>(op.call().scalars[0]);
  Matrix<S> stream = load<S>(op.reads[0], rows, h);
  if (branch) {
    stream += load<S>(op.reads[1], rows, h);
    store(op.writes[0], stream);
    stream = load<S>(op.writes[0], rows, h);  // what goes on is what was rounded
  }
  const Row<S> w = load<S>(op.reads[branch ? 2 : 1], 1, h);
  Matrix<S> rstd(rows, 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    rstd(r) = S(1) / std::sqrt(stream.row(r).squaredNorm() / static_cast<S>(h) + eps);
    stream.row(r) = (stream.row(r) * rstd(r)).cwiseProduct(w);
  }
  store(op.writes[branch ? 1 : 0], stream);
  store(op.writes[branch ? 2 : 1], rstd);
}

template <class S>
void norm_backward(const Operation& op) {
  const auto [rows, h, has_stream, add, b, c, d] = op.call().sizes;
  const std::size_t at = has_stream ? 2 : 1;
  const Matrix<S> dy = load<S>(op.reads[0], rows, h), stream = load<S>(op.reads[at], rows, h);
  const Matrix<S> rstd = load<S>(op.reads[at + 1], rows, 1);
  const Row<S> w = load<S>(op.reads[at + 2], 1, h);
  Matrix<S> dx = has_stream ? load<S>(op.reads[1], rows, h) : Matrix<S>::Zero(rows, h);
  Row<S> dw = Row<S>::Zero(h);
  for (std::int64_t r = 0; r < rows; ++r) {
    dx.row(r) += norm_gradient<S>(stream.row(r), dy.row(r), w, rstd(r));
    dw += dy.row(r).cwiseProduct(stream.row(r)) * rstd(r);
  }
  store(op.writes[0], dx);
  store_or_add(op.writes[1], dw, add != 0);
}

template <class S>
void rotary(const Operation& op) {
  const auto [tokens, q, kv, d, sequence, constant, back] = op.call().sizes;
  const double* frequencies = op.program.constants.data() + constant;
  Matrix<S> heads = load<S>(op.reads[0], tokens, (q + 2 * kv) * d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t head = 0; head < q + kv; ++head)
      turn<S>(heads.row(t).segment(head * d, d), t % sequence, frequencies, back != 0);
  }
  store(op.writes[0], heads);
}

template <class S>
void head_norm_rotary(const Operation& op) {
  const auto [tokens, q, kv, d, sequence, constant, unused] = op.call().sizes;
  const auto eps = static_cast<S>(op.call().scalars[0]);
  const double* frequencies = op.program.constants.data() + constant;
  Matrix<S> heads = load<S>(op.reads[0], tokens, (q + 2 * kv) * d);
  const Row<S> wq = load<S>(op.reads[1], 1, d), wk = load<S>(op.reads[2], 1, d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t head = 0; head < q + kv; ++head) {
      auto x = heads.row(t).segment(head * d, d);
      const S r = S(1) / std::sqrt(x.squaredNorm() / static_cast<S>(d) + eps);
      x = (x * r).cwiseProduct(head < q ? wq : wk).eval();
      turn<S>(heads.row(t).segment(head * d, d), t % sequence, frequencies, false);
    }
  }
  store(op.writes[0], heads);
}

template <class S>
void head_norm_rotary_backward(const Operation& op) {
  const auto [tokens, q, kv, d, sequence, constant, add] = op.call().sizes;
  const auto eps = static_cast<S>(op.call().scalars[0]);
  const double* frequencies = op.program.constants.data() + constant;
  Matrix<S> gradient = load<S>(op.reads[0], tokens, (q + 2 * kv) * d);
  const Matrix<S> heads = load<S>(op.reads[1], tokens, (q + 2 * kv) * d);
  const Row<S> wq = load<S>(op.reads[2], 1, d), wk = load<S>(op.reads[3], 1, d);
  Row<S> dwq = Row<S>::Zero(d), dwk = Row<S>::Zero(d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t head = 0; head < q + kv; ++head) {
      turn<S>(gradient.row(t).segment(head * d, d), t % sequence, frequencies, true);
      const Row<S> dy = gradient.row(t).segment(head * d, d), x = heads.row(t).segment(head * d, d);
      const S r = S(1) / std::sqrt(x.squaredNorm() / static_cast<S>(d) + eps);
      (head < q ? dwq : dwk) += dy.cwiseProduct(x) * r;
      gradient.row(t).segment(head * d, d) = norm_gradient<S>(x, dy, head < q ? wq : wk, r);
    }
  }
  store(op.writes[0], gradient);
  store_or_add(op.writes[1], dwq, add != 0);
  store_or_add(op.writes[2], dwk, add != 0);
}

namespace {

/// Rows that hold something: all, or as many as the last operand read counts.
std::int64_t rows_of(const Operation& op) {
  const std::int64_t rows = op.call().sizes[0], counts = op.call().sizes[3];
  if (counts == 0) return rows;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < counts; ++i) counted += integers(op.reads.back())[i];
  return counted;
}

}  // namespace

// y = silu(g) u weight, silu(g) = g / (1 + exp(-g))
template <class S>
void swiglu(const Operation& op) {
  const std::int64_t rows = rows_of(op), width = op.call().sizes[1];
  const bool weighted = op.call().sizes[2] != 0;
  const Matrix<S> joined = load<S>(op.reads[0], rows, 2 * width);
  const auto gate = joined.leftCols(width).array(), up = joined.rightCols(width).array();
  Matrix<S> y = (gate / (S(1) + (-gate).exp()) * up).matrix();
  if (weighted) y.array().colwise() *= load<S>(op.reads[1], rows, 1).col(0).array();
  store(op.writes[0], y);
}

// d silu = s (1 + g (1 - s)), s = 1 / (1 + exp(-g)); the weight's gradient is the row's dot product of dy and silu(g) u
template <class S>
void swiglu_backward(const Operation& op) {
  const std::int64_t rows = rows_of(op), width = op.call().sizes[1];
  const bool weighted = op.call().sizes[2] != 0;
  Matrix<S> dy = load<S>(op.reads[0], rows, width);
  const Matrix<S> joined = load<S>(op.reads[1], rows, 2 * width);
  const auto gate = joined.leftCols(width).array(), up = joined.rightCols(width).array();
  const Eigen::Array<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> sigmoid = S(1) / (S(1) + (-gate).exp());
  if (weighted) {
    const Matrix<S> weights = load<S>(op.reads[2], rows, 1);
    store(op.writes[1], Matrix<S>((dy.array() * gate * sigmoid * up).rowwise().sum().matrix()));
    dy.array().colwise() *= weights.col(0).array();
  }
  Matrix<S> d(rows, 2 * width);
  d.leftCols(width) = (dy.array() * up * sigmoid * (S(1) + gate * (S(1) - sigmoid))).matrix();
  d.rightCols(width) = (dy.array() * gate * sigmoid).matrix();
  store(op.writes[0], d);
}

#define INSTANTIATE(S)                                          \
  template void norm<S>(const Operation&);                      \
  template void norm_backward<S>(const Operation&);             \
  template void rotary<S>(const Operation&);                    \
  template void head_norm_rotary<S>(const Operation&);          \
  template void head_norm_rotary_backward<S>(const Operation&); \
  template void swiglu<S>(const Operation&);                    \
  template void swiglu_backward<S>(const Operation&);
INSTANTIATE(float)
INSTANTIATE(double)
#undef INSTANTIATE

}  // namespace plimsoll::host
