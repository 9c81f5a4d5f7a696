// bf16 and fp32 numbers in memory, read as and rounded from wider ones.  bf16 is the upper half of an fp32, rounded to the
// nearest, ties to even: the emulation of a device's arithmetic that computes in fp32 and stores 16 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "planner/base/check.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Rounded once from fp64: by way of fp32 rounded to odd, so that the second rounding sees the first one's remainder.
inline std::uint16_t to_bf16(double value) {
  auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value && std::isfinite(narrow)) {
    auto bits = std::bit_cast<std::uint32_t>(narrow);
    if (std::abs(static_cast<double>(narrow)) > std::abs(value)) --bits;  // towards zero
    narrow = std::bit_cast<float>(bits | 1);
  }
  return to_bf16(narrow);
}

inline double number_at(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::fp32) {
    float value;
    std::memcpy(&value, data + 4 * i, 4);
    return static_cast<double>(value);
  }
  if (dtype == DType::int32) {
    std::int32_t value;
    std::memcpy(&value, data + 4 * i, 4);
    return static_cast<double>(value);
  }
  CHECK(dtype == DType::bf16, "numbers of this type are not computed with");
  std::uint16_t bits;
  std::memcpy(&bits, data + 2 * i, 2);
  return static_cast<double>(from_bf16(bits));
}

inline void set_number(std::byte* data, DType dtype, std::int64_t i, double value) {
  if (dtype == DType::fp32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(data + 4 * i, &narrow, 4);
    return;
  }
  if (dtype == DType::int32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(data + 4 * i, &whole, 4);
    return;
  }
  CHECK(dtype == DType::bf16, "numbers of this type are not computed with");
  const std::uint16_t bits = to_bf16(value);
  std::memcpy(data + 2 * i, &bits, 2);
}

}  // namespace plimsoll
