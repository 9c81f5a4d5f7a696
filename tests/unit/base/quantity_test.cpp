// Do quantities keep their units and their exactness?
#include "planner/base/quantity.hpp"

#include <gtest/gtest.h>

#include <concepts>
#include <type_traits>

namespace plimsoll {
namespace {

template <class A, class B>
concept can_add = requires(A a, B b) {
  a + b;
};

TEST(Quantity, OfOneUnitAddsComparesAndScales) {
  Bytes bytes(10);
  bytes += Bytes(5);
  bytes -= Bytes(1);
  EXPECT_EQ(bytes, Bytes(14));
  EXPECT_EQ(bytes * 3, Bytes(42));
  EXPECT_EQ(3 * bytes, Bytes(42));
  EXPECT_EQ(bytes / 4, Bytes(3));  // whole bytes
  EXPECT_LT(Bytes(-1), Bytes(0));
  EXPECT_DOUBLE_EQ(Bytes(3) / Bytes(4), 0.75);
}

TEST(Quantity, OfDifferentUnitsDoesNotMix) {
  static_assert(can_add<Bytes, Bytes>);
  static_assert(!can_add<Bytes, Elements>);
  static_assert(!can_add<Bytes, int>);
  static_assert(!std::convertible_to<std::int64_t, Bytes>);
}

TEST(Quantity, ElementsOfATypeAreBytes) {
  EXPECT_EQ(Elements(7'000'000'000) * DType::bf16, Bytes(14'000'000'000));
  EXPECT_EQ(Elements(3) * DType::fp16, Bytes(6));
  EXPECT_EQ(Elements(3) * DType::fp32, Bytes(12));
  EXPECT_EQ(Elements(3) * DType::fp64, Bytes(24));
  EXPECT_EQ(Elements(3) * DType::int64, Bytes(24));
  EXPECT_EQ(Elements(3) * DType::int32, Bytes(12));
  EXPECT_EQ(Elements(3) * DType::int8, Bytes(3));
  EXPECT_EQ(Elements(3) * DType::boolean, Bytes(3));
}

TEST(Rounding, GoesUp) {
  EXPECT_EQ(ceil_div(0, 8), 0);
  EXPECT_EQ(ceil_div(1, 8), 1);
  EXPECT_EQ(ceil_div(8, 8), 1);
  EXPECT_EQ(ceil_div(9, 8), 2);
  EXPECT_EQ(round_up(0, 512), 0);
  EXPECT_EQ(round_up(513, 512), 1024);
  EXPECT_EQ(round_up(512, 512), 512);
}

}  // namespace
}  // namespace plimsoll
