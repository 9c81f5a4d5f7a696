// Are the tables of a step program as small as they can be (planner/step/autograd/trace.hpp)?
#include <gtest/gtest.h>

#include "planner/step/autograd/trace.hpp"

namespace plimsoll {
namespace {

// More kernels than the index has room for at first, each launched again after all others.
TEST(Trace, LaunchesOfEqualSizesShareTheirKernel) {
  constexpr std::int64_t distinct = 5000;
  RankProgram program;
  Trace trace(program);
  for (int time = 0; time < 2; ++time) {
    for (std::int64_t i = 0; i < distinct; ++i)
      trace.compute(Kernel::pointwise(KernelKind::vectorized, DType::bf16, i, Bytes(4 * i)), {}, {}, "op");
  }
  ASSERT_EQ(program.kernels.size(), distinct);
  for (OpId id = 0; id < program.ops.size(); ++id)
    EXPECT_EQ(program.kernels[std::get<Compute>(program.ops[id].action).kernel].elements, id % distinct);
}

TEST(Trace, LaunchesOfCompiledCodeHaveAKernelOfTheirOwn) {
  RankProgram program;
  Trace trace(program);
  const Kernel kernel = Kernel::gemm(64, 64, 64, DType::bf16);
  trace.compute(kernel, {}, {}, "op");
  trace.compiled = true;
  trace.compute(kernel, {}, {}, "op");
  ASSERT_EQ(program.kernels.size(), 2);
  EXPECT_FALSE(program.kernels[0].compiled);
  EXPECT_TRUE(program.kernels[1].compiled);
}

}  // namespace
}  // namespace plimsoll
