// Do logs become the samples that they hold, and is what they hold beside them counted?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "calibrate/import/import.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/calibrate/shell.hpp"

namespace plimsoll::calibrate {
namespace {

const char* all_gather_log =
    R"(# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  17 on    node01 device  0 [0x1b] NVIDIA H100 80GB HBM3
node01:17:17 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
#  Rank  1 Group  0 Pid  18 on    node01 device  1 [0x43] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072  bfloat16    none      -1    20.00   52.43   26.21      0    19.00   55.19   27.59      0
node01:18:18 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
[1,0]<stdout>:     2097152        262144  bfloat16    none      -1    30.00   69.91   34.95      0    29.00   72.32   36.16    N/A
     4194304        524288  bfloat16    none      -1    50.00   83.89   41.94      3    0.00   83.89   41.94      0
     8388608       1048576  bfloat16    none      -1    0.090   93.21   46.60      0
)";

std::map<std::string, double> times(const Imported& imported) {
  std::map<std::string, double> result;
  for (const Sample& s : imported.samples) result[key_of(s.point)] = s.time_s;
  return result;
}

TEST(NcclTests, RowsAmidNoiseBecomeSamples) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("all_gather_perf.log", all_gather_log);
  EXPECT_EQ(kind_of_log(path), LogKind::nccl_tests);
  const auto imported = import_nccl_tests(path, {});
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->header.device, "h100");
  EXPECT_EQ(imported->header.world, 2);
  const auto found = times(*imported);
  ASSERT_EQ(found.size(), 4U);
  const std::string key = "collective/dtype=bf16/group=world/op=all_gather/place=";
  EXPECT_DOUBLE_EQ(found.at(key + "out/tier=nvlink/bytes=1048576/ranks=2"), 20e-6);
  EXPECT_DOUBLE_EQ(found.at(key + "in/tier=nvlink/bytes=2097152/ranks=2"), 29e-6);
  EXPECT_EQ(imported->leftovers.at("NCCL_DEBUG lines"), 2);
}

TEST(NcclTests, WrongValuesZeroTimesAndOtherUnitsAreNamedByLine) {
  const test::TemporaryFolder folder;
  const auto imported = import_nccl_tests(folder.write("all_gather_perf.log", all_gather_log), {});
  ASSERT_TRUE(imported);
  std::vector<std::string> codes;
  for (const Diagnostic& d : imported.diagnostics()) codes.push_back(d.code + ":" + std::to_string(d.place.line));
  // 0.090 is milliseconds: the row's own bandwidth contradicts it.
  EXPECT_THAT(codes, testing::ElementsAre("import.wrong:12", "import.time:12", "import.units:13"));
}

TEST(NcclTests, AnUnnamedCollectiveIsToldByItsBusFactorOrAskedFor) {
  const test::TemporaryFolder folder;
  const std::string rows =
      "  268435456  67108864  float  sum  -1  1000.0  268.44  503.32  0  1000.0  268.44  503.32  0\n";
  const auto reduced = import_nccl_tests(folder.write("a.log", "# algbw\n" + rows), {});
  ASSERT_TRUE(reduced);
  EXPECT_EQ(reduced->samples.front().point.label("op"), "all_reduce");
  EXPECT_EQ(reduced->samples.front().point.size("ranks"), 16);  // 503.32 / 268.44 = 1.875 = 2 * 15 / 16
  EXPECT_EQ(reduced->samples.front().point.label("dtype"), "fp32");
  const auto unknown = import_nccl_tests(
      folder.write(
          "b.log",
          "# algbw\n  268435456  67108864  half  none  -1  1000.0  268.44  234.88  0  1000.0  268.44  234.88  0\n"),
      {});
  ASSERT_FALSE(unknown);
  const auto told = import_nccl_tests(folder.path("b.log"), {.op = "reduce_scatter", .tier = "", .device = ""});
  ASSERT_TRUE(told);
  EXPECT_EQ(told->samples.front().point.size("ranks"), 8);
}

/// A trace of two products (one beside a collective), attention, a collective twice, and a kernel of another operator.
const char* const trace =
    R"json({"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H200","totalGlobalMem":150109880320,"numSms":132}],
"traceEvents":[
{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":5,"args":{"External id":1,"Input Dims":[[8192,4096],[4096,11008]],"Input Strides":[[4096,1],[1,4096]],"Input type":["c10::BFloat16","c10::BFloat16"]}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":2,"dur":5,"args":{"External id":2,"Input Dims":[[11008,8192],[8192,4096]],"Input Strides":[[1,11008],[4096,1]],"Input type":["c10::BFloat16","c10::BFloat16"]}},
{"ph":"X","cat":"cpu_op","name":"aten::_cudnn_attention_forward","ts":3,"dur":5,"args":{"External id":3,"Input Dims":[[2,32,4096,128],[2,8,4096,128],[2,8,4096,128],[],[]],"Input type":["c10::BFloat16","c10::BFloat16","c10::BFloat16","","Scalar"]}},
{"ph":"X","cat":"kernel","name":"nvjet","ts":100,"dur":900.5,"args":{"External id":1,"stream":7}},
{"ph":"X","cat":"kernel","name":"nvjet","ts":1002,"dur":990,"args":{"External id":2,"stream":7}},
{"ph":"X","cat":"kernel","name":"cudnn","ts":3000,"dur":500,"args":{"External id":3,"stream":7}},
{"ph":"X","cat":"kernel","name":"elementwise","ts":3501,"dur":10,"args":{"External id":9,"stream":7}},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL(x)","ts":1500,"dur":1000,"args":{"External id":20,"stream":22,"Collective name":"_allgather_base","In msg nelems":131335168,"Out msg nelems":262670336,"Group size":2,"dtype":"BFloat16"}},
{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL(x)","ts":5000,"dur":1100,"args":{"External id":21,"stream":22,"Collective name":"_allgather_base","In msg nelems":131335168,"Out msg nelems":262670336,"Group size":2,"dtype":"BFloat16"}})json";

TEST(Kineto, KernelsByShapeAndCollectivesBySize) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("t.json", std::string(trace) + "]}");
  EXPECT_EQ(kind_of_log(path), LogKind::kineto);
  const auto imported = import_kineto(path, {});
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->header.device, "h200");
  EXPECT_EQ(imported->header.multiprocessors, 132);
  const auto found = times(*imported);
  EXPECT_NEAR(found.at("gemm/dtype=bf16/layout=forward/k=4096/m=8192/n=11008"), 900.5e-6, 1e-12);
  EXPECT_NEAR(
      found.at("attention/direction=forward/dtype=bf16/library=cudnn/batch=64/head_dim=128/kv_batch=16/length=4096"),
      500e-6, 1e-12);
  EXPECT_NEAR(found.at("collective/dtype=bf16/group=trace/op=all_gather/tier=nvlink/bytes=525340672/ranks=2"), 1e-3,
              1e-12);
  EXPECT_EQ(found.size(), 3U) << "the product beside the all-gather is no time of a product alone";
  EXPECT_EQ(imported->leftovers.at("products and attention beside a collective"), 1);
  EXPECT_EQ(imported->leftovers.at("kernels of other operators"), 1);
}

TEST(Kineto, ATraceCutShortIsUsedUpToThereAndSaid) {
  const test::TemporaryFolder folder;
  const auto imported = import_kineto(folder.write("t.json", std::string(trace) + ",{\"ph\":\"X\",\"cat"), {});
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->samples.size(), 3U);
  ASSERT_EQ(imported.diagnostics().size(), 1U);
  EXPECT_EQ(imported.diagnostics().front().code, "import.cut");
}

TEST(GoogleBenchmark, PointsWithTheirUnitsAndForeignOnesCounted) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("b.json", R"({"context":{"library_build_type":"release"},"benchmarks":[
{"name":"copy/direction=host_to_device/memory=pinned/bytes=1048576/iterations:1/manual_time","run_type":"iteration","real_time":22.5,"time_unit":"us","low_s":2.25e-05,"high_s":2.3e-05},
{"name":"BM_other","run_type":"iteration","real_time":5,"time_unit":"ns"},
{"name":"copy/bytes=2","run_type":"iteration","real_time":0,"time_unit":"ns"},
{"name":"copy/bytes=4","error_occurred":true,"error_message":"x","real_time":0,"time_unit":"ns"}]})");
  EXPECT_EQ(kind_of_log(path), LogKind::google_benchmark);
  const auto imported = import_google_benchmark(path, {.op = "", .tier = "", .device = "h100"});
  ASSERT_TRUE(imported);
  ASSERT_EQ(imported->samples.size(), 1U);
  EXPECT_NEAR(imported->samples.front().time_s, 22.5e-6, 1e-15);
  // 22.5 * 1e-6 is less than 2.25e-05: it would lie outside its own interval.
  EXPECT_EQ(imported->samples.front().low_s, imported->samples.front().time_s);
  EXPECT_EQ(imported->samples.front().point.size("bytes"), 1048576);
  EXPECT_EQ(imported->leftovers.at("benchmarks of other programs"), 1);
  EXPECT_EQ(imported->leftovers.at("points that failed or were skipped"), 1);
  EXPECT_EQ(imported.diagnostics().front().code, "import.time");
}

TEST(NcclTests, ARowThatIsCutShortIsNamed) {
  const test::TemporaryFolder folder;
  const auto imported = import_nccl_tests(
      folder.write("all_gather_perf.log",
                   std::string(all_gather_log) + "    16777216       2097152  bfloat16    none      -1   15"),
      {});
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->samples.size(), 4U);
  EXPECT_EQ(imported.diagnostics().back().code, "import.cut");
  EXPECT_EQ(imported.diagnostics().back().place.line, 14);
}

TEST(Kineto, TimesThatAreNoneAreCountedAndTheRestUsed) {
  const test::TemporaryFolder folder;
  std::string text = std::string(trace) + "]}";
  const std::string whole = "\"dur\":500";
  ASSERT_NE(text.find(whole), std::string::npos);
  text.replace(text.find(whole), whole.size(), "\"dur\": NaN");
  const auto imported = import_kineto(folder.write("t.json", text), {});
  ASSERT_TRUE(imported);
  EXPECT_TRUE(imported.diagnostics().empty());
  EXPECT_EQ(imported->samples.size(), 2U);
}

// The file is read in pieces of 2^18 bytes.
TEST(Kineto, TimesThatAreNoneMayStandAcrossPieces) {
  const test::TemporaryFolder folder;
  const std::string whole = "\"dur\":500", none = "\"dur\": NaN";
  std::string text = std::string(trace) + "]}";
  text.replace(text.find(whole), whole.size(), none);
  const std::size_t first = text.find("NaN");
  for (std::size_t before = 0; before < 5; ++before) {
    const std::string padded = std::string((std::size_t{1} << 18) - first - 3 + before, ' ') + text;
    ASSERT_EQ(padded.find("NaN"), (std::size_t{1} << 18) - 3 + before);
    const auto imported = import_kineto(folder.write("t.json", padded), {});
    ASSERT_TRUE(imported);
    EXPECT_TRUE(imported.diagnostics().empty()) << before;
    EXPECT_EQ(imported->samples.size(), 2U) << before;
  }
}

TEST(GoogleBenchmark, UnknownUnitsAndTimesThatAreNoneAreNamedByLine) {
  const test::TemporaryFolder folder;
  const auto imported = import_google_benchmark(folder.write("b.json", R"({"benchmarks":[
{"name":"copy/bytes=1","real_time":22.5,"time_unit":"fortnights"},
{"name":"copy/bytes=2","real_time":NaN,"time_unit":"us"},
{"name":"copy/bytes=4","real_time":-3,"time_unit":"us"},
{"name":"copy/bytes=8","real_time":3,"time_unit":"us"}]})"),
                                                {.op = "", .tier = "", .device = "h100"});
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->samples.size(), 1U);
  std::vector<std::string> codes;
  for (const Diagnostic& d : imported.diagnostics()) codes.push_back(d.code + ":" + std::to_string(d.place.line));
  EXPECT_THAT(codes, testing::ElementsAre("import.units:2", "import.time:3", "import.time:4"));
}

TEST(Import, OtherFilesAreOfNoKnownKind) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(kind_of_log(folder.write("a", "hello\n")), LogKind::unknown);
  EXPECT_EQ(kind_of_log(folder.write("b", "")), LogKind::unknown);
  EXPECT_EQ(kind_of_log(folder.write("c", "{\"model_type\": \"llama\"}")), LogKind::unknown);
}

}  // namespace
}  // namespace plimsoll::calibrate
