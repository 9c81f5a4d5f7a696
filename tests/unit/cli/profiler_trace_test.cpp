// Reading profiler traces: classes by name, what is refused and where, and a step told in busy, idle and exposed time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/cli/kineto_comparison.hpp"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const SourceFile> file_of(std::string text) {
  auto file = std::make_shared<SourceFile>();
  file->name = "trace.json";
  file->text = std::move(text);
  return file;
}

std::string kernel(const std::string& name, double start, double duration) {
  return R"({"ph": "X", "cat": "kernel", "name": ")" + name + R"(", "ts": )" + std::to_string(start) + R"(, "dur": )" +
         std::to_string(duration) + R"(, "args": {"stream": 7, "ts": -5}})";
}

std::string trace_of(const std::string& events) { return "{\"traceEvents\": [" + events + "]}"; }

Diagnostic refusal_of(const std::string& text) {
  const auto trace = read_profiler_trace(file_of(text));
  EXPECT_FALSE(trace);
  return trace ? Diagnostic{} : trace.diagnostics().front();
}

TEST(ProfilerTrace, KernelsAreToldByTheTemplateOrLibraryInTheirNames) {
  EXPECT_EQ(class_of("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"), OpClass::gemm);
  EXPECT_EQ(class_of("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), OpClass::all_gather);
  EXPECT_EQ(class_of("void at::native::vectorized_elementwise_kernel<4, ...>"), OpClass::contiguous);
  EXPECT_EQ(class_of("void at::native::unrolled_elementwise_kernel<...>"), OpClass::upcast);
  EXPECT_EQ(class_of("void at::native::elementwise_kernel<128, 4, ...>"), OpClass::strided);
  EXPECT_EQ(class_of("multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<...>, Copy<...>>"),
            OpClass::sharding);
  EXPECT_EQ(class_of("multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<...>>"),
            OpClass::adamw);
  EXPECT_EQ(class_of("something new"), OpClass::small);
}

TEST(ProfilerTrace, OnlyWhatRunsOnTheDeviceIsKept) {
  const auto trace = read_profiler_trace(file_of(
      trace_of(R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2},)" + kernel("nvjet_a", 10, 5) +
               "," + R"({"ph": "X", "cat": "gpu_memset", "name": "Memset", "ts": 8, "dur": 1, "args": {}})")));
  ASSERT_TRUE(trace);
  ASSERT_EQ(trace->kernels.size(), 2U);
  EXPECT_DOUBLE_EQ(trace->kernels[0].start_us, 8);  // in order of the starts
  EXPECT_DOUBLE_EQ(trace->kernels[1].end_us, 15);
}

TEST(ProfilerTrace, ATraceThatBreaksOffSaysWhere) {
  const Diagnostic cut = refusal_of("{\"traceEvents\": [\n" + kernel("nvjet_a", 1, 1) + ",\n{\"ph\": \"X\", \"ca");
  EXPECT_EQ(cut.code, "kineto.json");
  EXPECT_EQ(cut.place.line, 3);
  EXPECT_THAT(cut.message, HasSubstr("breaks off"));
}

TEST(ProfilerTrace, FilesOfOtherProgramsAreRefused) {
  EXPECT_EQ(refusal_of("{\"live_before\": 0, \"events\": []}").code, "kineto.form");
  EXPECT_EQ(refusal_of("[1, 2, 3]").code, "kineto.form");
  EXPECT_EQ(refusal_of("").code, "kineto.json");
  EXPECT_EQ(refusal_of(trace_of(R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2})")).code,
            "kineto.empty");
}

TEST(ProfilerTrace, KernelsWithoutTimesAreNamedByTheirPointers) {
  const Diagnostic broken = refusal_of(trace_of(kernel("nvjet_a", 1, 1) + "," + kernel("nvjet_a", 1, -1)));
  EXPECT_EQ(broken.code, "kineto.event");
  EXPECT_EQ(broken.place.pointer, "/traceEvents/1");
}

// Two kernels with a gap of 3 us; a collective covers the gap but for 1 us and runs on for 2.
TEST(KinetoComparison, BusyIdleAndExposedTimeOfTheDevice) {
  const auto trace = read_profiler_trace(file_of(trace_of(
      kernel("nvjet_a", 0, 10) + "," + kernel("ncclDevKernel_AllGather", 11, 6) + "," + kernel("nvjet_a", 13, 2))));
  ASSERT_TRUE(trace);
  const DeviceUse use = use_of(*trace);
  EXPECT_NEAR(use.span_s, 17e-6, 1e-12);
  EXPECT_NEAR(use.idle_s, 1e-6, 1e-12);
  EXPECT_NEAR(use.exposed_s, 4e-6, 1e-12);  // 11 to 13 and 15 to 17
  EXPECT_NEAR(use.compute().seconds, 12e-6, 1e-12);
  EXPECT_EQ(use.of(OpClass::gemm).launches, 2);
}

// 30 us of three launches and the gaps of 2 us between them.
TEST(KinetoComparison, GapsBetweenTheLaunchesOfOneOpAreNoKernels) {
  RankProgram program;
  Kernel kernel = Kernel::pointwise(KernelKind::sort_pass, DType::int64, 8, Bytes(0));
  kernel.launches = 3;
  program.kernels.push_back(kernel);
  program.ops.emplace_back().action = Compute{0};
  Timeline timeline;
  timeline.kernel_gap = to_sim(2e-6);
  TimedOp& op = timeline.ops.emplace_back();
  op.end = to_sim(30e-6);
  const DeviceUse use = use_of(timeline, program);
  EXPECT_NEAR(use.compute().seconds, 26e-6, 1e-12);
  EXPECT_EQ(use.compute().launches, 3);
}

}  // namespace
}  // namespace plimsoll
