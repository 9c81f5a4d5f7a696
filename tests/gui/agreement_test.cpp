// Are the window's numbers those of the command line's --json, for the same scenario?  Over the presets: what the tables hold
// beside what the program prints.
#include <gtest/gtest.h>

#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>
#include <QProcess>

#include "gui/models/tables.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/spec/presets.hpp"
#include "tests/gui/support.hpp"

namespace plimsoll::gui {
namespace {

using testing::scenario_text;

QJsonObject run(const ScenarioText& text, const QString& command) {
  const InputOptions options = options_of(text);
  QStringList arguments{command,     "--json",
                        "--model",   QString::fromStdString(options.model),
                        "--cluster", QString::fromStdString(options.cluster)};
  if (!options.nodes.empty()) arguments << "--nodes" << QString::fromStdString(options.nodes);
  for (const std::string& set : options.sets) arguments << "--set" << QString::fromStdString(set);
  QProcess process;
  process.start(PLIMSOLL_BINARY, arguments);
  EXPECT_TRUE(process.waitForFinished(120000));
  return QJsonDocument::fromJson(process.readAllStandardOutput()).object();
}

/// The figure of a row, as exact bytes.
qint64 figure(const TableData& table, const std::string& id, std::size_t column) {
  for (const TableRow& row : table.rows)
    if (row.id == id) return static_cast<qint64>(row.cells[column].order);
  ADD_FAILURE() << "no row " << id;
  return -1;
}

void expect_ledger(const AnswerPtr& answer, const QJsonObject& json) {
  const QJsonObject gpu = json["gpu"].toObject();
  EXPECT_EQ(QString::fromUtf8(name_of(answer->ledger->verdict)), json["verdict"].toString());
  const TableData ledger = ledger_table(*answer), figures = figures_table(*answer);
  const QJsonObject categories = gpu["categories_at_peak"].toObject();
  for (auto it = categories.begin(); it != categories.end(); ++it) {
    if (it.value().toInteger() == 0) continue;
    EXPECT_EQ(figure(ledger, "gpu.categories_at_peak." + it.key().toStdString(), 1), it.value().toInteger())
        << it.key().toStdString();
  }
  EXPECT_EQ(figure(ledger, "gpu.device_peak_bytes", 1), gpu["device_peak_bytes"].toInteger());
  EXPECT_EQ(figure(figures, "gpu.allocated_peak_bytes", 1), gpu["allocated_peak_bytes"].toInteger());
  EXPECT_EQ(figure(figures, "gpu.reserved_peak_bytes", 1), gpu["reserved_peak_bytes"].toInteger());
  EXPECT_EQ(figure(figures, "gpu.reserved_peak_bytes", 3),
            gpu["interval_bytes"].toObject()["reserved"].toArray()[1].toInteger());
  EXPECT_EQ(figure(figures, "gpu.job_device_peak_bytes", 1), gpu["job_device_peak_bytes"].toInteger());
  EXPECT_EQ(figure(figures, "margin_bytes", 1), json["margin_bytes"].toInteger());
  EXPECT_EQ(QString::fromStdString(answer->evaluation->program.digest), json["digest"].toString());
  const QJsonArray phases = json["phases"].toArray();
  const TableData shown = phases_table(*answer);
  ASSERT_EQ(static_cast<qsizetype>(shown.rows.size()), phases.size());
  for (qsizetype i = 0; i < phases.size(); ++i) {
    const TableRow& row = shown.rows[static_cast<std::size_t>(i)];
    const QJsonObject phase = phases[i].toObject();
    EXPECT_EQ(QString::fromStdString(row.cells[0].text), phase["name"].toString());
    EXPECT_EQ(static_cast<qint64>(row.cells[1].order), phase["allocated_end_bytes"].toInteger());
    EXPECT_EQ(static_cast<qint64>(row.cells[2].order), phase["allocated_peak_bytes"].toInteger());
    EXPECT_EQ(static_cast<qint64>(row.cells[5].order), phase["host_resident_peak_bytes"].toInteger());
  }
}

void expect_volumes(const AnswerPtr& answer, const QJsonObject& json) {
  EXPECT_EQ(answer->volume.per_gpu.count, json["per_gpu_bytes_per_step"].toInteger());
  qint64 of_table = 0, of_json = 0;
  for (const TableRow& row : volume_table(*answer).rows) of_table += static_cast<qint64>(row.cells.back().order);
  for (const QJsonValue& row : json["rows"].toArray()) of_json += row.toObject()["wire_bytes"].toInteger();
  EXPECT_EQ(of_table, of_json);
}

void expect_time(const AnswerPtr& answer, const QJsonObject& json) {
  ASSERT_NE(answer->step, nullptr);
  EXPECT_DOUBLE_EQ(answer->step->step_time_s, json["step_time_s"].toDouble());
  EXPECT_DOUBLE_EQ(answer->step->mfu, json["mfu"].toDouble());
  EXPECT_DOUBLE_EQ(answer->step->high_s, json["interval_s"].toArray()[1].toDouble());
  const TableData exposed = exposed_table(*answer->step);
  for (const TableRow& row : exposed.rows)
    if (row.id != "idle") {
      EXPECT_DOUBLE_EQ(row.cells[1].order, json["exposed_s"].toObject()[QString::fromStdString(row.id)].toDouble());
    }
}

TEST(Agreement, OfEveryPresetsMemoryAndVolumesWithTheCommandLine) {
  int compared = 0;
  for (const std::string& model : preset_names("models")) {
    // Large enough for nearly all of them: where it does not fit, the command line looks for the smallest change first.
    const ScenarioText text =
        scenario_text(model, "256xh100", {{"zero.stage", "3"}, {"sequence", "2048"}, {"recompute", "full"}});
    const AnswerPtr quick = answer_quickly(text, 0);
    if (quick->has_errors()) continue;  // what the planner refuses, both refuse
    const AnswerPtr answer = settle(*quick);
    SCOPED_TRACE(model);
    expect_ledger(answer, run(text, "ledger"));
    ++compared;
    if (compared % 3 == 0) expect_volumes(answer, run(text, "volumes"));
    if (compared % 8 == 0) expect_time(simulate(*answer), run(text, "simulate"));
  }
  EXPECT_GT(compared, 30);
}

TEST(Agreement, OfEveryEngineWithTheCommandLine) {
  const std::vector<ScenarioText> texts = {
      scenario_text("mixtral-8x7b", "8xh200",
                    {{"zero.stage", "3"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}}),
      scenario_text("mixtral-8x7b", "16xh100",
                    {{"zero.stage", "1"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}}),
      scenario_text("llama-3.1-8b", "8xh100", {{"engine", "fsdp2"}, {"recompute", "full"}}),
      scenario_text("llama-3.2-1b", "2xh200", {{"engine", "ddp"}, {"micro_batch", "2"}}),
      scenario_text("olmoe-1b-7b", "8xh200",
                    {{"zero.stage", "3"}, {"moe.leaf", "true"}, {"routing", R"({"kind":"skew","max_over_mean":2})"}}),
  };
  for (const ScenarioText& text : texts) {
    SCOPED_TRACE(command_line_of(text, "ledger"));
    const AnswerPtr answer = answer_fully(text);
    ASSERT_FALSE(answer->has_errors());
    const QJsonObject json = run(text, "ledger");
    expect_ledger(answer, json);
    expect_volumes(answer, run(text, "volumes"));
    expect_time(answer, run(text, "simulate"));
    if (answer->remedy) {
      EXPECT_EQ(json["smallest_change"].toObject()["set"].toObject().size(),
                static_cast<int>(answer->remedy->sets.size()));
    }
  }
}

TEST(Agreement, OfTheFirstStepWithTheSettledAnswer) {
  const ScenarioText text = scenario_text("mixtral-8x7b", "8xh200", {{"zero.stage", "3"}});
  const AnswerPtr quick = answer_quickly(text, 0);
  const Bytes first = quick->ledger->allocated_peak.value;
  const AnswerPtr settled = settle(*quick);
  // Live tensors, which the first step sums, and what blocks keep beyond them, which it cannot know.
  EXPECT_LE(first, settled->ledger->allocated_peak.value);
  EXPECT_GE(first, settled->ledger->allocated_peak.value - settled->ledger->replay.slack_at_peak);
  EXPECT_EQ(quick->volume.per_gpu, settled->volume.per_gpu);
}

}  // namespace
}  // namespace plimsoll::gui
