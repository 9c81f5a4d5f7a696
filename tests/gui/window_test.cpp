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
  Window() : session_(small_state(), {}), window_(session_) {
    window_.show();
    QApplication::setActiveWindow(&window_);
    EXPECT_TRUE(settles(session_));
  }
  void press(Qt::Key key, Qt::KeyboardModifiers modifiers = {}) {
    QTest::keyClick(QApplication::focusWidget() != nullptr ? QApplication::focusWidget() : &window_, key, modifiers);
  }

  Session session_;
  MainWindow window_;
};

TEST_F(Window, SaysTheVerdictInAWord) {
  EXPECT_THAT(window_.banner()->verdict().toStdString(), ::testing::HasSubstr("fits"));
  session_.set("micro_batch", "64");
  session_.set("sequence", "32768");
  ASSERT_TRUE(settles(session_));
  EXPECT_THAT(window_.banner()->verdict().toStdString(), ::testing::HasSubstr("out of memory"));
  EXPECT_TRUE(window_.banner()->apply_button()->isVisible() || !session_.good()->remedy);
}

TEST_F(Window, AppliesTheSmallestChangeThatFits) {
  session_.set("micro_batch", "64");
  ASSERT_TRUE(settles(session_));
  ASSERT_TRUE(session_.good()->remedy.has_value());
  press(Qt::Key_F, Qt::ControlModifier | Qt::ShiftModifier);
  ASSERT_TRUE(settles(session_));
  EXPECT_NE(session_.good()->ledger->verdict, Verdict::oom);
}

TEST_F(Window, FollowsASlider) {
  QSlider* slider = window_.inputs()->row("micro_batch")->slider();
  const Bytes before = session_.good()->ledger->allocated_peak.value;
  slider->setFocus();
  press(Qt::Key_Right);
  EXPECT_EQ(session_.text().settings.at("micro_batch"), "2");
  ASSERT_TRUE(settles(session_));
  EXPECT_GT(session_.good()->ledger->allocated_peak.value, before);
  press(Qt::Key_Z, Qt::ControlModifier);
  EXPECT_EQ(session_.text().settings.count("micro_batch"), 0U);
  ASSERT_TRUE(settles(session_));
  EXPECT_EQ(session_.good()->ledger->allocated_peak.value, before);
}

TEST_F(Window, SkipsStopsThatAreNotLegalAndSaysWhy) {
  QString why;
  QObject::connect(window_.inputs(), &InputsPanel::refused, [&](const QString& words) { why = words; });
  ControlRow* row = window_.inputs()->row("world_size");
  const int before = row->slider()->value();
  row->slider()->setValue(row->slider()->maximum());
  EXPECT_THAT(why.toStdString(), ::testing::HasSubstr("the cluster has 8 GPUs"));
  EXPECT_EQ(row->slider()->value(), before);
}

TEST_F(Window, TakesNumbersAsTheyAreWrittenAnywhere) {
  auto* field = window_.inputs()->row("sequence")->findChild<QLineEdit*>();
  for (const auto& [typed, taken] :
       {std::pair("8.192", "8192"), std::pair("16,384", "16384"), std::pair("131 072", "131072"),
        std::pair(" 512 ", "512"), std::pair("1.5", "1.5"), std::pair("2e3", "2e3")}) {
    field->setFocus();
    field->selectAll();
    QTest::keyClicks(field, typed);
    press(Qt::Key_Return);
    EXPECT_EQ(session_.text().settings.at("sequence"), taken);
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
  session_.set_model("qwen3-30b-a3b");  // whose search goes on far longer than this test
  ASSERT_TRUE(settles(session_));
  window_.open_tab(3);
  const RecommendPage& page = *window_.recommendation();
  for (auto* box : page.findChildren<QSpinBox*>())
    if (box->accessibleName() == "Time to search") box->setValue(600);
  QString progress;
  QObject::connect(&page.job(), &SearchJob::progressed, [&](const QString& words) { progress = words; });
  window_.recommendation()->search_or_cancel();
  ASSERT_TRUE(wait_until([&] { return progress.contains("best") && !progress.contains("best 0 tokens/s"); }));
  ASSERT_TRUE(page.job().is_running());
  EXPECT_EQ(page.job().result(), nullptr);
  QElapsedTimer since;
  since.start();
  window_.recommendation()->search_or_cancel();
  ASSERT_TRUE(wait_until([&] { return !page.job().is_running(); }));
  EXPECT_LT(since.elapsed(), 20'000);  // of the ten minutes that it was given; much less, but for a checking build
  ASSERT_NE(page.job().result(), nullptr);
  EXPECT_FALSE(page.job().result()->search.proven);
  ASSERT_FALSE(page.job().result()->plans.empty());
  EXPECT_EQ(page.plans()->table().rows.size(), page.job().result()->plans.size());
  window_.recommendation()->load(0);
  ASSERT_TRUE(settles(session_));
  EXPECT_NE(session_.good()->ledger->verdict, Verdict::oom);
}

TEST_F(Window, ShowsProblemsAndJumpsToTheControl) {
  session_.set("expert_parallel", "3");
  ASSERT_TRUE(fails(session_));
  const TableData& problems = window_.problems()->table();
  ASSERT_FALSE(problems.rows.empty());
  EXPECT_EQ(problems.rows[0].id, "expert_parallel");
  press(Qt::Key_0, Qt::ControlModifier);
  EXPECT_TRUE(window_.problems()->hasFocus());
  press(Qt::Key_Return);
  EXPECT_EQ(QApplication::focusWidget(), window_.inputs()->row("expert_parallel")->entry());
}

TEST_F(Window, OpensTheFormulaOfACategory) {
  window_.open_tab(0);
  HullView* hull = window_.memory()->hull();
  hull->setFocus();
  hull->grab();  // paints, offscreen
  press(Qt::Key_Up);
  EXPECT_NE(hull->highlighted(), "");
  window_.memory()->ledger()->select_id("gpu.categories_at_peak.optimizer_moments");
  const TableData& terms = window_.memory()->explained()->table()->table();
  ASSERT_FALSE(terms.rows.empty());
  for (const TableRow& row : terms.rows) {
    if (row.cells[0].text == "allocator_slack") continue;
    EXPECT_EQ(row.cells[5].text, "optimizer_moments");
  }
}

TEST_F(Window, ShowsTheCriticalPathOnWhateverRankItGoes) {
  session_.set("zero.stage", "1");  // whose ranks differ, so that several are on the clock
  ASSERT_TRUE(settles(session_));
  window_.open_tab(2);
  TimelineView* timeline = window_.time()->timeline();
  const Timeline& simulated = session_.good()->step->timeline;
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
  window_.open_tab(2);
  TimelineView* timeline = window_.time()->timeline();
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
  window_.open_tab(1);
  window_.communication()->volumes()->copy_csv();
  EXPECT_THAT(QApplication::clipboard()->text().toStdString(), ::testing::StartsWith("collective,group,phase,tier"));
  window_.communication()->volumes()->setFocus();
  press(Qt::Key_C, Qt::ControlModifier);
  EXPECT_THAT(QApplication::clipboard()->text().toStdString(), ::testing::HasSubstr("all_gather"));
}

TEST_F(Window, ExportsPicturesAndAReport) {
  const QTemporaryDir folder;
  for (const char* name : {"view.png", "view.svg", "view.pdf"}) {
    EXPECT_EQ(save_picture(*window_.memory(), folder.filePath(name)).toStdString(), "");
    EXPECT_GT(QFile(folder.filePath(name)).size(), 2000) << name;
  }
  EXPECT_EQ(save_report(session_.good(), folder.filePath("report.pdf")).toStdString(), "");
  EXPECT_GT(QFile(folder.filePath("report.pdf")).size(), 20000);
  const std::string html = report_html(*session_.good()).toStdString();
  EXPECT_THAT(html, ::testing::HasSubstr("llama-3.2-1b on 8 x h100"));
  EXPECT_THAT(html, ::testing::HasSubstr(session_.good()->evaluation->program.digest));
  EXPECT_NE(save_report(session_.good(), folder.filePath("no/folder/report.pdf")).toStdString(), "");
  EXPECT_NE(save_picture(*window_.memory(), folder.filePath("no/folder/view.png")).toStdString(), "");
}

TEST_F(Window, StaysAliveWithBrokenFilesDropped) {
  const QTemporaryDir folder;
  AnswerPtr good = session_.good();
  for (const char* text : {"", "{", "\xff\xfe", "[1, 2", R"({"hidden_size": "x"})"}) {
    const QString path = folder.filePath("config.json");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(text);
    file.close();
    session_.reload();
    window_.open_file(path);
    ASSERT_TRUE(fails(session_)) << text;
    EXPECT_FALSE(window_.problems()->table().rows.empty()) << text;
    EXPECT_EQ(session_.good(), good) << text;
    session_.set_model("llama-3.2-1b");
    ASSERT_TRUE(settles(session_));
    good = session_.good();
  }
}

TEST_F(Window, GoesThroughItsPanesByF6) {
  window_.open_tab(0);
  EXPECT_TRUE(window_.memory()->hull()->hasFocus());
  press(Qt::Key_F6);
  EXPECT_TRUE(window_.problems()->hasFocus());
  press(Qt::Key_F6);
  EXPECT_TRUE(window_.inputs()->isAncestorOf(QApplication::focusWidget()));
  press(Qt::Key_F6, Qt::ShiftModifier);
  EXPECT_TRUE(window_.problems()->hasFocus());
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
  type(window_.inputs()->model_box(), "qwen3-30b-a3b");
  window_.inputs()->cluster_box()->setFocus(Qt::TabFocusReason);
  type(window_.inputs()->cluster_box(), "8xh100");
  window_.inputs()->nodes_box()->setFocus(Qt::TabFocusReason);
  press(Qt::Key_Up);
  press(Qt::Key_Up);
  window_.inputs()->row("sequence")->slider()->setFocus(Qt::ShortcutFocusReason);
  while (session_.text().settings.count("sequence") == 0 || session_.text().settings.at("sequence") != "8192")
    press(Qt::Key_Right);
  ASSERT_TRUE(wait_until([&] { return !session_.is_stale(); }));
  EXPECT_EQ(session_.text().model, "qwen3-30b-a3b");
  EXPECT_EQ(session_.text().nodes, 2);
  EXPECT_EQ(session_.good()->scenario->plan.world_size, 16);

  press(Qt::Key_Return, Qt::ControlModifier);  // find plans
  ASSERT_TRUE(window_.recommendation()->job().is_running());
  ASSERT_TRUE(wait_until([&] { return !window_.recommendation()->job().is_running(); }));
  ASSERT_NE(window_.recommendation()->job().result(), nullptr);
  ASSERT_FALSE(window_.recommendation()->job().result()->plans.empty());
  EXPECT_TRUE(window_.recommendation()->plans()->hasFocus());
  press(Qt::Key_Return);  // loads the best
  ASSERT_TRUE(settles(session_));
  EXPECT_NE(session_.good()->ledger->verdict, Verdict::oom);  // a slow machine finds one in time that fits tightly
  EXPECT_EQ(session_.good()->ledger->verdict,
            window_.recommendation()->job().result()->plans.front().found.evaluated.verdict);
  EXPECT_EQ(session_.good()->scenario->plan.sequence, 8192);

  press(Qt::Key_B, Qt::ControlModifier);  // this is B; A is the same with the experts sharded another way
  const std::string other = session_.good()->scenario->plan.expert_parallel == 8 ? "1" : "8";
  session_.set("moe.implementation", "autoep");
  session_.set("expert_parallel", QString::fromStdString(other));
  ASSERT_TRUE(settles(session_));
  press(Qt::Key_5, Qt::ControlModifier);
  ASSERT_TRUE(wait_until([&] { return session_.compared_answer() && session_.compared_answer()->settled; }));
  EXPECT_FALSE(window_.comparison()->terms()->table().rows.empty());

  const QTemporaryDir folder;
  EXPECT_EQ(save_report(session_.good(), folder.filePath("report.pdf")).toStdString(), "");
  EXPECT_EQ(save_ds_config(*session_.good(), folder.filePath("ds_config.json")).toStdString(), "");
  EXPECT_EQ(kind_of_file(folder.filePath("ds_config.json")), FileKind::ds_config);
  EXPECT_EQ(window_.recommendation()->write_files_to(folder.filePath("run")).toStdString(), "");
  for (const char* name : {"run/plan.json", "run/ds_config.json", "run/launch.sh", "run/report.md"})
    EXPECT_TRUE(QFile::exists(folder.filePath(name))) << name;
}

}  // namespace
}  // namespace plimsoll::gui
