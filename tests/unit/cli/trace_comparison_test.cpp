// Does compare find the tensors that a trace has and the program lacks, and the other way round?  The program's own events,
// written as a trace and as a snapshot, changed by hand.
#include "planner/cli/trace_comparison.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "planner/cli/evaluate.hpp"
#include "tests/unit/cli/program.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using test::run;
using test::run_json;
using test::TemporaryFile;
using testing::HasSubstr;

const Bytes kibibyte{1024};

/// The small Llama, one steady step of it.
class Compare : public testing::Test {
 protected:
  Compare() {
    InputOptions options;
    options.model = model.path();
    options.cluster = "1xh200";
    options.sets = {"engine=ddp", "micro_batch=2", "sequence=256"};
    evaluation = build(Inputs(options).scenario(), {RankChoice::Kind::one, 0});
    mine = record_of(evaluation.rank_program());
  }

  TraceComparison compared(const AllocatorRecord& trace) const {
    return compare(evaluation.rank_program(), mine, trace, kibibyte);
  }

  std::vector<std::string> command(const char* option, const std::string& file) const {
    return {"compare",       "--model", model.path(),   "--cluster", "1xh200", "--set",       "engine=ddp", "--set",
            "micro_batch=2", "--set",   "sequence=256", option,      file,     "--threshold", "1 KiB"};
  }

  TemporaryFile model{test::small_model};
  Evaluation evaluation;
  ProgramRecord mine;
};

std::string trace_text(const AllocatorRecord& record) {
  std::string labels, events;
  for (const std::string& label : record.labels) labels += fmt::format("{}\"{}\"", labels.empty() ? "" : ",", label);
  for (const AllocatorEvent& event : record.events) {
    events += fmt::format("{}[{},{},{},{}]", events.empty() ? "" : ",", event.is_alloc ? 1 : -1, event.bytes, event.id,
                          event.label);
  }
  return fmt::format(R"({{"live_before":{},"labels":[{}],"events":[{}]}})", record.live_before.count, labels, events);
}

/// As PyTorch writes it: a segment with what is alive at the end, and the events by address.
std::string snapshot_text(const AllocatorRecord& record) {
  std::string events;
  std::int64_t live = record.live_before.count;
  for (const AllocatorEvent& event : record.events) {
    live += event.is_alloc ? event.bytes : -event.bytes;
    events += fmt::format(
        R"({}{{"action":"{}","addr":{},"size":{},"stream":0,"frames":[{{"name":"c10::x","filename":"x.cpp","line":1}},)"
        R"({{"name":"forward","filename":"/a/model.py","line":7}}]}})",
        events.empty() ? "" : ",", event.is_alloc ? "alloc" : "free_requested", 1000 + event.id, event.bytes);
    if (!event.is_alloc)
      events += fmt::format(R"(,{{"action":"free_completed","addr":{},"size":{},"frames":[]}})", 1000 + event.id,
                            event.bytes);
  }
  return fmt::format(R"({{"segments":[{{"device":0,"total_size":1,"blocks":[{{"size":{},"state":"active_allocated"}},
    {{"size":77,"state":"inactive"}}]}}],"device_traces":[[{}],[]],"allocator_settings":{{}}}})",
                     live, events);
}

std::size_t allocation(const AllocatorRecord& record, std::size_t skip) {
  for (std::size_t i = 0;; ++i) {
    if (record.events[i].is_alloc && record.events[i].bytes >= 100000 && skip-- == 0) return i;
  }
}

TEST_F(Compare, TheProgramsOwnEventsHaveNoDifference) {
  const TraceComparison result = compared(mine.record);
  EXPECT_GT(result.matched, 20);
  EXPECT_EQ(result.matched, result.program_count);
  EXPECT_EQ(result.shared(), 1);
  EXPECT_EQ(result.peak_error(), 0);
  EXPECT_TRUE(result.only_in_program.empty() && result.only_in_trace.empty() && result.lifetimes.empty());
  EXPECT_EQ(list_differences(mine, mine.record, kibibyte), "");
}

TEST_F(Compare, ATensorOfTheTraceAloneIsNamedByItsLabelAndNeighbour) {
  AllocatorRecord trace = mine.record;
  const std::size_t at = allocation(trace, 3);
  trace.labels.emplace_back("extra.py:1:f");
  const AllocatorEvent extra{true, static_cast<std::int32_t>(trace.labels.size()) - 1, 123456789, 999999};
  trace.events.insert(trace.events.begin() + static_cast<std::ptrdiff_t>(at) + 1, extra);
  const TraceComparison result = compared(trace);
  ASSERT_EQ(result.only_in_trace.size(), 1U);
  EXPECT_EQ(result.only_in_trace[0].name, "extra.py:1:f");
  EXPECT_EQ(result.only_in_trace[0].bytes.count, 123456789);
  EXPECT_EQ(result.only_in_trace[0].formula, "after " + mine.record.label_of(mine.record.events[at]));
  EXPECT_TRUE(result.only_in_program.empty());
  EXPECT_EQ(result.only_at_trace_peak.size(), 1U);
  EXPECT_THAT(list_differences(mine, trace, kibibyte), HasSubstr("+ alloc      123,456,789  extra.py:1:f\n"));
}

TEST_F(Compare, ATensorOfTheProgramAloneIsNamedWithItsFormula) {
  AllocatorRecord trace = mine.record;
  const std::size_t at = allocation(trace, 5);
  const std::int64_t id = trace.events[at].id;
  const std::int64_t bytes = trace.events[at].bytes;
  std::erase_if(trace.events, [&](const AllocatorEvent& event) { return event.id == id; });
  const TraceComparison result = compared(trace);
  ASSERT_EQ(result.only_in_program.size(), 1U);
  // Of several tensors of one size in a row any may be the one that is missing.
  EXPECT_EQ(result.only_in_program[0].bytes.count, bytes);
  EXPECT_THAT(result.only_in_program[0].formula, HasSubstr(" B"));
}

TEST_F(Compare, ATensorThatIsFreedLaterIsSaidSo) {
  AllocatorRecord trace = mine.record;
  std::size_t freed = 0;
  while (trace.events[freed].is_alloc || trace.events[freed].bytes < 100000) ++freed;
  const AllocatorEvent event = trace.events[freed];
  trace.events.erase(trace.events.begin() + static_cast<std::ptrdiff_t>(freed));
  trace.events.push_back(event);
  const TraceComparison result = compared(trace);
  ASSERT_EQ(result.lifetimes.size(), 1U);
  EXPECT_EQ(result.lifetimes[0].bytes.count, event.bytes);
  EXPECT_GT(result.lifetimes[0].shift_low, 0);
}

TEST_F(Compare, ReadsTracesAndSnapshotsAlike) {
  const TemporaryFile trace(trace_text(mine.record));
  const TemporaryFile snapshot(snapshot_text(mine.record));
  const auto from_trace = run_json(command("--allocator-trace", trace.path()));
  const auto from_snapshot = run_json(command("--snapshot", snapshot.path()));
  EXPECT_EQ(from_trace["in_both"], from_snapshot["in_both"]);
  EXPECT_EQ(from_trace["measured"]["live_before_bytes"], from_snapshot["measured"]["live_before_bytes"]);
  EXPECT_EQ(from_trace["only_in_measured"].size(), 0U);
}

// A real one, of one step under autocast (tests/data/snapshots/measure.py): every allocation of 1 KiB and more is there, in
// order and size.  What was alive before counts whole blocks, 2 MB more than sizes.
TEST(Snapshot, OfARealStepHoldsTheSameTensors) {
  const std::string folder = std::string(PLIMSOLL_SOURCE_DIR) + "/tests/data/snapshots/";
  const auto about = nlohmann::json::parse(std::ifstream(folder + "llama-small-amp.json"));
  const TemporaryFile model(about["model"].dump()), plan(about["plan"].dump());
  const auto result = run_json({"compare", "--model", model.path(), "--plan", plan.path(), "--cluster", "1xh200",
                                "--snapshot", folder + "llama-small-amp.snapshot.json.gz", "--threshold", "1 KiB"});
  EXPECT_EQ(result["in_both"]["allocations"], 441);
  EXPECT_EQ(result["only_in_program"].size(), 0U);
  EXPECT_EQ(result["only_in_measured"].size(), 0U);
  const auto counters = about["counters"];
  EXPECT_EQ(result["measured"]["live_before_bytes"], counters["allocated_before_bytes"]);
  EXPECT_NEAR(result["measured"]["peak"]["bytes"].get<double>(), counters["allocated_peak_bytes"].get<double>(), 2e6);
}

TEST_F(Compare, DamagedAndTruncatedFilesAreToldWhereTheyEnd) {
  const std::string text = trace_text(mine.record);
  const TemporaryFile cut(text.substr(0, text.size() / 2));
  const auto result = run(command("--allocator-trace", cut.path()));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr(cut.path() + ":1:"));
  const std::string snapshot = snapshot_text(mine.record);
  const TemporaryFile half(snapshot.substr(0, snapshot.size() / 2));
  const auto second = run(command("--snapshot", half.path()));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("snapshot.json"));
  EXPECT_EQ(run(command("--snapshot", cut.path())).code, 1);
  EXPECT_EQ(run(command("--allocator-trace", half.path())).code, 1);
}

TEST_F(Compare, ABrokenEventIsToldAndTheOthersAreCompared) {
  std::string text = trace_text(mine.record);
  text.insert(text.find("\"events\":[") + 10, "[1,-5,0,0],[2,1,1,1],[-1,512,123456,-1],\"x\",");
  const TemporaryFile file(text);
  const auto json = run_json(command("--allocator-trace", file.path()), 1);
  EXPECT_EQ(json["only_in_program"].size(), 0U);
}

TEST_F(Compare, ARecordOfAnotherProgramIsRefused) {
  const TemporaryFile file(
      R"({"live_before":0,"labels":[],"events":[[1,1234567,0,-1],[1,7654321,1,-1],[-1,1234567,0,-1]]})");
  const auto result = run(command("--allocator-trace", file.path()));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("compare.program"));
}

TEST_F(Compare, ARunLogThatIsNotThereIsThree) {
  const auto result = run(command("--run-log", "run.jsonl"));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("run.jsonl"));
}

}  // namespace
}  // namespace plimsoll
