// Draws the pictures of the documents: the window with real presets, once in each of its tabs, light and dark.
//
//   gui_screenshots FOLDER      writes FOLDER/*.png; `./dev screenshots` runs it on a virtual screen
#include <fmt/format.h>

#include <QApplication>
#include <QDir>
#include <QImage>
#include <QStandardPaths>
#include <QStyleFactory>
#include <QTabWidget>
#include <QThread>
#include <algorithm>
#include <cstdlib>
#include <map>

#include "gui/widgets/compare_page.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/main_window.hpp"
#include "gui/widgets/memory_page.hpp"
#include "gui/widgets/recommend_page.hpp"
#include "gui/widgets/step_pages.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "tests/gui/support.hpp"

namespace {

using namespace plimsoll::gui;
using testing::scenario_text;
using testing::settles;
using testing::wait_until;

QPalette dark_palette() {
  QPalette palette;
  const QColor window("#24282e"), base("#1b1e23"), text("#dde1e6");
  palette.setColor(QPalette::Window, window);
  palette.setColor(QPalette::WindowText, text);
  palette.setColor(QPalette::Base, base);
  palette.setColor(QPalette::AlternateBase, QColor("#20242a"));
  palette.setColor(QPalette::Text, text);
  palette.setColor(QPalette::Button, QColor("#2d3239"));
  palette.setColor(QPalette::ButtonText, text);
  palette.setColor(QPalette::ToolTipBase, window);
  palette.setColor(QPalette::ToolTipText, text);
  palette.setColor(QPalette::PlaceholderText, QColor("#8a8f98"));
  palette.setColor(QPalette::Highlight, QColor("#3b6ea5"));
  palette.setColor(QPalette::HighlightedText, Qt::white);
  palette.setColor(QPalette::Disabled, QPalette::Text, QColor("#7a8088"));
  palette.setColor(QPalette::Disabled, QPalette::ButtonText, QColor("#7a8088"));
  palette.setColor(QPalette::Light, QColor("#3a4048"));
  palette.setColor(QPalette::Midlight, QColor("#343940"));
  palette.setColor(QPalette::Mid, QColor("#4a5058"));
  palette.setColor(QPalette::Dark, QColor("#15171a"));
  return palette;
}

/// At most 256 colours, commonest first, none too near to another: enough for a window, and the file is small.
QImage with_few_colours(const QImage& picture) {
  constexpr int near = 14;
  std::map<QRgb, int> counts;
  for (int y = 0; y < picture.height(); ++y)
    for (int x = 0; x < picture.width(); ++x) ++counts[picture.pixel(x, y)];
  std::vector<std::pair<int, QRgb>> commonest;
  for (const auto& [colour, count] : counts) commonest.emplace_back(count, colour);
  std::sort(commonest.rbegin(), commonest.rend());
  QList<QRgb> table;
  for (const auto& [count, colour] : commonest) {
    const bool known = std::any_of(table.begin(), table.end(), [rgb = colour](QRgb other) {
      return std::abs(qRed(rgb) - qRed(other)) + std::abs(qGreen(rgb) - qGreen(other)) +
                 std::abs(qBlue(rgb) - qBlue(other)) <
             near;
    });
    if (!known && table.size() < 256) table.append(colour);
  }
  return picture.convertToFormat(QImage::Format_Indexed8, table, Qt::ThresholdDither | Qt::AvoidDither);
}

bool save(MainWindow& window, const QString& path) {
  for (int i = 0; i < 20; ++i) {
    QCoreApplication::processEvents(QEventLoop::AllEvents, 20);
    QThread::msleep(10);
  }
  const QImage picture = window.grab().toImage().convertToFormat(QImage::Format_RGB32);
  const bool saved = with_few_colours(picture).save(path, "PNG", 0);
  fmt::print("{}\n", path.toStdString());
  return saved;
}

int draw(const QDir& folder) {
  SessionState state;
  state.scenario = scenario_text(
      "mixtral-8x7b", "8xh200",
      {{"zero.stage", "3"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}, {"sequence", "2048"}});
  Session session(state, {});
  MainWindow window(session);
  window.resize(1360, 820);
  window.show();
  bool good = settles(session);
  window.memory()->ledger()->select_id("gpu.categories_at_peak.expert_buffers");
  good = save(window, folder.filePath("memory.png")) && good;
  session.set_text(scenario_text("deepseek-v3", "8xh100",
                                 {{"zero.stage", "3"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}}));
  session.set_cluster("8xh100", 32);
  good = settles(session) && good;
  window.open_tab(0);
  good = save(window, folder.filePath("out-of-memory.png")) && good;
  session.set_text(scenario_text(
      "mixtral-8x7b", "16xh100",
      {{"zero.stage", "1"}, {"expert_parallel", "8"}, {"moe.implementation", "autoep"}, {"sequence", "2048"}}));
  window.open_tab(1);
  good = settles(session) && good;
  good = save(window, folder.filePath("communication.png")) && good;
  session.set_text(state.scenario);
  window.open_tab(2);
  good = settles(session) && good;
  window.time()->timeline()->zoom(12, 600);
  window.time()->timeline()->select(
      session.good()->step->timeline.critical_path[session.good()->step->timeline.critical_path.size() / 2]);
  good = save(window, folder.filePath("time.png")) && good;
  ScenarioText qwen = scenario_text("qwen3-30b-a3b", "8xh100", {{"sequence", "8192"}});
  qwen.nodes = 2;
  session.set_text(qwen);
  window.open_tab(3);
  good = wait_until([&] { return !session.is_stale(); }) && good;
  window.recommendation()->search_or_cancel();
  good = wait_until([&] { return !window.recommendation()->job().is_running(); }) && good;
  good = save(window, folder.filePath("recommend.png")) && good;
  window.recommendation()->load(0);
  good = settles(session) && good;
  session.compare_with_now();
  session.set("expert_parallel", session.good()->scenario->plan.expert_parallel == 8 ? "1" : "8");
  window.open_tab(4);
  good = settles(session) &&
         wait_until([&] { return session.compared_answer() && session.compared_answer()->settled; }) && good;
  good = save(window, folder.filePath("compare.png")) && good;
  QApplication::setPalette(dark_palette());
  session.set_text(state.scenario);
  window.open_tab(0);
  good = settles(session) && good;
  good = save(window, folder.filePath("dark.png")) && good;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  QStandardPaths::setTestModeEnabled(true);
  QApplication application(argc, argv);
  QApplication::setStyle(QStyleFactory::create("Fusion"));
  if (argc != 2 || !QDir().mkpath(argv[1])) {
    fmt::print(stderr, "usage: gui_screenshots FOLDER\n");
    return 2;
  }
  return draw(QDir(argv[1]));
}
