// Two plans, and a measured step (gui/widgets/compare_page.hpp).
#include "gui/widgets/compare_page.hpp"

#include <QFileDialog>
#include <QHBoxLayout>
#include <QLabel>
#include <QPushButton>
#include <QSplitter>
#include <QVBoxLayout>

#include "gui/models/profile_table.hpp"
#include "gui/models/run_table.hpp"
#include "gui/models/tables.hpp"
#include "gui/widgets/curve_view.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/theme.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

QLabel* wrapped_label(QWidget* parent) {
  auto* label = new QLabel(parent);
  label->setWordWrap(true);
  label->setTextInteractionFlags(Qt::TextSelectableByMouse);
  label->setContentsMargins(8, 2, 8, 2);
  return label;
}

QWidget* under(QWidget* above, QWidget* below) {
  auto* both = new QWidget;
  auto* layout = new QVBoxLayout(both);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(2);
  layout->addWidget(above);
  layout->addWidget(below, 1);
  return both;
}

QString side_in_words(const QString& name, const Answer& answer) {
  QString verdict;
  if (answer.settled)
    verdict = QStringLiteral("<b>%1 %2</b>: %3<br>")
                  .arg(mark_of(answer.ledger->verdict), QString::fromUtf8(name_of(answer.ledger->verdict)),
                       QString::fromStdString(room_in_words(*answer.ledger)));
  return QStringLiteral("<b>%1</b> &nbsp; %2%3")
      .arg(name, verdict, QString::fromStdString(scenario_in_words(*answer.scenario)));
}

}  // namespace

ComparePage::ComparePage(Session& session, QWidget* parent)
    : Page(parent),
      session_(session),
      keep_(new QPushButton(tr("&Keep this plan as B"), this)),
      swap_(new QPushButton(tr("Swap A and &B"), this)),
      forget_(new QPushButton(tr("Forget B"), this)),
      words_a_(wrapped_label(this)),
      words_b_(wrapped_label(this)),
      hull_a_(new HullView(this)),
      hull_b_(new HullView(this)),
      settings_(new TableView(tr("Settings that differ"), this)),
      terms_(new TableView(tr("Terms of both plans"), this)) {
  auto* bar = new QHBoxLayout;
  bar->setContentsMargins(8, 6, 8, 4);
  for (QPushButton* button : {keep_, swap_, forget_}) bar->addWidget(button);
  bar->addStretch(1);
  auto* hulls = new QSplitter(Qt::Horizontal);
  hulls->addWidget(under(words_a_, hull_a_));
  hulls->addWidget(under(words_b_, hull_b_));
  hulls->setSizes({500, 500});
  auto* tables = new QSplitter(Qt::Horizontal);
  tables->addWidget(terms_);
  tables->addWidget(settings_);
  tables->setSizes({650, 350});
  auto* splitter = new QSplitter(Qt::Vertical);
  splitter->addWidget(hulls);
  splitter->addWidget(tables);
  splitter->setSizes({340, 320});
  splitter->setChildrenCollapsible(false);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addLayout(bar);
  layout->addWidget(splitter, 1);
  connect(keep_, &QPushButton::clicked, &session_, &Session::compare_with_now);
  connect(swap_, &QPushButton::clicked, &session_, &Session::swap_with_compared);
  connect(forget_, &QPushButton::clicked, &session_, &Session::stop_comparing);
  connect(&session_, &Session::compared_changed, this, &ComparePage::show_both);
  show_both();
}

void ComparePage::show_answer(const AnswerPtr& answer, bool stale) {
  answer_ = answer;
  hull_a_->show_answer(answer, stale);
  show_both();
}

void ComparePage::show_both() {
  const AnswerPtr& b = session_.compared_answer();
  swap_->setEnabled(session_.compared().has_value());
  forget_->setEnabled(session_.compared().has_value());
  words_a_->setText(answer_ ? side_in_words(tr("A"), *answer_) : QString());
  if (!b || b->has_errors()) {
    words_b_->setText(session_.compared()
                          ? tr("<b>B</b> &nbsp; is being evaluated …")
                          : tr("<b>B</b> &nbsp; Keep a plan to compare it with the one that you edit."));
    hull_b_->show_answer(nullptr, false);
    terms_->show_table({});
    settings_->show_table({});
    return;
  }
  words_b_->setText(side_in_words(tr("B"), *b));
  hull_b_->show_answer(b, false);
  if (!answer_ || !answer_->settled || !b->settled) return;
  terms_->show_table(diff_table(*answer_, *b));
  settings_->show_table(settings_table(*answer_, *b));
}

QWidget* ComparePage::first_focus() { return keep_; }

MeasuredPage::MeasuredPage(Session& session, QWidget* parent)
    : Page(parent),
      session_(session),
      open_(new QPushButton(tr("&Open a record…"), this)),
      again_(new QPushButton(tr("Compare a&gain"), this)),
      words_(wrapped_label(this)),
      curves_(new CurveView(this)),
      sums_(new TableView(tr("Sums of both steps"), this)),
      tensors_(new TableView(tr("Tensors that differ"), this)),
      problems_(new TableView(tr("Problems of the record"), this)) {
  again_->setEnabled(false);
  again_->setToolTip(tr("With the scenario as it stands now"));
  words_->setText(tr(
      "An allocator trace, PyTorch's memory snapshot as JSON, or a trace of torch.profiler, of one steady step; or the "
      "log of plimsoll-run. All may be compressed by gzip. How to write them: plimsoll compare --help."));
  auto* bar = new QHBoxLayout;
  bar->setContentsMargins(8, 6, 8, 4);
  bar->addWidget(open_);
  bar->addWidget(again_);
  bar->addWidget(words_, 1);
  auto* tables = new QSplitter(Qt::Horizontal);
  for (TableView* table : {sums_, tensors_, problems_}) tables->addWidget(table);
  tables->setSizes({320, 520, 240});
  auto* splitter = new QSplitter(Qt::Vertical);
  splitter->addWidget(curves_);
  splitter->addWidget(tables);
  splitter->setSizes({340, 280});
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addLayout(bar);
  layout->addWidget(splitter, 1);
  connect(open_, &QPushButton::clicked, this, &MeasuredPage::choose_file);
  connect(again_, &QPushButton::clicked, this, [this] { open(file_); });
  connect(&job_, &MeasuredJob::finished, this, &MeasuredPage::show_record);
}

void MeasuredPage::show_answer(const AnswerPtr&, bool) {}

QWidget* MeasuredPage::first_focus() { return open_; }

void MeasuredPage::choose_file() {
  const QString file =
      QFileDialog::getOpenFileName(this, tr("Open a record of a real step"), {},
                                   tr("Traces, snapshots, logs (*.json *.jsonl *.log *.gz);;All files (*)"));
  if (!file.isEmpty()) open(file);
}

void MeasuredPage::open(const QString& file) {
  file_ = file;
  again_->setEnabled(true);
  words_->setText(tr("reading %1 …").arg(file));
  job_.start(session_.text(), file);
}

void MeasuredPage::show_record(const std::shared_ptr<const MeasuredRecord>& record) {
  curves_->show_record(record);
  problems_->show_table(problems_table(record->diagnostics));
  if (record->run) {
    words_->setText(QString::fromStdString(run_in_words(*record->run)));
    sums_->show_table(run_table(*record->run));
    tensors_->show_table(run_steps_table(*record->run));
    return;
  }
  if (record->profile) {
    words_->setText(QString::fromStdString(profile_in_words(*record->profile)));
    sums_->show_table(profile_table(*record->profile));
    tensors_->show_table({});
    return;
  }
  if (!record->comparison) {
    words_->setText(
        tr("%1 was not compared: %2")
            .arg(QString::fromStdString(record->file), QString::fromStdString(problems_in_words(record->diagnostics))));
    sums_->show_table({});
    tensors_->show_table({});
    return;
  }
  words_->setText(QString::fromStdString(comparison_in_words(*record->comparison)));
  sums_->show_table(comparison_table(*record->comparison));
  tensors_->show_table(differing_tensors_table(*record->comparison));
}

}  // namespace plimsoll::gui
