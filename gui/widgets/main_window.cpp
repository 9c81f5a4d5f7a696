// The window (gui/widgets/main_window.hpp); its menus: main_menus.cpp.
#include "gui/widgets/main_window.hpp"

#include <QApplication>
#include <QComboBox>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QFileInfo>
#include <QLabel>
#include <QMimeData>
#include <QSettings>
#include <QStatusBar>
#include <QTabWidget>
#include <QVBoxLayout>
#include <algorithm>

#include "gui/models/tables.hpp"
#include "gui/widgets/banner.hpp"
#include "gui/widgets/compare_page.hpp"
#include "gui/widgets/inputs_panel.hpp"
#include "gui/widgets/memory_page.hpp"
#include "gui/widgets/recommend_page.hpp"
#include "gui/widgets/step_pages.hpp"
#include "gui/widgets/table_view.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {

MainWindow::MainWindow(Session& session)
    : session_(session),
      banner_(new Banner),
      inputs_(new InputsPanel(session)),
      tabs_(new QTabWidget),
      memory_(new MemoryPage),
      communication_(new CommunicationPage),
      time_(new TimePage),
      recommend_(new RecommendPage(session)),
      compare_(new ComparePage(session)),
      measured_(new MeasuredPage(session)),
      pages_{memory_, communication_, time_, recommend_, compare_, measured_},
      problems_(new TableView(tr("Problems"))),
      problems_dock_(new QDockWidget(tr("Problems"))),
      state_(new QLabel) {
  setWindowTitle(tr("Plimsoll"));
  setAcceptDrops(true);
  setLocale(QLocale::c());  // figures are written as files and the command line have them, in every country
  resize(1440, 900);
  const QStringList titles{tr("Memory"),    tr("Communication"), tr("Time"),
                           tr("Recommend"), tr("Compare A/B"),   tr("Measured")};
  for (int i = 0; i < titles.size(); ++i) tabs_->addTab(pages_[static_cast<std::size_t>(i)], titles[i]);
  tabs_->setDocumentMode(true);
  tabs_->setCurrentIndex(std::clamp(session_.tab, 0, static_cast<int>(pages_.size()) - 1));
  auto* centre = new QWidget;
  auto* layout = new QVBoxLayout(centre);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  layout->addWidget(banner_);
  layout->addWidget(tabs_, 1);
  setCentralWidget(centre);
  auto* inputs_dock = new QDockWidget(tr("Scenario"));
  inputs_dock->setObjectName("scenario");
  inputs_dock->setWidget(inputs_);
  inputs_dock->setFeatures(QDockWidget::DockWidgetMovable);
  addDockWidget(Qt::LeftDockWidgetArea, inputs_dock);
  problems_dock_->setObjectName("problems");
  problems_dock_->setWidget(problems_);
  problems_dock_->setFeatures(QDockWidget::DockWidgetMovable | QDockWidget::DockWidgetClosable);
  addDockWidget(Qt::BottomDockWidgetArea, problems_dock_);
  setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
  resizeDocks({inputs_dock}, {350}, Qt::Horizontal);
  resizeDocks({problems_dock_}, {110}, Qt::Vertical);
  statusBar()->addPermanentWidget(state_);
  connect(statusBar(), &QStatusBar::messageChanged, state_,
          [this](const QString& words) { state_->setVisible(words.isEmpty()); });  // a message needs the room
  build_menus();
  connect(&session_, &Session::text_changed, this, [this] {
    since_edit_.start();
    waiting_ = true;
    refused_.clear();
    show_state();
  });
  connect(&session_, &Session::answered, this, &MainWindow::show_answer);
  connect(&session_, &Session::refused, this, [this](const Diagnostics& problems) {
    refused_ = problems;
    show_problems();
  });
  connect(tabs_, &QTabWidget::currentChanged, this, [this](int tab) {
    session_.tab = tab;
    show_page();
  });
  connect(problems_, &TableView::row_activated, this, &MainWindow::jump_to);
  connect(inputs_, &InputsPanel::refused, this,
          [this](const QString& words) { statusBar()->showMessage(words, 8000); });
  connect(banner_, &Banner::remedy_wanted, this, [this] {
    if (!session_.good() || !session_.good()->remedy) return;
    ScenarioText text = session_.text();
    for (const std::string& set : session_.good()->remedy->sets) {
      const std::size_t equals = set.find('=');
      text.settings[set.substr(0, equals)] = set.substr(equals + 1);
    }
    session_.set_text(text);
  });
  show_answer();
  pages_[static_cast<std::size_t>(tabs_->currentIndex())]->first_focus()->setFocus();
}

void MainWindow::open_tab(int index) {
  tabs_->setCurrentIndex(index);
  pages_[static_cast<std::size_t>(index)]->first_focus()->setFocus(Qt::ShortcutFocusReason);
}

void MainWindow::show_answer() {
  const AnswerPtr& newest = session_.newest();
  banner_->show_answer(session_.good(), newest, session_.is_stale());
  show_page();
  show_problems();
  if (waiting_ && newest) {
    waiting_ = false;
    latency_ms_ = static_cast<double>(since_edit_.nsecsElapsed()) * 1e-6;
  }
  show_state();
}

void MainWindow::show_problems() {
  Diagnostics problems = refused_;
  if (const AnswerPtr& newest = session_.newest())
    problems.insert(problems.end(), newest->diagnostics.begin(), newest->diagnostics.end());
  problems_->show_table(problems_table(problems));
  problems_dock_->setWindowTitle(tr("Problems: %1").arg(QString::fromStdString(problems_in_words(problems))));
}

void MainWindow::show_page() {
  if (session_.good())
    pages_[static_cast<std::size_t>(tabs_->currentIndex())]->show_answer(session_.good(), session_.is_stale());
}

void MainWindow::show_state() {
  undo_->setEnabled(session_.can_undo());
  redo_->setEnabled(session_.can_redo());
  const AnswerPtr& good = session_.good();
  QString words;
  if (good) words = QString::fromStdString(scenario_in_words(*good->scenario));
  if (session_.is_stale() && good) {
    words = tr("stale: %1").arg(words);
  } else if (good && !good->settled) {
    words = tr("%1 - replaying the allocator").arg(words);
  } else if (good && !good->step) {
    words = tr("%1 - simulating").arg(words);
  }
  state_->setText(words);
  setWindowTitle(file_.isEmpty() ? tr("Plimsoll") : tr("%1 - Plimsoll").arg(QFileInfo(file_).fileName()));
}

/// To the control of the key, or of the nearest key above it.
void MainWindow::jump_to(const QString& key) {
  for (QString at = key; !at.isEmpty(); at = at.contains('.') ? at.section('.', 0, -2) : QString())
    if (inputs_->focus_key(at)) return;
  statusBar()->showMessage(key.isEmpty() ? tr("This is about no control: see the place in the file")
                                         : tr("%1 has no control: see the place in the file").arg(key),
                           6000);
}

void MainWindow::open_file(const QString& path) {
  if (is_record(path)) {
    open_tab(static_cast<int>(std::find(pages_.begin(), pages_.end(), measured_) - pages_.begin()));
    measured_->open(path);
    return remember(path);
  }
  const QString kind = session_.open_any(path);
  if (kind.isEmpty()) {
    statusBar()->showMessage(tr("%1 is broken: see Problems").arg(path), 8000);
    return;
  }
  if (path.endsWith(".plimsoll")) file_ = path;
  remember(path);
  statusBar()->showMessage(tr("%1 opened as %2").arg(path, kind), 4000);
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
  if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
  for (const QUrl& url : event->mimeData()->urls())
    if (url.isLocalFile()) open_file(url.toLocalFile());
}

void MainWindow::closeEvent(QCloseEvent* event) {
  QSettings().setValue("geometry", saveGeometry());
  QMainWindow::closeEvent(event);
}

/// F6 goes through the panes: inputs, the tab's view, problems.
void MainWindow::next_pane(int by) {
  const std::vector<QWidget*> panes = {
      inputs_->model_box(), pages_[static_cast<std::size_t>(tabs_->currentIndex())]->first_focus(), problems_};
  const std::vector<QWidget*> holders = {inputs_, tabs_, problems_};
  int now = 0;
  for (std::size_t i = 0; i < holders.size(); ++i)
    if (QApplication::focusWidget() != nullptr &&
        (holders[i] == QApplication::focusWidget() || holders[i]->isAncestorOf(QApplication::focusWidget())))
      now = static_cast<int>(i);
  const auto count = static_cast<int>(panes.size());
  panes[static_cast<std::size_t>((now + by + count) % count)]->setFocus(Qt::TabFocusReason);
}

}  // namespace plimsoll::gui
