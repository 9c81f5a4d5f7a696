// Does the window do what its user does with it?  Keys, clicks and files, on a platform without a screen.
#include "gui/widgets/main_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QFile>
#include <QLineEdit>
#include <QPushButton>
#include <QSlider>
#include <QSpinBox>
#include <QTabWidget>
#include <QTemporaryDir>
#include <QTest>
#include <set>

#include "gui/widgets/banner.hpp"
#include "gui/widgets/compare_page.hpp"
#include "gui/widgets/control_row.hpp"
#include "gui/widgets/explain_panel.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/inputs_panel.hpp"
#include "gui/widgets/memory_page.hpp"
#include "gui/widgets/recommend_page.hpp"
#include "gui/widgets/report.hpp"
#include "gui/widgets/step_pages.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "tests/gui/support.hpp"

namespace plimsoll::gui {
namespace {

using testing::fails;
using testing::settles;
using testing::small_state;
using testing::wait_until;

class Window : public ::testing::Test {
 protected:
  Window() : session(small_state(), {}), window(session) {
    window.show();
    QApplication::setActiveWindow(&window);
    EXPECT_TRUE(settles(session));
  }
  void press(Qt::Key key, Qt::KeyboardModifiers modifiers = {}) {
    QTest::keyClick(QApplication::focusWidget() != nullptr ? QApplication::focusWidget() : &window, key, modifiers);
  }

  Session session;
  MainWindow window;
};

TEST_F(Window, SaysTheVerdictInAWord) {
  EXPECT_THAT(window.banner()->verdict().toStdString(), ::testing::HasSubstr("fits"));
  session.set("micro_batch", "64");
  session.set("sequence", "32768");
  ASSERT_TRUE(settles(session));
  EXPECT_THAT(window.banner()->verdict().toStdString(), ::testing::HasSubstr("out of memory"));
  EXPECT_TRUE(window.banner()->apply_button()->isVisible() || !session.good()->remedy);
}

TEST_F(Window, AppliesTheSmallestChangeThatFits) {
  session.set("micro_batch", "64");
  ASSERT_TRUE(settles(session));
  ASSERT_TRUE(session.good()->remedy.has_value());
  press(Qt::Key_F, Qt::ControlModifier | Qt::ShiftModifier);
  ASSERT_TRUE(settles(session));
  EXPECT_NE(session.good()->ledger->verdict, Verdict::oom);
}

TEST_F(Window, FollowsASlider) {
  QSlider* slider = window.inputs()->row("micro_batch")->slider();
  const Bytes before = session.good()->ledger->allocated_peak.value;
  slider->setFocus();
  press(Qt::Key_Right);
  EXPECT_EQ(session.text().settings.at("micro_batch"), "2");
  ASSERT_TRUE(settles(session));
  EXPECT_GT(session.good()->ledger->allocated_peak.value, before);
  press(Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(session.text().settings.count("micro_batch"), 0U);
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.good()->ledger->allocated_peak.value, before);
}

TEST_F(Window, SkipsStopsThatAreNotLegalAndSaysWhy) {
  QString why;
  QObject::connect(window.inputs(), &InputsPanel::refused, [&](const QString& words) { why = words; });
  ControlRow* row = window.inputs()->row("world_size");
  const int before = row->slider()->value();
  row->slider()->setValue(row->slider()->maximum());
  EXPECT_THAT(why.toStdString(), ::testing::HasSubstr("the cluster has 8 GPUs"));
  EXPECT_EQ(row->slider()->value(), before);
}

TEST_F(Window, TakesNumbersAsTheyAreWrittenAnywhere) {
  auto* field = window.inputs()->row("sequence")->findChild<QLineEdit*>();
  for (const auto& [typed, taken] :
       {std::pair("8.192", "8192"), std::pair("16,384", "16384"), std::pair("131 072", "131072"),
        std::pair(" 512 ", "512"), std::pair("1.5", "1.5"), std::pair("2e3", "2e3")}) {
    field->setFocus();
    field->selectAll();
    QTest::keyClicks(field, typed);
    press(Qt::Key_Return);
    EXPECT_EQ(session.text().settings.at("sequence"), taken);
  }
}

TEST_F(Window, WritesFiguresAsTheCommandLineDoesInEveryCountry) {
  const QLocale before;
  QLocale::setDefault(QLocale(QLocale::German));
  {
    Session other(small_state(), {});
    const MainWindow german(other);
    for (const QWidget* widget : german.findChildren<QWidget*>()) {
      if (widget->window() != &german) continue;
      EXPECT_EQ(widget->locale(), QLocale::c()) << widget->metaObject()->className();
    }
  }
  QLocale::setDefault(before);
}

TEST_F(Window, ShowsTheBestSoFarOfASearchThatIsStopped) {
  session.set_model("qwen3-30b-a3b");  // whose search goes on far longer than this test
  ASSERT_TRUE(settles(session));
  window.open_tab(3);
  const RecommendPage& page = *window.recommendation();
  for (auto* box : page.findChildren<QSpinBox*>())
    if (box->accessibleName() == "Time to search") box->setValue(600);
  QString progress;
  QObject::connect(&page.job(), &SearchJob::progressed, [&](const QString& words) { progress = words; });
  window.recommendation()->search_or_cancel();
  ASSERT_TRUE(wait_until([&] { return progress.contains("best") && !progress.contains("best 0 tokens/s"); }));
  ASSERT_TRUE(page.job().is_running());
  EXPECT_EQ(page.job().result(), nullptr);
  QElapsedTimer since;
  since.start();
  window.recommendation()->search_or_cancel();
  ASSERT_TRUE(wait_until([&] { return !page.job().is_running(); }));
  EXPECT_LT(since.elapsed(), 20'000);  // of the ten minutes that it was given; much less, but for a checking build
  ASSERT_NE(page.job().result(), nullptr);
  EXPECT_FALSE(page.job().result()->search.proven);
  ASSERT_FALSE(page.job().result()->plans.empty());
  EXPECT_EQ(page.plans()->table().rows.size(), page.job().result()->plans.size());
  window.recommendation()->load(0);
  ASSERT_TRUE(settles(session));
  EXPECT_NE(session.good()->ledger->verdict, Verdict::oom);
}

TEST_F(Window, ShowsProblemsAndJumpsToTheControl) {
  session.set("expert_parallel", "3");
  ASSERT_TRUE(fails(session));
  const TableData& problems = window.problems()->table();
  ASSERT_FALSE(problems.rows.empty());
  EXPECT_EQ(problems.rows[0].id, "expert_parallel");
  press(Qt::Key_0, Qt::ControlModifier);
  EXPECT_TRUE(window.problems()->hasFocus());
  press(Qt::Key_Return);
  EXPECT_EQ(QApplication::focusWidget(), window.inputs()->row("expert_parallel")->entry());
}

TEST_F(Window, OpensTheFormulaOfACategory) {
  window.open_tab(0);
  HullView* hull = window.memory()->hull();
  hull->setFocus();
  hull->grab();  // paints, offscreen
  press(Qt::Key_Up);
  EXPECT_NE(hull->highlighted(), "");
  window.memory()->ledger()->select_id("gpu.categories_at_peak.optimizer_moments");
  const TableData& terms = window.memory()->explained()->table()->table();
  ASSERT_FALSE(terms.rows.empty());
  for (const TableRow& row : terms.rows) {
    if (row.cells[0].text == "allocator_slack") continue;
    EXPECT_EQ(row.cells[5].text, "optimizer_moments");
  }
}

TEST_F(Window, ShowsTheCriticalPathOnWhateverRankItGoes) {
  session.set("zero.stage", "1");  // whose ranks differ, so that several are on the clock
  ASSERT_TRUE(settles(session));
  window.open_tab(2);
  TimelineView* timeline = window.time()->timeline();
  const Timeline& simulated = session.good()->step->timeline;
  ASSERT_GT(simulated.classes.size(), 1U);
  QString words;
  QObject::connect(timeline, &TimelineView::selected_changed, [&](const QString& told) { words = told; });
  std::set<std::uint16_t> ranks;
  for (const std::uint32_t index : simulated.critical_path) {
    const TimedOp& op = simulated.ops[index];
    if (op.end == op.start) continue;
    EXPECT_TRUE(timeline->shows(index));
    if (!ranks.insert(op.class_index).second) continue;
    timeline->select(index);
    EXPECT_THAT(words.toStdString(), ::testing::HasSubstr(simulated.classes[op.class_index].name));
    EXPECT_THAT(words.toStdString(), ::testing::HasSubstr("on the critical path"));
  }
  EXPECT_TRUE(ranks.count(simulated.told) != 0);
}

TEST_F(Window, ZoomsAndStepsThroughTheTimelineByKeys) {
  window.open_tab(2);
  TimelineView* timeline = window.time()->timeline();
  EXPECT_TRUE(timeline->hasFocus());
  const double all = timeline->visible_seconds();
  press(Qt::Key_Plus);
  press(Qt::Key_Plus);
  EXPECT_LT(timeline->visible_seconds(), all / 2);
  press(Qt::Key_Period);
  ASSERT_TRUE(timeline->selected().has_value());
  const std::uint32_t first = *timeline->selected();
  press(Qt::Key_Period);
  EXPECT_NE(*timeline->selected(), first);
  press(Qt::Key_Home);
  EXPECT_DOUBLE_EQ(timeline->visible_seconds(), all);
}

TEST_F(Window, CopiesTablesAsTextAndCsv) {
  window.open_tab(1);
  window.communication()->volumes()->copy_csv();
  EXPECT_THAT(QApplication::clipboard()->text().toStdString(), ::testing::StartsWith("collective,group,phase,tier"));
  window.communication()->volumes()->setFocus();
  press(Qt::Key_C, Qt::ControlModifier);
  EXPECT_THAT(QApplication::clipboard()->text().toStdString(), ::testing::HasSubstr("all_gather"));
}

TEST_F(Window, ExportsPicturesAndAReport) {
  const QTemporaryDir folder;
  for (const char* name : {"view.png", "view.svg", "view.pdf"}) {
    EXPECT_EQ(save_picture(*window.memory(), folder.filePath(name)).toStdString(), "");
    EXPECT_GT(QFile(folder.filePath(name)).size(), 2000) << name;
  }
  EXPECT_EQ(save_report(session.good(), folder.filePath("report.pdf")).toStdString(), "");
  EXPECT_GT(QFile(folder.filePath("report.pdf")).size(), 20000);
  const std::string html = report_html(*session.good()).toStdString();
  EXPECT_THAT(html, ::testing::HasSubstr("llama-3.2-1b on 8 x h100"));
  EXPECT_THAT(html, ::testing::HasSubstr(session.good()->evaluation->program.digest));
  EXPECT_NE(save_report(session.good(), folder.filePath("no/folder/report.pdf")).toStdString(), "");
  EXPECT_NE(save_picture(*window.memory(), folder.filePath("no/folder/view.png")).toStdString(), "");
}

TEST_F(Window, StaysAliveWithBrokenFilesDropped) {
  const QTemporaryDir folder;
  AnswerPtr good = session.good();
  for (const char* text : {"", "{", "\xff\xfe", "[1, 2", "{\"hidden_size\": \"x\"}"}) {
    const QString path = folder.filePath("config.json");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(text);
    file.close();
    session.reload();
    window.open_file(path);
    ASSERT_TRUE(fails(session)) << text;
    EXPECT_FALSE(window.problems()->table().rows.empty()) << text;
    EXPECT_EQ(session.good(), good) << text;
    session.set_model("llama-3.2-1b");
    ASSERT_TRUE(settles(session));
    good = session.good();
  }
}

TEST_F(Window, GoesThroughItsPanesByF6) {
  window.open_tab(0);
  EXPECT_TRUE(window.memory()->hull()->hasFocus());
  press(Qt::Key_F6);
  EXPECT_TRUE(window.problems()->hasFocus());
  press(Qt::Key_F6);
  EXPECT_TRUE(window.inputs()->isAncestorOf(QApplication::focusWidget()));
  press(Qt::Key_F6, Qt::ShiftModifier);
  EXPECT_TRUE(window.problems()->hasFocus());
}

// The whole task by keys alone: open Qwen3-30B-A3B on two nodes of eight H100, find a plan that fits at sequence 8192, compare
// EP 8 with ZeRO-3 only, export the report and the ds_config.
TEST_F(Window, IsUsedByKeysAlone) {
  const auto type = [](QComboBox* box, const QString& words) {
    ASSERT_EQ(QApplication::focusWidget(), box);
    box->lineEdit()->selectAll();
    QTest::keyClicks(box, words);
    QTest::keyClick(box, Qt::Key_Return);
  };
  press(Qt::Key_M, Qt::ControlModifier);
  type(window.inputs()->model_box(), "qwen3-30b-a3b");
  window.inputs()->cluster_box()->setFocus(Qt::TabFocusReason);
  type(window.inputs()->cluster_box(), "8xh100");
  window.inputs()->nodes_box()->setFocus(Qt::TabFocusReason);
  press(Qt::Key_Up);
  press(Qt::Key_Up);
  window.inputs()->row("sequence")->slider()->setFocus(Qt::ShortcutFocusReason);
  while (session.text().settings.count("sequence") == 0 || session.text().settings.at("sequence") != "8192")
    press(Qt::Key_Right);
  ASSERT_TRUE(wait_until([&] { return !session.is_stale(); }));
  EXPECT_EQ(session.text().model, "qwen3-30b-a3b");
  EXPECT_EQ(session.text().nodes, 2);
  EXPECT_EQ(session.good()->scenario->plan.world_size, 16);

  press(Qt::Key_Return, Qt::ControlModifier);  // find plans
  ASSERT_TRUE(window.recommendation()->job().is_running());
  ASSERT_TRUE(wait_until([&] { return !window.recommendation()->job().is_running(); }));
  ASSERT_NE(window.recommendation()->job().result(), nullptr);
  ASSERT_FALSE(window.recommendation()->job().result()->plans.empty());
  EXPECT_TRUE(window.recommendation()->plans()->hasFocus());
  press(Qt::Key_Return);  // loads the best
  ASSERT_TRUE(settles(session));
  EXPECT_NE(session.good()->ledger->verdict, Verdict::oom);  // a slow machine finds one in time that fits tightly
  EXPECT_EQ(session.good()->ledger->verdict,
            window.recommendation()->job().result()->plans.front().found.evaluated.verdict);
  EXPECT_EQ(session.good()->scenario->plan.sequence, 8192);

  press(Qt::Key_B, Qt::ControlModifier);  // this is B; A is the same with the experts sharded another way
  const std::string other = session.good()->scenario->plan.expert_parallel == 8 ? "1" : "8";
  session.set("moe.implementation", "autoep");
  session.set("expert_parallel", QString::fromStdString(other));
  ASSERT_TRUE(settles(session));
  press(Qt::Key_5, Qt::ControlModifier);
  ASSERT_TRUE(wait_until([&] { return session.compared_answer() && session.compared_answer()->settled; }));
  EXPECT_FALSE(window.comparison()->terms()->table().rows.empty());

  const QTemporaryDir folder;
  EXPECT_EQ(save_report(session.good(), folder.filePath("report.pdf")).toStdString(), "");
  EXPECT_EQ(save_ds_config(*session.good(), folder.filePath("ds_config.json")).toStdString(), "");
  EXPECT_EQ(kind_of_file(folder.filePath("ds_config.json")), FileKind::ds_config);
  EXPECT_EQ(window.recommendation()->write_files_to(folder.filePath("run")).toStdString(), "");
  for (const char* name : {"run/plan.json", "run/ds_config.json", "run/launch.sh", "run/report.md"})
    EXPECT_TRUE(QFile::exists(folder.filePath(name))) << name;
}

}  // namespace
}  // namespace plimsoll::gui
