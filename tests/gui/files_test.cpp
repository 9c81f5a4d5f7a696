// Files in and out of the window: dropped, chosen in a dialog, recent ones, and records of real steps.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <QApplication>
#include <QDragEnterEvent>
#include <QDropEvent>
#include <QFile>
#include <QFileDialog>
#include <QLineEdit>
#include <QMenu>
#include <QMenuBar>
#include <QMessageBox>
#include <QMimeData>
#include <QSettings>
#include <QTabWidget>
#include <QTemporaryDir>
#include <QTest>

#include "gui/models/run_table.hpp"
#include "gui/widgets/compare_page.hpp"
#include "gui/widgets/main_window.hpp"
#include "gui/widgets/recommend_page.hpp"
#include "gui/widgets/table_view.hpp"
#include "tests/gui/support.hpp"

namespace plimsoll::gui {
namespace {

using testing::settles;
using testing::small_state;
using testing::wait_until;

constexpr const char* model_text = R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
  "tie_word_embeddings": false})";

class Files : public ::testing::Test {
 protected:
  Files() : session(small_state(), {}), window(session) {
    QSettings().clear();
    window.show();
    QApplication::setActiveWindow(&window);
    EXPECT_TRUE(settles(session));
  }
  QString write(const QString& name, const std::string& text) const {
    QFile file(folder.filePath(name));
    EXPECT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(text.data(), static_cast<qint64>(text.size()));
    return file.fileName();
  }
  /// @return true if the window takes it
  bool drop(const QMimeData& data) {
    QDragEnterEvent enter(QPoint(50, 50), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
    enter.ignore();
    QApplication::sendEvent(&window, &enter);
    if (!enter.isAccepted()) return false;
    QDropEvent event(QPointF(50, 50), Qt::CopyAction, &data, Qt::LeftButton, Qt::NoModifier);
    QApplication::sendEvent(&window, &event);
    return true;
  }
  bool drop(const QStringList& paths) {
    QMimeData data;
    QList<QUrl> urls;
    for (const QString& path : paths) urls.append(QUrl::fromLocalFile(path));
    data.setUrls(urls);
    return drop(data);
  }
  /// Presses the keys, and answers the dialog that they open: the path and Return, or Escape.
  void press_and_answer(Qt::Key key, const QString& path) {
    bool answered = false;
    QTimer timer;
    QObject::connect(&timer, &QTimer::timeout, [&] {
      auto* dialog = qobject_cast<QFileDialog*>(QApplication::activeModalWidget());
      if (dialog == nullptr || answered) return;
      answered = true;
      if (path.isEmpty()) return dialog->reject();
      dialog->findChild<QLineEdit*>("fileNameEdit")->setText(path);
      QMetaObject::invokeMethod(dialog, "accept");
    });
    timer.start(10);
    QApplication::setActiveWindow(&window);  // no window system does it where a dialog has closed
    QTest::keyClick(&window, key, Qt::ControlModifier);
    EXPECT_TRUE(answered) << "no dialog came";
  }
  QStringList recent() const { return QSettings().value("recent").toStringList(); }
  QMenu* recent_menu() const {
    for (QMenu* menu : window.menuBar()->findChildren<QMenu*>())
      if (menu->title().contains("Recent")) return menu;
    return nullptr;
  }
  bool has_errors_in_problems() const {
    const auto& rows = window.problems()->table().rows;
    return !rows.empty() && rows[0].cells[0].text == "error" && !rows[0].cells[2].text.empty();
  }
  int tab() const { return window.findChild<QTabWidget*>()->currentIndex(); }

  Session session;
  MainWindow window;
  QTemporaryDir folder;
};

TEST_F(Files, AreOpenedWhereTheyAreDropped) {
  const QString model = write("config.json", model_text), plan = write("plan.json", R"({"micro_batch": 3})");
  ASSERT_TRUE(drop({model, plan}));
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.text().model, model.toStdString());
  EXPECT_EQ(session.good()->scenario->plan.micro_batch, 3);
  EXPECT_EQ(recent(), QStringList({plan, model}));
}

TEST_F(Files, AreAllThatIsTakenWhereSomethingIsDropped) {
  const std::string before = session.text().model;
  QMimeData words;
  words.setText("llama-3.2-3b");
  EXPECT_FALSE(drop(words));
  QMimeData remote;
  remote.setUrls({QUrl("https://example.org/config.json")});
  drop(remote);
  EXPECT_EQ(session.text().model, before);
  EXPECT_TRUE(recent().isEmpty());
}

TEST_F(Files, OpenedLatelyStandInTheMenuTheLastOneFirst) {
  ASSERT_NE(recent_menu(), nullptr);
  Q_EMIT recent_menu()->aboutToShow();
  ASSERT_EQ(recent_menu()->actions().size(), 1);
  EXPECT_FALSE(recent_menu()->actions().front()->isEnabled());
  QStringList opened;
  for (int i = 0; i < 10; ++i) {
    opened.prepend(write(QString("plan%1.json").arg(i), fmt::format(R"({{"micro_batch": {}}})", i + 1)));
    window.open_file(opened.front());
  }
  window.open_file(opened[3]);  // again: it moves to the front
  opened.move(3, 0);
  Q_EMIT recent_menu()->aboutToShow();
  QStringList shown;
  for (const QAction* action : recent_menu()->actions()) shown.append(action->text());
  EXPECT_EQ(shown, opened.mid(0, 8));
  recent_menu()->actions().at(2)->trigger();
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.text().plan_file, opened[2].toStdString());
}

TEST_F(Files, ThatAreBrokenOfEveryKindAreToldWhereAndTheLastGoodAnswerStays) {
  for (const char* name :
       {"config.json", "cluster.json", "plan.json", "ds_config.json", "picture.png", "mine.plimsoll"})
    for (const char* text : {"", "{\n  \"micro_batch\": ", "\x89PNG\r\n", R"({"plimsoll_session": 1})"}) {
      const AnswerPtr good = session.good();
      session.reload();  // the same path has other text
      ASSERT_TRUE(settles(session));
      window.open_file(write(name, text));
      ASSERT_TRUE(wait_until([&] { return has_errors_in_problems(); })) << name << ": " << text;
      EXPECT_EQ(session.good()->text, good->text) << name << ": " << text;
      session.undo();
      ASSERT_TRUE(settles(session));
    }
}

TEST_F(Files, BrokenOnesAreNotRemembered) {
  window.open_file(write("config.json", "{"));
  EXPECT_TRUE(recent().isEmpty());
}

TEST_F(Files, AreChosenInADialogAndSavedByOne) {
  const std::string before = session.text().model;
  press_and_answer(Qt::Key_O, {});
  EXPECT_EQ(session.text().model, before);
  const QString model = write("config.json", model_text);
  press_and_answer(Qt::Key_O, model);
  ASSERT_TRUE(settles(session));
  EXPECT_EQ(session.text().model, model.toStdString());
  press_and_answer(Qt::Key_D, folder.filePath("ds.json"));
  EXPECT_EQ(kind_of_file(folder.filePath("ds.json")), FileKind::ds_config);
  press_and_answer(Qt::Key_S, folder.filePath("mine.plimsoll"));
  EXPECT_EQ(kind_of_file(folder.filePath("mine.plimsoll")), FileKind::session);
}

TEST_F(Files, StandWholeInTheScriptThatStartsTheBestPlan) {
  const QString model = write("config.json", model_text);
  ASSERT_TRUE(drop({model}));
  session.set("engine", "plimsoll");
  session.set("world_size", "2");
  ASSERT_TRUE(settles(session));
  RecommendPage& page = *window.recommendation();
  page.search_or_cancel();
  ASSERT_TRUE(wait_until([&] { return !page.job().is_running(); }));
  ASSERT_NE(page.job().result(), nullptr);
  session.set_model("llama-3.2-1b");  // another question since: the files are the answered one's
  EXPECT_EQ(page.write_files_to(folder.filePath("run")).toStdString(), "");
  QFile script(folder.filePath("run/launch.sh"));
  ASSERT_TRUE(script.open(QIODevice::ReadOnly));
  EXPECT_THAT(script.readAll().toStdString(),
              ::testing::HasSubstr(fmt::format("MODEL=${{MODEL:-'{}'}}\n", model.toStdString())));
}

/// A log of two steps of the scenario, as plimsoll-run writes it.
std::string log_of(const ScenarioText& text) {
  const AnswerPtr answer = answer_fully(text);
  return fmt::format(R"({{"digest":"{}","backend":"cuda","world_size":8}})", answer->evaluation->program.digest) +
         R"(
{"step":1,"loss":11.5,"skipped":false,"step_time_s":9.0,"tokens_per_s_per_rank":1000.0,"high_water_bytes":4096}
{"step":2,"loss":10.25,"skipped":true,"step_time_s":0.5,"tokens_per_s_per_rank":16384.0,"high_water_bytes":4096}
)";
}

TEST_F(Files, OfRunsStandBesideTheirPrediction) {
  session.set("engine", "plimsoll");
  ASSERT_TRUE(settles(session));
  const QString log = write("run.log", log_of(session.text()));
  ASSERT_TRUE(drop({log}));
  EXPECT_EQ(tab(), 5);
  ASSERT_TRUE(wait_until([&] { return window.measured()->sums()->table().rows.size() == 3; }));
  const std::string sums = to_text(window.measured()->sums()->table());
  EXPECT_THAT(sums, ::testing::ContainsRegex("arena bytes +[0-9,]+ +4,096"));
  EXPECT_THAT(sums, ::testing::ContainsRegex("step time +[0-9.]+ m?s +500 ms"));
  const std::string steps = to_text(window.measured()->details()->table());
  EXPECT_THAT(steps, ::testing::ContainsRegex("2 +10.2500 +500 ms +16,384 +skipped"));
  EXPECT_EQ(recent(), QStringList(log));
}

TEST_F(Files, OfRunsOfAnotherProgramSaySo) {
  ScenarioText other = session.text();
  other.settings["engine"] = "plimsoll";
  const MeasuredRecord record = compare_with_file(session.text(), write("run.log", log_of(other)).toStdString());
  EXPECT_EQ(record.run, nullptr);
  ASSERT_TRUE(has_errors(record.diagnostics));
  EXPECT_THAT(record.diagnostics.back().message, ::testing::HasSubstr("the log is of program"));
}

TEST_F(Files, OfRecordsAreToldByTheirBeginning) {
  EXPECT_TRUE(is_record(write("a", R"({"schemaVersion": 1, "traceEvents": []})")));
  EXPECT_TRUE(is_record(write("b", R"({"live_before": 0, "events": []})")));
  EXPECT_TRUE(is_record(write("c", R"({"digest": "0", "backend": "host"})")));
  EXPECT_FALSE(is_record(write("d", model_text)));
  EXPECT_FALSE(is_record(write("e", "")));
  EXPECT_FALSE(is_record(folder.filePath("nowhere")));
}

}  // namespace
}  // namespace plimsoll::gui
