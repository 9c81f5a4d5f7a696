// Menus and keys of the window (gui/widgets/main_window.hpp).
#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QFileDialog>
#include <QMenuBar>
#include <QMessageBox>
#include <QSettings>
#include <QShortcut>
#include <QStatusBar>
#include <QTabWidget>

#include "gui/widgets/banner.hpp"
#include "gui/widgets/compare_page.hpp"
#include "gui/widgets/inputs_panel.hpp"
#include "gui/widgets/main_window.hpp"
#include "gui/widgets/memory_page.hpp"
#include "gui/widgets/recommend_page.hpp"
#include "gui/widgets/report.hpp"
#include "gui/widgets/table_view.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/cli/json_output.hpp"

namespace plimsoll::gui {
namespace {

constexpr int most_recent = 8;

}  // namespace

void MainWindow::build_menus() {
  build_file_menu();
  build_edit_menu();
  build_view_menu();
  build_help_menu();
}

QString MainWindow::ask_for_file(const QString& title, const QString& filter, const QString& suggestion) {
  return QFileDialog::getSaveFileName(this, title, suggestion, filter);
}

void MainWindow::report(const QString& done, const QString& error) {
  if (error.isEmpty()) {
    statusBar()->showMessage(done, 5000);
  } else {
    QMessageBox::warning(this, tr("Not written"), error);
  }
}

void MainWindow::build_file_menu() {
  QMenu* menu = menuBar()->addMenu(tr("&File"));
  menu->addAction(tr("&Open…"), QKeySequence::Open, this, [this] {
    const QString path =
        QFileDialog::getOpenFileName(this, tr("Open a model, cluster, plan, session or record"), {},
                                     tr("All of them (*.json *.plimsoll *.jsonl *.log *.gz);;All files (*)"));
    if (!path.isEmpty()) open_file(path);
  });
  recent_ = menu->addMenu(tr("&Recent files"));
  connect(recent_, &QMenu::aboutToShow, this, &MainWindow::fill_recent);
  menu->addAction(tr("&Save session"), QKeySequence::Save, this, [this] { save(false); });
  menu->addAction(tr("Save session &as…"), QKeySequence::SaveAs, this, [this] { save(true); });
  menu->addSeparator();
  const auto with_answer = [this](auto save, const QString& title, const QString& filter, const QString& name) {
    if (!session_.good() || !session_.good()->settled) return report({}, tr("there is no settled answer yet"));
    const QString path = ask_for_file(title, filter, name);
    if (!path.isEmpty()) report(tr("%1 written").arg(path), save(path));
  };
  menu->addAction(tr("Export r&eport…"), QKeySequence(tr("Ctrl+P")), this, [this, with_answer] {
    with_answer([this](const QString& path) { return save_report(session_.good(), path); }, tr("Export a report"),
                tr("PDF (*.pdf)"), "plimsoll-report.pdf");
  });
  menu->addAction(tr("Export &ds_config…"), QKeySequence(tr("Ctrl+D")), this, [this, with_answer] {
    with_answer([this](const QString& path) { return save_ds_config(*session_.good(), path); },
                tr("Export a ds_config.json"), tr("JSON (*.json)"), "ds_config.json");
  });
  menu->addAction(tr("Export p&lan…"), QKeySequence(tr("Ctrl+L")), this, [this, with_answer] {
    with_answer([this](const QString& path) { return save_plan(*session_.good(), path); }, tr("Export a plan.json"),
                tr("JSON (*.json)"), "plan.json");
  });
  menu->addAction(tr("Export &view as picture…"), QKeySequence(tr("Ctrl+Shift+P")), this, [this] {
    const QString path =
        ask_for_file(tr("Export the view"), tr("PNG (*.png);;SVG (*.svg);;PDF (*.pdf)"), "plimsoll.png");
    if (!path.isEmpty()) report(tr("%1 written").arg(path), save_picture(*tabs_->currentWidget(), path));
  });
  menu->addSeparator();
  menu->addAction(tr("&Quit"), QKeySequence::Quit, this, &QWidget::close);
}

void MainWindow::build_edit_menu() {
  QMenu* menu = menuBar()->addMenu(tr("&Edit"));
  undo_ = menu->addAction(tr("&Undo"), QKeySequence::Undo, &session_, &Session::undo);
  redo_ = menu->addAction(tr("&Redo"), QKeySequence(tr("Ctrl+Shift+Z")), &session_, &Session::redo);
  menu->addSeparator();
  menu->addAction(tr("Make the smallest change that &fits"), QKeySequence(tr("Ctrl+Shift+F")), banner_,
                  &Banner::remedy_wanted);
  menu->addAction(tr("&Keep as plan B"), QKeySequence(tr("Ctrl+B")), this, [this] {
    session_.compare_with_now();
    statusBar()->showMessage(tr("Kept as plan B: see Compare A/B"), 4000);
  });
  menu->addAction(tr("&Swap A and B"), QKeySequence(tr("Ctrl+Shift+B")), &session_, &Session::swap_with_compared);
  menu->addAction(tr("F&ind plans"), QKeySequence(tr("Ctrl+Return")), this, [this] {
    open_tab(3);
    recommend_->search_or_cancel();
  });
  menu->addSeparator();
  menu->addAction(tr("Copy the &command line"), QKeySequence(tr("Ctrl+Shift+C")), this, [this] {
    QApplication::clipboard()->setText(QString::fromStdString(command_line_of(session_.text(), "ledger")));
    statusBar()->showMessage(tr("Copied: the command that answers the same"), 4000);
  });
  menu->addAction(tr("Copy the answer as &JSON"), QKeySequence(tr("Ctrl+J")), this, [this] {
    const AnswerPtr& good = session_.good();
    if (good && good->evaluation)
      QApplication::clipboard()->setText(
          QString::fromStdString(ledger_json(*good->evaluation, {good->remedy, good->all_changes_tried})));
  });
  menu->addSeparator();
  menu->addAction(tr("Read files &again"), QKeySequence::Refresh, &session_, &Session::reload);
  menu->addAction(tr("&Model…"), QKeySequence(tr("Ctrl+M")), this,
                  [this] { inputs_->model_box()->setFocus(Qt::ShortcutFocusReason); });
}

void MainWindow::build_view_menu() {
  QMenu* menu = menuBar()->addMenu(tr("&View"));
  for (int i = 0; i < tabs_->count(); ++i)
    menu->addAction(tabs_->tabText(i), QKeySequence(QStringLiteral("Ctrl+%1").arg(i + 1)), this,
                    [this, i] { open_tab(i); });
  menu->addSeparator();
  menu->addAction(tr("Next pane"), QKeySequence(tr("F6")), this, [this] { next_pane(1); });
  menu->addAction(tr("Previous pane"), QKeySequence(tr("Shift+F6")), this, [this] { next_pane(-1); });
  menu->addAction(tr("Problems"), QKeySequence(tr("Ctrl+0")), this, [this] {
    problems_->parentWidget()->show();
    problems_->setFocus(Qt::ShortcutFocusReason);
    if (!problems_->table().rows.empty()) problems_->selectRow(0);
  });
}

void MainWindow::build_help_menu() {
  QMenu* menu = menuBar()->addMenu(tr("&Help"));
  menu->addAction(tr("First &example"), this, [this] { session_.restore(first_example()); });
  menu->addAction(tr("&Words"), QKeySequence(tr("F1")), this, [this] {
    QString words = QStringLiteral("<table cellpadding='3'>");
    for (const Control& control : controls())
      words += QStringLiteral("<tr><td><b>%1</b></td><td>%2</td></tr>")
                   .arg(QString::fromStdString(control.key), QString::fromStdString(control.term).toHtmlEscaped());
    QMessageBox box(QMessageBox::NoIcon, tr("Words"), words + "</table>", QMessageBox::Close, this);
    box.exec();
  });
  menu->addAction(tr("&Keys"), this, [this] {
    QMessageBox::information(
        this, tr("Keys"),
        tr("<table cellpadding='3'><tr><td>Ctrl+1 … Ctrl+6</td><td>tabs</td></tr>"
           "<tr><td>F6, Shift+F6</td><td>next and previous pane: scenario, view, problems</td></tr>"
           "<tr><td>Alt with the underlined letter</td><td>a control of the scenario</td></tr>"
           "<tr><td>Ctrl+Return</td><td>find plans; Return on a plan loads it</td></tr>"
           "<tr><td>Ctrl+Shift+F</td><td>the smallest change that fits</td></tr>"
           "<tr><td>Ctrl+B, Ctrl+Shift+B</td><td>keep as plan B, swap A and B</td></tr>"
           "<tr><td>Ctrl+P, Ctrl+D, Ctrl+L</td><td>report, ds_config.json, plan.json</td></tr>"
           "<tr><td>hull</td><td>left and right: phase; up and down: category</td></tr>"
           "<tr><td>timeline</td><td>+ − zoom, arrows pan, Home all, , and . step through ops, up and down change the "
           "lane</td></tr></table>"));
  });
  menu->addAction(tr("&About Plimsoll"), this, [this] {
    QMessageBox::about(
        this, tr("About Plimsoll"),
        tr("<h3>Plimsoll %1</h3>Will this training run fit, what does it move, how long does a step take, and what "
           "should I use instead?<p>Apache-2.0")
            .arg(QApplication::applicationVersion()));
  });
}

void MainWindow::save(bool ask) {
  if (ask || file_.isEmpty()) {
    const QString path =
        ask_for_file(tr("Save the session"), tr("Sessions (*.plimsoll)"), file_.isEmpty() ? "session.plimsoll" : file_);
    if (path.isEmpty()) return;
    file_ = path;
  }
  const QString error = save_session(session_.state(), file_);
  if (error.isEmpty()) remember(file_);
  report(tr("%1 saved").arg(file_), error);
  show_state();
}

void MainWindow::remember(const QString& path) {
  QSettings settings;
  QStringList recent = settings.value("recent").toStringList();
  recent.removeAll(path);
  recent.prepend(path);
  settings.setValue("recent", QStringList(recent.mid(0, most_recent)));
}

void MainWindow::fill_recent() {
  recent_->clear();
  for (const QString& path : QSettings().value("recent").toStringList())
    recent_->addAction(path, this, [this, path] { open_file(path); });
  if (recent_->isEmpty()) recent_->addAction(tr("none yet"))->setEnabled(false);
}

}  // namespace plimsoll::gui
