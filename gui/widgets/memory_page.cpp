// The tab of memory (gui/widgets/memory_page.hpp).
#include "gui/widgets/memory_page.hpp"

#include <QSplitter>
#include <QTabWidget>
#include <QVBoxLayout>

#include "gui/models/tables.hpp"
#include "gui/widgets/explain_panel.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/table_view.hpp"

namespace plimsoll::gui {

MemoryPage::MemoryPage(QWidget* parent)
    : Page(parent),
      hull_(new HullView(this)),
      ledger_(new TableView(tr("Ledger at the peak of a steady step"), this)),
      below_(new QTabWidget(this)),
      explained_(new ExplainPanel(this)) {
  below_->setDocumentMode(true);
  below_->addTab(explained_, tr("What it is made of"));
  figures_ = add_table(tr("Figures and evidence"));
  phases_ = add_table(tr("Phases"));
  host_ = add_table(tr("Host memory"));
  rests_on_ = add_table(tr("Rests on"));
  parameters_ = add_table(tr("Parameters"));
  files_ = add_table(tr("Checkpoint"));
  auto* upper = new QSplitter(Qt::Horizontal);
  upper->addWidget(hull_);
  upper->addWidget(ledger_);
  upper->setStretchFactor(0, 5);
  upper->setStretchFactor(1, 2);
  upper->setChildrenCollapsible(false);
  ledger_->setMinimumWidth(fontMetrics().horizontalAdvance('0') * 46);
  upper->setSizes({700, 360});
  auto* splitter = new QSplitter(Qt::Vertical, this);
  splitter->addWidget(upper);
  splitter->addWidget(below_);
  splitter->setStretchFactor(0, 3);
  splitter->setStretchFactor(1, 2);
  splitter->setChildrenCollapsible(false);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addWidget(splitter);
  const auto explain = [this](const QString& number) {
    explained_->explain(number);
    if (!number.isEmpty()) below_->setCurrentIndex(0);
  };
  connect(hull_, &HullView::part_chosen, this, [this, explain](const QString& phase, const QString& category) {
    const bool at_peak = answer_ && phase.toStdString() == answer_->ledger->peak_phase;
    if (phase.isEmpty()) {
      ledger_->clearSelection();
      return explain({});
    }
    if (at_peak) {
      ledger_->select_id("gpu.categories_at_peak." + category.toStdString());
      return explain("gpu.categories_at_peak." + category);
    }
    explain("phases." + phase + ".allocated_peak_bytes");
  });
  connect(ledger_, &TableView::current_row_changed, this, [this, explain](const QString& id) {
    hull_->highlight(id.startsWith("gpu.categories_at_peak.") ? id.mid(23).toStdString() : std::string());
    explain(id);
  });
  for (TableView* table : {figures_, phases_, host_, parameters_})
    connect(table, &TableView::row_activated, this, explain);
  connect(below_, &QTabWidget::currentChanged, this, [this] { show_tables(); });
}

TableView* MemoryPage::add_table(const QString& title) {
  auto* table = new TableView(title, this);
  below_->addTab(table, title);
  return table;
}

void MemoryPage::show_answer(const AnswerPtr& answer, bool stale) {
  answer_ = answer;
  hull_->show_answer(answer, stale);
  ledger_->show_table(ledger_table(*answer));
  show_tables();
}

/// The visible one below; most wait for the allocator's replay.
void MemoryPage::show_tables() {
  if (!answer_) return;
  QWidget* now = below_->currentWidget();
  if (now == explained_) return explained_->show_answer(answer_);
  if (now == parameters_) return parameters_->show_table(parameters_table(*answer_));
  if (now == files_) return files_->show_table(checkpoint_table(*answer_));
  if (!answer_->settled) return;
  if (now == figures_) figures_->show_table(figures_table(*answer_));
  if (now == phases_) phases_->show_table(phases_table(*answer_));
  if (now == host_) host_->show_table(host_table(*answer_));
  if (now == rests_on_) rests_on_->show_table(assumptions_table(*answer_));
}

QWidget* MemoryPage::first_focus() { return hull_; }

}  // namespace plimsoll::gui
