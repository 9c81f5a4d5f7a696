// The tab of recommendations (gui/widgets/recommend_page.hpp).
#include "gui/widgets/recommend_page.hpp"

#include <QCheckBox>
#include <QFileDialog>
#include <QHBoxLayout>
#include <QLabel>
#include <QMessageBox>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>
#include <QSplitter>
#include <QTextBrowser>
#include <QVBoxLayout>

#include "gui/models/tables.hpp"
#include "gui/widgets/pareto_view.hpp"
#include "gui/widgets/table_view.hpp"
#include "planner/base/format.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::gui {

RecommendPage::RecommendPage(Session& session, QWidget* parent)
    : Page(parent),
      session_(session),
      search_(new QPushButton(tr("&Find plans"), this)),
      load_(new QPushButton(tr("Loa&d plan"), this)),
      write_(new QPushButton(tr("&Write files…"), this)),
      global_batch_(new QSpinBox(this)),
      budget_(new QSpinBox(this)),
      tight_(new QCheckBox(tr("accept tight"), this)),
      open_(new QCheckBox(tr("choose every key"), this)),
      state_(new QLabel(this)),
      busy_(new QProgressBar(this)),
      plans_(new TableView(tr("Plans"), this)),
      excluded_(new TableView(tr("Excluded plans"), this)),
      chart_(new ParetoView(this)),
      why_(new QTextBrowser(this)) {
  auto *bar = new QHBoxLayout, *below = new QHBoxLayout;
  build_bar(bar, below);
  why_->setFrameShape(QFrame::NoFrame);
  why_->setAccessibleName(tr("Why"));
  why_->setTabChangesFocus(true);
  why_->setPlaceholderText(
      tr("Find plans looks for the plan with the least time a token that fits these GPUs. It says why that one, and "
         "what it left "
         "out and why; a click on a point of the chart, or Return on a row, loads the plan."));
  auto* upper = new QSplitter(Qt::Horizontal);
  upper->addWidget(plans_);
  upper->addWidget(chart_);
  upper->setSizes({700, 360});
  upper->setChildrenCollapsible(false);
  auto* lower = new QSplitter(Qt::Horizontal);
  lower->addWidget(why_);
  lower->addWidget(excluded_);
  lower->setSizes({520, 520});
  auto* splitter = new QSplitter(Qt::Vertical);
  splitter->addWidget(upper);
  splitter->addWidget(lower);
  splitter->setSizes({380, 240});
  splitter->setChildrenCollapsible(false);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addLayout(bar);
  layout->addLayout(below);
  layout->addWidget(splitter, 1);
  connect(search_, &QPushButton::clicked, this, &RecommendPage::search_or_cancel);
  connect(write_, &QPushButton::clicked, this, &RecommendPage::write_files);
  connect(load_, &QPushButton::clicked, this, [this] { load(QString::fromStdString(plans_->current_id()).toInt()); });
  connect(plans_, &TableView::row_activated, this, [this](const QString& id) { load(id.toInt()); });
  connect(plans_, &TableView::current_row_changed, this,
          [this](const QString& id) { chart_->mark(id.isEmpty() ? -1 : id.toInt()); });
  connect(chart_, &ParetoView::plan_clicked, this, &RecommendPage::load);
  connect(chart_, &ParetoView::front_clicked, this, [this](int index) {
    const auto& front = job_.result()->front;
    session_.set_text([&] {
      ScenarioText text = job_.question().text;
      text.settings = merged(settings_of_plan(front[static_cast<std::size_t>(index)].found.plan), text.settings);
      return text;
    }());
  });
  connect(&job_, &SearchJob::progressed, state_, &QLabel::setText);
  connect(&job_, &SearchJob::finished, this, &RecommendPage::show_result);
}

void RecommendPage::build_bar(QHBoxLayout* bar, QHBoxLayout* below) {
  bar->setContentsMargins(8, 6, 8, 0);
  below->setContentsMargins(8, 0, 8, 4);
  search_->setDefault(true);
  search_->setToolTip(tr("Searches for the plan with the least time a token that fits (Ctrl+Return)"));
  global_batch_->setRange(0, 1 << 20);
  global_batch_->setSpecialValueText(tr("any"));
  global_batch_->setAccessibleName(tr("Global batch"));
  global_batch_->setToolTip(tr("Sequences of one optimizer step over all ranks"));
  budget_->setRange(1, 600);
  budget_->setValue(5);
  budget_->setSuffix(tr(" s"));
  budget_->setAccessibleName(tr("Time to search"));
  tight_->setToolTip(tr("Plans whose interval reaches the capacity count too"));
  open_->setChecked(true);
  open_->setToolTip(tr("The search chooses stage, ep, micro-batch, … anew; else what the controls set stays as it is"));
  busy_->setRange(0, 0);
  busy_->setFixedWidth(90);
  busy_->setTextVisible(false);
  busy_->hide();
  state_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
  load_->setEnabled(false);
  write_->setEnabled(false);
  auto* batch_label = new QLabel(tr("global batch"));
  batch_label->setBuddy(global_batch_);
  auto* budget_label = new QLabel(tr("for"));
  budget_label->setBuddy(budget_);
  for (QWidget* widget :
       {static_cast<QWidget*>(search_), static_cast<QWidget*>(budget_label), static_cast<QWidget*>(budget_),
        static_cast<QWidget*>(batch_label), static_cast<QWidget*>(global_batch_), static_cast<QWidget*>(open_),
        static_cast<QWidget*>(tight_)})
    bar->addWidget(widget);
  bar->addStretch(1);
  below->addWidget(busy_);
  below->addWidget(state_, 1);
  below->addWidget(load_);
  below->addWidget(write_);
}

void RecommendPage::show_answer(const AnswerPtr&, bool) {}

QWidget* RecommendPage::first_focus() { return search_; }

void RecommendPage::search_or_cancel() {
  if (job_.is_running()) {
    job_.cancel();
    state_->setText(tr("stopping …"));
    return;
  }
  SearchQuestion question;
  question.text = session_.text();
  if (open_->isChecked()) question.open = keys_to_search(question.text);
  question.global_batch = global_batch_->value();
  question.budget_s = budget_->value();
  question.accept_tight = tight_->isChecked();
  search_->setText(tr("&Cancel"));
  busy_->show();
  state_->setText(tr("searching …"));
  job_.start(std::move(question));
}

void RecommendPage::show_result(const QString& error) {
  search_->setText(tr("&Find plans"));
  busy_->hide();
  if (!error.isEmpty()) {
    state_->setText(error.section('\n', 0, 0));
    return;
  }
  const auto& result = job_.result();
  if (!result) return;
  const SearchResult& search = result->search;
  state_->setText(tr("%1 of %2 plans evaluated, %3 s%4")
                      .arg(QString::fromStdString(format_count(search.evaluated)),
                           QString::fromStdString(format_count(search.considered)),
                           locale().toString(search.seconds, 'f', 1),
                           search.proven ? tr(", proven the best") : QString()));
  plans_->show_table(plans_table(result->plans));
  excluded_->show_table(exclusions_table(search));
  chart_->show_result(result);
  QString why = QString::fromStdString(recommendation_in_words(*result));
  if (is_behind_the_scenario())
    why.prepend(tr("The scenario as it stands fits and is faster: the search needs more time.\n"));
  why_->setPlainText(why);
  load_->setEnabled(!result->plans.empty());
  write_->setEnabled(!result->plans.empty());
  if (!result->plans.empty()) {
    plans_->select_id("0");
    plans_->setFocus();
  }
}

/// A search that had too little time may end with less than what it was asked from.
bool RecommendPage::is_behind_the_scenario() const {
  const AnswerPtr& now = session_.good();
  const SearchQuestion& asked = job_.question();
  const std::vector<Listed>& plans = job_.result()->plans;
  if (plans.empty() || session_.is_stale() || !now->step || now->ledger->verdict != Verdict::fits) return false;
  const int world = now->scenario->plan.world_size;
  return now->text.model == asked.text.model && now->text.cluster == asked.text.cluster &&
         now->text.nodes == asked.text.nodes && asked.global_batch == 0 && plans[0].found.plan.world_size == world &&
         plans[0].found.plan.sequence == now->scenario->plan.sequence &&
         now->step->tokens_per_s_per_gpu > plans[0].tokens_per_s / world;
}

void RecommendPage::load(int index) {
  const auto& result = job_.result();
  if (!result || index < 0 || index >= static_cast<int>(result->plans.size())) return;
  ScenarioText text = job_.question().text;
  text.settings = merged(settings_of_plan(result->plans[static_cast<std::size_t>(index)].found.plan), text.settings);
  session_.set_text(text);
}

QString RecommendPage::write_files_to(const QString& folder) {
  try {
    emit_plan(*job_.result(), folder.toStdString(), options_of(job_.question().text));
  } catch (const MachineError& error) {
    return QString::fromUtf8(error.what());
  }
  return {};
}

void RecommendPage::write_files() {
  if (!job_.result() || job_.result()->plans.empty()) return;
  const QString folder =
      QFileDialog::getExistingDirectory(this, tr("Write plan.json, ds_config.json, launch.sh and report.md to"));
  if (folder.isEmpty()) return;
  const QString error = write_files_to(folder);
  if (error.isEmpty()) {
    state_->setText(tr("written to %1").arg(folder));
  } else {
    QMessageBox::warning(this, tr("Not written"), error);
  }
}

}  // namespace plimsoll::gui
