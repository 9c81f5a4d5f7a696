// The window: inputs at the left, the answer at the top, views in tabs, problems at the bottom.  It shows what a session holds,
// and turns menus, keys and dropped files into edits of it.
#pragma once

#include <QElapsedTimer>
#include <QMainWindow>

#include "gui/session/session.hpp"

class QLabel;
class QTabWidget;

namespace plimsoll::gui {

class Banner;
class CommunicationPage;
class ComparePage;
class InputsPanel;
class MeasuredPage;
class MemoryPage;
class Page;
class RecommendPage;
class TableView;
class TimePage;

class MainWindow : public QMainWindow {
  Q_OBJECT
 public:
  explicit MainWindow(Session& session);

  /// From an edit to the frame that shows its first answer, of the last edit.
  double last_latency_ms() const { return latency_ms_; }
  InputsPanel* inputs() const { return inputs_; }
  MemoryPage* memory() const { return memory_; }
  CommunicationPage* communication() const { return communication_; }
  TimePage* time() const { return time_; }
  RecommendPage* recommendation() const { return recommend_; }
  ComparePage* comparison() const { return compare_; }
  MeasuredPage* measured() const { return measured_; }
  TableView* problems() const { return problems_; }
  Banner* banner() const { return banner_; }
  QTabWidget* tabs() const { return tabs_; }
  void open_tab(int index);

 public Q_SLOTS:
  void open_file(const QString& path);

 protected:
  void closeEvent(QCloseEvent* event) override;
  void dragEnterEvent(QDragEnterEvent* event) override;
  void dropEvent(QDropEvent* event) override;

 private:
  void build_menus();
  void build_file_menu();
  void build_edit_menu();
  void build_view_menu();
  void build_help_menu();
  void show_answer();
  void show_problems();
  void show_page();
  void show_state();
  void jump_to(const QString& key);
  void save(bool ask);
  void remember(const QString& path);
  void fill_recent();
  void report(const QString& done, const QString& error);
  QString ask_for_file(const QString& title, const QString& filter, const QString& suggestion);
  void next_pane(int by);

  Session& session_;
  Banner* banner_;
  InputsPanel* inputs_;
  QTabWidget* tabs_;
  MemoryPage* memory_;
  CommunicationPage* communication_;
  TimePage* time_;
  RecommendPage* recommend_;
  ComparePage* compare_;
  MeasuredPage* measured_;
  std::vector<Page*> pages_;
  TableView* problems_;
  class QDockWidget* problems_dock_;
  QLabel* state_;
  class QMenu* recent_ = nullptr;
  QAction *undo_ = nullptr, *redo_ = nullptr;
  Diagnostics refused_;  ///< of a file that could not be opened, until the next edit
  QString file_;
  QElapsedTimer since_edit_;
  bool waiting_ = false;
  double latency_ms_ = 0;
};

}  // namespace plimsoll::gui
