// Operands as Eigen matrices: loaded wide, computed, stored back rounded once.  fp32 operands are computed in fp32.  bf16 ones
// are computed in fp64: sums of products of 8-bit significands are then exact as far as a device's fp32 sums ever matter, so
// that results do not depend on the order of summation, nor on how rows are spread over ranks.
#pragma once

#include <Eigen/Core>

#include "runtime/core/backend.hpp"
#include "runtime/core/number.hpp"

namespace plimsoll {

template <class S>
using Matrix = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class S>
using Row = Eigen::Matrix<S, 1, Eigen::Dynamic>;

template <class S>
Matrix<S> load(const Operand& operand, std::int64_t rows, std::int64_t columns, std::int64_t first = 0) {
  CHECK(first + rows * columns <= operand.numel, "an operand reaches beyond its buffer");
  const std::byte* data = operand.data + first * size_of(operand.dtype);
  Matrix<S> result(rows, columns);
  S* out = result.data();
  const std::int64_t numel = rows * columns;
  if (operand.dtype == DType::fp32) {
    const auto* in = reinterpret_cast<const float*>(data);
    for (std::int64_t i = 0; i < numel; ++i) out[i] = static_cast<S>(in[i]);
  } else {
    CHECK(operand.dtype == DType::bf16, "matrices are bf16 or fp32");
    const auto* in = reinterpret_cast<const std::uint16_t*>(data);
    for (std::int64_t i = 0; i < numel; ++i) out[i] = static_cast<S>(from_bf16(in[i]));
  }
  return result;
}

template <class Derived>
void store(const Operand& operand, const Eigen::MatrixBase<Derived>& values, std::int64_t first = 0) {
  using S = typename Derived::Scalar;
  const Matrix<S> rows = values;
  CHECK(first + rows.size() <= operand.numel, "an operand reaches beyond its buffer");
  std::byte* data = operand.data + first * size_of(operand.dtype);
  if (operand.dtype == DType::fp32) {
    auto* out = reinterpret_cast<float*>(data);
    for (std::int64_t i = 0; i < rows.size(); ++i) out[i] = static_cast<float>(rows.data()[i]);
  } else {
    CHECK(operand.dtype == DType::bf16, "matrices are bf16 or fp32");
    auto* out = reinterpret_cast<std::uint16_t*>(data);
    for (std::int64_t i = 0; i < rows.size(); ++i) out[i] = to_bf16(rows.data()[i]);
  }
}

/// Stores, or adds to what stands there.
template <class Derived>
void store_or_add(const Operand& operand, const Eigen::MatrixBase<Derived>& values, bool add, std::int64_t first = 0) {
  using S = typename Derived::Scalar;
  if (!add) return store(operand, values, first);
  store(operand, load<S>(operand, values.rows(), values.cols(), first) + values, first);
}

inline const std::int32_t* integers(const Operand& operand) {
  return reinterpret_cast<const std::int32_t*>(operand.data);
}
inline std::int32_t* mutable_integers(const Operand& operand) { return reinterpret_cast<std::int32_t*>(operand.data); }
inline const std::int64_t* indices(const Operand& operand) {
  return reinterpret_cast<const std::int64_t*>(operand.data);
}
inline float* singles(const Operand& operand) { return reinterpret_cast<float*>(operand.data); }

}  // namespace plimsoll
