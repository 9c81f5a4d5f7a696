// Are samples kept whole, and is every damaged line named?
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "calibrate/samples/rounds.hpp"
#include "calibrate/samples/sample_log.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/calibrate/shell.hpp"

namespace plimsoll::calibrate {
namespace {

Header header_of(const std::string& machine) {
  Header h;
  h.device = "h200";
  h.machine = machine;
  h.backend = "cuda";
  h.multiprocessors = 132;
  return h;
}

Sample sample_of(std::int64_t bytes, double time_s = 1e-4) {
  Sample s;
  s.point = {"copy", {{"direction", "host_to_device"}}, {{"bytes", bytes}}};
  s.time_s = time_s;
  s.low_s = 0.9 * time_s;
  s.high_s = 1.1 * time_s;
  s.repetitions = 9;
  s.figures["clock_mhz"] = 1980;
  s.note = "clocks held down by power cap";
  return s;
}

std::vector<std::string> codes(const Diagnostics& diagnostics) {
  std::vector<std::string> result;
  for (const Diagnostic& d : diagnostics) result.push_back(d.code + ":" + std::to_string(d.place.line));
  return result;
}

TEST(Samples, SurviveTheFileUnchanged) {
  const test::TemporaryFolder folder;
  const Sample written = sample_of(4096);
  const auto read = read_samples(folder.write("a.jsonl", line_of(header_of("m")) + line_of(written)));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->samples.size(), 1U);
  const Sample& s = read->samples.front();
  EXPECT_EQ(s.point, written.point);
  EXPECT_EQ(s.time_s, written.time_s);
  EXPECT_EQ(s.low_s, written.low_s);
  EXPECT_EQ(s.high_s, written.high_s);
  EXPECT_EQ(s.figures, written.figures);
  EXPECT_EQ(s.note, written.note);
  EXPECT_EQ(read->header.multiprocessors, 132);
  EXPECT_TRUE(read.diagnostics().empty());
}

TEST(Samples, EachDamagedLineIsNamedAndTheRestUsed) {
  const test::TemporaryFolder folder;
  const std::string text = line_of(header_of("m")) + line_of(sample_of(1)) + "not json\n" + line_of(sample_of(2, -1)) +
                           R"({"kind":"copy","sizes":{"bytes":3},"time_s":NaN})"
                           "\n" +
                           R"({"kind":"copy","sizes":{"bytes":-3},"time_s":1})"
                           "\n" +
                           R"({"sizes":{"bytes":3},"time_s":1})"
                           "\n" +
                           line_of(sample_of(1)) + line_of(sample_of(4)) + line_of(sample_of(5, 1e300)) +
                           R"({"kind":"copy","sizes":{"bytes":9000000000000000000},"time_s":1})"
                           "\n" +
                           R"({"kind":"copy","sizes":{"by)";
  const auto read = read_samples(folder.write("a.jsonl", text));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->samples.size(), 2U);
  EXPECT_THAT(codes(read.diagnostics()), testing::ElementsAre("samples.line:3", "samples.time:4", "samples.line:5",
                                                              "samples.size:6", "samples.kind:7", "samples.repeated:8",
                                                              "samples.time:10", "samples.size:11", "samples.line:12"));
}

TEST(Samples, OfAnotherMachineAreLeftOut) {
  const test::TemporaryFolder folder;
  const auto read = read_samples(folder.write("a.jsonl", line_of(header_of("m")) + line_of(sample_of(1)) +
                                                             line_of(header_of("other")) + line_of(sample_of(2))));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->samples.size(), 1U);
  EXPECT_THAT(codes(read.diagnostics()), testing::ElementsAre("samples.machine:3"));
}

TEST(Samples, AFileWithoutHeaderIsRefused) {
  const test::TemporaryFolder folder;
  const auto read = read_samples(folder.write("a.jsonl", "{\"traceEvents\": []}\n"));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.diagnostics().back().code, "samples.header");
}

TEST(Samples, AHeaderOfAnotherFormatOrOfNoDeviceIsNone) {
  const test::TemporaryFolder folder;
  const std::string header = line_of(header_of("m")), sample = line_of(sample_of(1));
  std::string later = header, nameless = header;
  later.replace(later.find("samples/1"), 9, "samples/2");
  nameless.replace(nameless.find("h200"), 4, "");
  const auto of_later = read_samples(folder.write("later", later + sample));
  const auto of_nameless = read_samples(folder.write("nameless", nameless + sample));
  const auto of_text = read_samples(folder.write("text", "{\"header\": \"x\"}\n" + sample));
  ASSERT_FALSE(of_later || of_nameless || of_text);
  EXPECT_THAT(codes(of_later.diagnostics()), testing::ElementsAre("samples.format:1", "samples.header:0"));
  EXPECT_THAT(codes(of_nameless.diagnostics()), testing::ElementsAre("samples.device:1", "samples.header:0"));
}

TEST(Rounds, AreOneSampleWithTheMedianOfTheirTimes) {
  std::vector<Sample> samples{sample_of(8)};
  for (const double time_s : {1e-4, 3e-4, 2e-4}) {
    Sample& round = samples.emplace_back(sample_of(4, time_s));
    round.point.sizes["round"] = static_cast<std::int64_t>(samples.size()) - 1;
  }
  samples.push_back(sample_of(16));
  const std::vector<Sample> together = rounds_together(samples);
  ASSERT_EQ(together.size(), 3U);
  const Sample& four = together[1];
  EXPECT_EQ(four.point, sample_of(4).point);
  EXPECT_DOUBLE_EQ(four.time_s, 2e-4);
  EXPECT_DOUBLE_EQ(four.low_s, 1e-4);
  EXPECT_DOUBLE_EQ(four.high_s, 3e-4);
  EXPECT_EQ(four.repetitions, 27);
  EXPECT_DOUBLE_EQ(four.figures.at("between_rounds"), 1.0 / 3);
  EXPECT_EQ(together[0].figures.count("between_rounds"), 0U);
  EXPECT_EQ(together[2].point, sample_of(16).point);
}

TEST(SampleLog, ResumeKeepsWholeLinesAndCutsATornOne) {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("a.jsonl", line_of(header_of("m")) + line_of(sample_of(1)) + R"({"kind":"copy","sizes":{"by)");
  {
    auto log = SampleLog::open(path, header_of("m"), true);
    ASSERT_TRUE(log);
    EXPECT_EQ(log->resumed(), 1U);
    EXPECT_TRUE(log->has(sample_of(1).point));
    EXPECT_FALSE(log->has(sample_of(2).point));
    log->append(sample_of(2));
  }
  const auto read = read_samples(path);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->samples.size(), 2U);
  EXPECT_TRUE(read.diagnostics().empty()) << "no line may be left damaged";
}

TEST(SampleLog, RefusesToMixMachines) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", line_of(header_of("m")) + line_of(sample_of(1)));
  const std::string before = text_of(path);
  const auto log = SampleLog::open(path, header_of("other"), true);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.diagnostics().back().code, "samples.machine");
  EXPECT_EQ(text_of(path), before) << "a refused file stays as it was";
}

TEST(Samples, OfACompressedFileThatIsCutOffTheLinesBeforeAreUsed) {
  const test::TemporaryFolder folder;
  const std::string whole = folder.path("whole.gz");
  gzFile file = gzopen(whole.c_str(), "wb");
  std::string text = line_of(header_of("m"));
  for (std::int64_t i = 1; i <= 500; ++i)
    text += line_of(sample_of(i * 7919 % 4093, 1e-4 + 1e-9 * static_cast<double>(i)));
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const std::string bytes = text_of(whole);
  const auto read = read_samples(folder.write("cut.gz", bytes.substr(0, bytes.size() / 2)));
  ASSERT_TRUE(read);
  EXPECT_GT(read->samples.size(), 100U);
  ASSERT_EQ(read.diagnostics().size(), 1U);
  EXPECT_EQ(read.diagnostics().front().code, "samples.line");
  EXPECT_EQ(read.diagnostics().front().place.line, static_cast<int>(read->samples.size()) + 2);
  EXPECT_THAT(read.diagnostics().front().message, testing::HasSubstr("cut off"));
}

// Samples written behind a compressed file's end cannot be read again.
TEST(SampleLog, ACompressedFileIsNotResumed) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("a.jsonl.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  const std::string text = line_of(header_of("m")) + line_of(sample_of(1));
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const std::string before = text_of(path);
  const auto log = SampleLog::open(path, header_of("m"), true);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.diagnostics().back().code, "samples.compressed");
  EXPECT_EQ(text_of(path), before);
}

TEST(SampleLog, ResumeReplacesATornHeaderAndNoOtherFile) {
  const test::TemporaryFolder folder;
  const std::string header = line_of(header_of("m"));
  EXPECT_TRUE(SampleLog::open(folder.write("empty", ""), header_of("m"), true));
  EXPECT_TRUE(SampleLog::open(folder.write("torn", header.substr(0, 5)), header_of("m"), true));
  EXPECT_TRUE(SampleLog::open(folder.write("nearly", header.substr(0, header.size() - 1)), header_of("m"), true));
  for (const std::string text : {"notes\n", "notes", "{\"traceEvents\": []}"}) {
    const std::string path = folder.write("other", text);
    EXPECT_FALSE(SampleLog::open(path, header_of("m"), true)) << text;
    EXPECT_EQ(text_of(path), text);
  }
}

}  // namespace
}  // namespace plimsoll::calibrate
