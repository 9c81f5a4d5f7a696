// Do tables read well as text and as CSV, and does Qt see the same?
#include "gui/models/tables.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <QAbstractItemModelTester>

#include "gui/models/table_model.hpp"
#include "tests/gui/support.hpp"

namespace plimsoll::gui {
namespace {

using ::testing::HasSubstr;
using testing::scenario_text;

TableData small_table() {
  return {{{"name", false, {}}, {"GiB", true, {}}},
          {{{cell_of_text("größe"), cell_of_bytes(std::int64_t{3} << 30)}, "a"},
           {{cell_of_text("a, \"b\""), cell_of_bytes(1)}, "b", true}}};
}

TEST(Table, AlignsItsColumnsAsText) {
  EXPECT_EQ(to_text(small_table()), "name     GiB\ngröße   3.00\na, \"b\"  0.00\n");
}

TEST(Table, QuotesWhatCsvNeedsQuoted) {
  EXPECT_EQ(to_csv(small_table()), "name,GiB\r\ngröße,3.00\r\n\"a, \"\"b\"\"\",0.00\r\n");
}

TEST(Table, HoldsExactBytesBesideGibibytes) {
  const TableCell cell = cell_of_bytes(51'936'377'344);
  EXPECT_EQ(cell.text, "48.37");
  EXPECT_EQ(cell.tip, "51,936,377,344 B");
  EXPECT_EQ(static_cast<std::int64_t>(cell.order), 51'936'377'344);
}

TEST(TableModel, KeepsQtsRules) {
  TableModel model;
  const QAbstractItemModelTester tester(&model, QAbstractItemModelTester::FailureReportingMode::Fatal);
  model.show(small_table());
  EXPECT_EQ(model.rowCount(), 2);
  EXPECT_EQ(model.data(model.index(0, 1), Qt::DisplayRole).toString(), "3.00");
  EXPECT_EQ(model.headerData(1, Qt::Horizontal, Qt::DisplayRole).toString(), "GiB");
  TableData changed = small_table();
  changed.rows[0].cells[1] = cell_of_bytes(0);
  int resets = 0;
  QObject::connect(&model, &QAbstractItemModel::modelReset, [&] { ++resets; });
  model.show(changed);
  EXPECT_EQ(resets, 0) << "equal forms change in place, so that selections stay";
  EXPECT_EQ(model.data(model.index(0, 1), Qt::DisplayRole).toString(), "0.00");
  changed.rows.pop_back();
  model.show(changed);
  EXPECT_EQ(resets, 1);
}

TEST(Tables, OfALedgerSumToItsPeak) {
  const AnswerPtr answer = answer_fully(scenario_text("llama-3.2-1b", "8xh100", {{"zero.stage", "3"}}));
  const TableData table = ledger_table(*answer);
  double sum = 0;
  for (const TableRow& row : table.rows) {
    if (row.id == "gpu.allocated_peak_bytes") {
      EXPECT_EQ(row.cells[1].order, sum);
      EXPECT_TRUE(row.strong);
      return;
    }
    sum += row.cells[1].order;
  }
  FAIL() << "no row of the allocated peak";
}

TEST(Tables, OfLiveTensorsNameFormulaCountAndLayers) {
  const AnswerPtr answer =
      answer_fully(scenario_text("llama-3.1-8b", "8xh100", {{"zero.stage", "3"}, {"sequence", "4096"}}));
  const std::string text = to_text(live_table(*answer, "activations"));
  EXPECT_THAT(text, HasSubstr("norm input in fp32"));
  EXPECT_THAT(text, HasSubstr("N h x 4 B = 4096 x 4096 x 4 B"));
  EXPECT_THAT(text, HasSubstr("0 to 31"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("optimizer_moments")));
}

TEST(Tables, OfProblemsPutErrorsFirstAndNameTheControl) {
  const AnswerPtr answer =
      answer_quickly(scenario_text("mixtral-8x7b", "8xh100", {{"expert_parallel", "3"}, {"zero.stage", "3"}}), 0);
  ASSERT_TRUE(answer->has_errors());
  const TableData table = problems_table(answer->diagnostics);
  EXPECT_EQ(table.rows.front().cells[0].text, "error");
  EXPECT_EQ(table.rows.front().id, "expert_parallel");
  EXPECT_EQ(table.rows.back().cells[0].text, "note");
}

TEST(Words, SayTheVerdictAndWhatWouldFit) {
  const AnswerPtr oom = answer_fully(scenario_text("llama-3.1-8b", "8xh100", {{"micro_batch", "8"}}));
  EXPECT_THAT(verdict_in_words(*oom), HasSubstr("margin -"));
  EXPECT_THAT(reason_in_words(*oom), HasSubstr("The device's memory is short in"));
  EXPECT_THAT(reason_in_words(*oom), HasSubstr("it fits"));
  const AnswerPtr fits = answer_fully(scenario_text("llama-3.2-1b", "8xh100", {{"zero.stage", "3"}}));
  EXPECT_THAT(reason_in_words(*fits), HasSubstr("a step, bound by"));
}

TEST(Tables, OfTwoPlansHoldBothAndTheirDifference) {
  const AnswerPtr a = answer_fully(scenario_text("llama-3.2-1b", "8xh100", {{"zero.stage", "2"}}));
  const AnswerPtr b = answer_fully(scenario_text("llama-3.2-1b", "8xh100", {{"zero.stage", "3"}}));
  const TableData table = diff_table(*a, *b);
  for (const TableRow& row : table.rows) {
    if (row.id != "allocated peak") continue;
    EXPECT_EQ(row.cells[1].order, static_cast<double>(a->ledger->allocated_peak.value.count));
    EXPECT_EQ(row.cells[2].order, static_cast<double>(b->ledger->allocated_peak.value.count));
    EXPECT_EQ(row.cells[3].order, row.cells[2].order - row.cells[1].order);
  }
  const TableData settings = settings_table(*a, *b);
  EXPECT_EQ(settings.rows.front().cells[0].text, "zero.stage");
}

}  // namespace
}  // namespace plimsoll::gui
