// Do tables of measured runs read as documented, and is what is wrong with a row told where it stands, the rest read all the
// same?
#include "planner/cli/measured_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/program.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using test::run;
using test::run_json;
using test::TemporaryFile;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

/// A row of the small Llama under plain bf16, with this in "measured".
std::string row(const std::string& id, const std::string& measured, const std::string& plan = R"("engine": "ddp")") {
  return R"({"id": ")" + id + R"(", "cluster": "1xh200", "model": )" + test::small_model + R"(, "plan": {)" + plan +
         R"(, "micro_batch": 1, "sequence": 128}, "process": "fresh", "measured": )" + measured + "}";
}

std::vector<std::string> codes(const MeasuredTable& table) {
  std::vector<std::string> codes;
  for (const Diagnostic& diagnostic : table.diagnostics)
    codes.push_back(diagnostic.code + " " + diagnostic.place.pointer);
  return codes;
}

std::vector<std::string> figures(const MeasuredRow& row) {
  std::vector<std::string> names;
  for (const Measurement& measurement : row.measurements) names.push_back(measurement.figure);
  return names;
}

TEST(MeasuredTable, TakesEveryFigureOfARow) {
  const MeasuredTable table = read_measured_table(source("{\"rows\": [" + row("a", R"({
    "allocated_peak_bytes": 20000000, "reserved_peak_bytes": 30000000, "device_peak_bytes": "0.5 GiB",
    "device_bytes_before": 5, "step_time_s": {"median": 0.25, "min": 0.2, "max": 0.3},
    "phases": {"steady_step": {"allocated_bytes_at_end": 1, "allocated_peak_bytes": 2, "reserved_bytes_at_end": 3},
               "before_save": {"host_pinned_bytes": 4}},
    "files_bytes": {"save_16bit/m.bin": 2000000}})") + "]}"));
  EXPECT_THAT(codes(table), ElementsAre());
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_TRUE(table.rows[0].fresh);
  EXPECT_THAT(figures(table.rows[0]),
              ElementsAre("allocated_peak", "reserved_peak", "device_peak", "step_time", "steady_step.allocated_end",
                          "steady_step.allocated_peak", "steady_step.reserved_end", "file.save_16bit/m.bin"));
  EXPECT_EQ(table.rows[0].measurements[2].value, 0x1p29);
  EXPECT_EQ(table.rows[0].measurements[3].value, 0.25);
}

TEST(MeasuredTable, MixedUnitsAreToldAtTheValueAndTheRestIsKept) {
  const MeasuredTable table = read_measured_table(
      source("[" + row("gib", R"({"allocated_peak_bytes": 23.1, "reserved_peak_bytes": 30000000})") + "," +
             row("mib", R"({"allocated_peak_bytes": 23654, "reserved_peak_bytes": 30000000})") + "," +
             row("order", R"({"allocated_peak_bytes": 30000000, "reserved_peak_bytes": 20000000,
                                                        "device_peak_bytes": 40000000})") +
             "," + row("name", R"({"allocated_peak_gib": 23, "reserved_peak_bytes": 30000000})") + "]"));
  EXPECT_THAT(codes(table),
              ElementsAre("table.unit /0/measured/allocated_peak_bytes", "table.unit /1/measured/allocated_peak_bytes",
                          "table.order /2/measured/reserved_peak_bytes", "table.unit /3/measured/allocated_peak_gib"));
  ASSERT_EQ(table.rows.size(), 4U);
  EXPECT_THAT(figures(table.rows[0]), ElementsAre("reserved_peak"));
  EXPECT_THAT(figures(table.rows[2]), ElementsAre("device_peak"));
}

TEST(MeasuredTable, OfRowsWithOneIdTheFirstCounts) {
  const std::string peak = R"({"allocated_peak_bytes": 20000000})", other = R"({"allocated_peak_bytes": 30000000})";
  const MeasuredTable table =
      read_measured_table(source("[" + row("a", peak) + "," + row("b", peak) + "," + row("a", other) + "]"));
  EXPECT_THAT(codes(table), ElementsAre("table.repeated /2"));
  ASSERT_EQ(table.diagnostics[0].notes.size(), 1U);
  EXPECT_EQ(table.diagnostics[0].notes[0].place.pointer, "/0");
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[0].measurements[0].value, 20000000);
  ASSERT_EQ(table.unanswered.size(), 1U);
}

TEST(MeasuredTable, MissingColumnsAreTold) {
  const MeasuredTable table = read_measured_table(
      source(R"({"rows": [{"id": "x", "measured": {"allocated_peak_bytes": 20000000}}, 7, {"id": "y"}]})"));
  EXPECT_TRUE(table.rows.empty());
  EXPECT_THAT(codes(table), Contains("table.missing /rows/0"));
  EXPECT_THAT(codes(table), Contains("table.type /rows/1"));
  EXPECT_EQ(table.diagnostics[0].place.line, 1);
}

TEST(MeasuredTable, AFileOfSomethingElseIsRefused) {
  EXPECT_THAT(codes(read_measured_table(source(R"({"vocab_size": 5})"))), ElementsAre("table.form "));
  EXPECT_THAT(codes(read_measured_table(source("{\"rows\": [{\"id\": 1}")))[0], HasSubstr("json.syntax"));
  EXPECT_THAT(codes(read_measured_table(source("", "empty.csv"))), ElementsAre("table.form "));
  EXPECT_THAT(codes(read_measured_table(source("[]"))), ElementsAre("table.empty "));
  EXPECT_THAT(codes(read_measured_table(source(R"({"rows": []})"))), ElementsAre("table.empty /rows"));
}

TEST(MeasuredTable, CsvHasTheSameColumns) {
  const std::string model = R"("{""model_type"": ""llama"", ""hidden_size"": 256}")";
  const MeasuredTable table = read_measured_table(
      source("id,cluster,model,plan.engine,plan.micro_batch,process,allocated_peak_bytes,measured.phases.steady_step."
             "allocated_bytes_at_end,files_bytes.save_16bit/m.bin\n"
             "a,1xh200," +
                 model +
                 ",ddp,2,fresh,20000000,1000,\n"
                 "b,1xh200,llama-3.1-8b,ddp,1,shared,\"19.07 MiB\",,3000000\n"
                 "c,1xh200\n",
             "runs.csv"));
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_THAT(table.rows[0].sets, ElementsAre("engine=ddp", "micro_batch=2"));
  EXPECT_EQ(table.rows[0].model.text->text, R"({"model_type": "llama", "hidden_size": 256})");
  EXPECT_THAT(figures(table.rows[0]), ElementsAre("allocated_peak", "steady_step.allocated_end"));
  EXPECT_EQ(table.rows[1].model.name, "llama-3.1-8b");
  EXPECT_FALSE(table.rows[1].fresh);
  ASSERT_EQ(table.diagnostics.size(), 1U);
  EXPECT_EQ(table.diagnostics[0].code, "table.csv");
  EXPECT_EQ(table.diagnostics[0].place.line, 4);
}

TEST(MeasuredTable, AnOpenQuoteIsToldWhereItOpens) {
  const MeasuredTable table = read_measured_table(source("id,model\na,\"{\n", "runs.csv"));
  ASSERT_FALSE(table.diagnostics.empty());
  EXPECT_EQ(table.diagnostics[0].place.line, 2);
  EXPECT_EQ(table.diagnostics[0].place.column, 3);
}

TEST(Validate, AnswersRowsThatAreInOrderAndNamesTheOthers) {
  const TemporaryFile table("{\"rows\": [" + row("good", R"({"allocated_peak_bytes": 20000000})") + ",\n" +
                            row("other engine", R"({"allocated_peak_bytes": 20000000})", R"("engine": "megatron")") +
                            ",\n" + row("wrong unit", R"({"allocated_peak_bytes": 20.5})") + "]}");
  const auto result = run({"validate", table.path(), "--json"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("row other engine: /engine is \"megatron\""));
  EXPECT_THAT(result.err, HasSubstr("row wrong unit: allocated_peak is 20.5, and bytes are whole numbers"));
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_EQ(json["rows"][0]["id"], "good");
  EXPECT_EQ(json["rows"][0]["figure"], "allocated_peak");
  EXPECT_EQ(json["summary"]["allocated_peak"]["n"], 1);
  for (const auto& unanswered : json["unanswered"]) EXPECT_NE(unanswered["id"], "good");
}

TEST(Validate, ExitsWithFiveBeyondTheGivenErrorAndPrintsItsObject) {
  const TemporaryFile table("[" + row("a", R"({"allocated_peak_bytes": 20000000})") + "]");
  EXPECT_EQ(run_json({"validate", table.path(), "--within", "0.001"}, 5)["rows"].size(), 1U);
  run_json({"validate", table.path(), "--within", "10000"}, 0);
}

TEST(Validate, DoesNotPassWhereNothingIsCompared) {
  const TemporaryFile empty("[]");
  for (const auto& more : {std::vector<std::string>{}, {"--within", "5"}}) {
    std::vector<std::string> arguments{"validate", empty.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run(arguments);
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr(empty.path() + ":1:1: error[table.empty]: the table holds no rows"));
  }
  const TemporaryFile unknown(R"([{"id": "a", "cluster": "2xnope", "model": "llama-3.1-8b", "plan": {"zero": 3},
                                   "measured": {"allocated_peak_bytes": 1000000000}}])");
  const auto result = run({"validate", unknown.path(), "--within", "5"});
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, HasSubstr("no figure whose error could be judged"));
}

TEST(Validate, CountsInItsObjectTheFirstStepsThatAGivenRoutingLeavesOut) {
  const TemporaryFile table(R"([{"id": "a", "cluster": "1xh200", "process": "fresh",
    "model": {"model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "num_local_experts": 2,
              "num_experts_per_tok": 1, "max_position_embeddings": 4096, "tie_word_embeddings": false},
    "plan": {"engine": "ddp", "micro_batch": 1, "sequence": 128,
             "routing": {"kind": "histogram", "counts": [[[100, 28]]]}},
    "measured": {"allocated_peak_bytes": 20000000,
                 "phases": {"first_step_forward": {"allocated_bytes_at_end": 20000000},
                            "first_step_step": {"allocated_peak_bytes": 20000000}}}}])");
  EXPECT_EQ(run_json({"validate", table.path()})["first_steps_left_out"], 2);
}

TEST(Validate, AFigureThatIsAPowerOf1024AwayIsInAnotherUnitAndNoError) {
  const std::string plan = R"("engine": "ddp")";
  const TemporaryFile bytes("[" + row("a", R"({"allocated_peak_bytes": 200000000})", plan) + "]");
  const auto predicted = run_json({"validate", bytes.path()})["rows"][0]["predicted"].get<std::int64_t>();
  const TemporaryFile kibibytes(
      "[" + row("a", R"({"allocated_peak_bytes": )" + std::to_string(1024 * predicted) + "}", plan) + "]");
  const auto json = run_json({"validate", kibibytes.path()}, 1);
  EXPECT_TRUE(json["rows"].empty());
  EXPECT_THAT(json["unanswered"][0]["reason"].get<std::string>(), HasSubstr("another unit"));
}

TEST(Validate, WhatWasMeasuredAsNothingIsAHundredPercentOff) {
  const TemporaryFile table("[" + row("a", R"({"phases": {"steady_step": {"host_resident_bytes_at_end": 0,
                                              "host_pinned_bytes": 0}}})") +
                            "]");
  const auto rows = run_json({"validate", table.path()})["rows"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GT(rows[0]["predicted"], 1e9);
  EXPECT_EQ(rows[0]["error"], 1.0);
  EXPECT_EQ(rows[1]["error"], 0.0);
}

TEST(Validate, ARowOrFigureThatNoTableHasIsNamed) {
  const TemporaryFile table("[" + row("dense-1", R"({"allocated_peak_bytes": 20000000})") + "]");
  const auto slip = run({"validate", table.path(), "--row", "dnse-1"});
  EXPECT_EQ(slip.code, 1);
  EXPECT_THAT(slip.err, HasSubstr("--row dnse-1 is in none of the tables"));
  EXPECT_THAT(slip.err, HasSubstr("did you mean dense-1?"));
  EXPECT_EQ(run_json({"validate", table.path(), "--figure", "luck"}, 1)["diagnostics"][0]["code"], "cli.choice");
  EXPECT_EQ(run_json({"validate", table.path(), "--row", "dense"})["rows"].size(), 1U);
}

TEST(Validate, TablesMayBeCompressed) {
  const test::TemporaryFolder folder;
  const std::string json = "[" + row("a", R"({"allocated_peak_bytes": 20000000})") + "]";
  EXPECT_EQ(run_json({"validate", test::write_compressed(folder, "runs.json.gz", json)})["rows"].size(), 1U);
  const std::string csv =
      "id,cluster,model,plan.engine,plan.sequence,allocated_peak_bytes\n"
      "a,1xh100,llama-3.2-1b,deepspeed,128,20000000000\n";
  EXPECT_EQ(run_json({"validate", test::write_compressed(folder, "runs.csv.gz", csv)})["rows"].size(), 1U);
}

// A table beyond what is read is not unpacked to its end.
TEST(Validate, UnpacksNoMoreThanIsRead) {
  const test::TemporaryFolder folder;
  const auto result =
      run({"validate", test::write_compressed(folder, "bomb.json.gz", std::string(document_size_limit + 1, ' '))});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("error[trace.gzip]: the file is larger than 64.0 MiB"));
}

TEST(Validate, SaysOnceWhatACalibrationLacks) {
  const TemporaryFile table("[" + row("a", R"({"step_time_s": 0.01})") + "," + row("b", R"({"step_time_s": 0.02})") +
                            "]");
  const auto result = run({"validate", table.path(), "--calibration", "h200-datasheet"});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::size_t first = result.err.find("warning[calibration.hole]");
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("warning[calibration.hole]", first + 1), std::string::npos) << result.err;
}

TEST(Validate, PrintsMarkdown) {
  const TemporaryFile table("[" + row("a|b", R"({"allocated_peak_bytes": 20000000, "step_time_s": 0.01})") + "]");
  const auto result = run({"validate", table.path(), "--markdown"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| allocated, peak of a steady step | 1 |"));
  EXPECT_THAT(result.out, HasSubstr("| a\\|b | 0.02 |"));
}

}  // namespace
}  // namespace plimsoll
