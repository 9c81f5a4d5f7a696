// Which unit does a number have?  Bytes, Elements, Flops, Seconds and BytesPerSecond are distinct types, so that elements
// are never added to bytes.  Bytes and Elements are exact 64-bit integers; the readers bound every input so that no
// product of them overflows (planner/spec/limits.hpp).
#pragma once

#include <compare>
#include <cstdint>

namespace plimsoll {

/// A number of one unit.  Quantities of the same unit add, compare and divide into a plain ratio.
template <class Unit, class Value>
struct Quantity {
  Value count{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Value value) : count(value) {}
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) {
    count += other.count;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    count -= other.count;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.count + b.count); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.count - b.count); }
  friend constexpr Quantity operator*(Quantity a, Value factor) { return Quantity(a.count * factor); }
  friend constexpr Quantity operator*(Value factor, Quantity a) { return Quantity(a.count * factor); }
  friend constexpr Quantity operator/(Quantity a, Value divisor) { return Quantity(a.count / divisor); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.count) / static_cast<double>(b.count);
  }
};

using Bytes = Quantity<struct BytesUnit, std::int64_t>;
using Elements = Quantity<struct ElementsUnit, std::int64_t>;
using Flops = Quantity<struct FlopsUnit, double>;
using Seconds = Quantity<struct SecondsUnit, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondUnit, double>;

/// Type of an element in memory.
enum class DType : std::uint8_t { bf16, fp16, fp32, fp64, int64, int32, int8, boolean };

constexpr std::int64_t size_of(DType type) {
  switch (type) {
    case DType::bf16:
    case DType::fp16: return 2;
    case DType::fp32:
    case DType::int32: return 4;
    case DType::fp64:
    case DType::int64: return 8;
    case DType::int8:
    case DType::boolean: return 1;
  }
  return 0;
}

constexpr const char* name_of(DType type) {
  switch (type) {
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
    case DType::fp32: return "fp32";
    case DType::fp64: return "fp64";
    case DType::int64: return "int64";
    case DType::int32: return "int32";
    case DType::int8: return "int8";
    case DType::boolean: return "bool";
  }
  return "";
}

constexpr Bytes operator*(Elements elements, DType type) { return Bytes(elements.count * size_of(type)); }

/// ceil(a / b) for a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// The least multiple of b that is not below a, for a >= 0, b > 0.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace plimsoll
