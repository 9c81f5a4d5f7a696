// The tabs of communication and of time (gui/widgets/step_pages.hpp).
#include "gui/widgets/step_pages.hpp"

#include <QLabel>
#include <QSplitter>
#include <QTabWidget>
#include <QVBoxLayout>

#include "gui/models/tables.hpp"
#include "gui/widgets/table_view.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "gui/widgets/topology_view.hpp"

namespace plimsoll::gui {
namespace {

QSplitter* side_by_side(std::initializer_list<QWidget*> widgets, const QList<int>& sizes) {
  auto* splitter = new QSplitter(Qt::Horizontal);
  for (QWidget* widget : widgets) splitter->addWidget(widget);
  splitter->setChildrenCollapsible(false);
  splitter->setSizes(sizes);
  return splitter;
}

void stack(Page* page, QWidget* above, QWidget* below, const QList<int>& sizes) {
  auto* splitter = new QSplitter(Qt::Vertical, page);
  splitter->addWidget(above);
  splitter->addWidget(below);
  splitter->setChildrenCollapsible(false);
  splitter->setSizes(sizes);
  auto* layout = new QVBoxLayout(page);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->addWidget(splitter);
}

}  // namespace

CommunicationPage::CommunicationPage(QWidget* parent)
    : Page(parent),
      topology_(new TopologyView(this)),
      loads_(new TableView(tr("Bytes by tier"), this)),
      volumes_(new TableView(tr("Bytes by collective, group and tier"), this)) {
  volumes_->set_sortable(true);
  stack(this, side_by_side({topology_, loads_}, {760, 260}), volumes_, {330, 330});
}

void CommunicationPage::show_answer(const AnswerPtr& answer, bool stale) {
  topology_->show_answer(answer, stale);
  loads_->show_table(loads_table(*answer));
  volumes_->show_table(volume_table(*answer));
}

QWidget* CommunicationPage::first_focus() { return volumes_; }

TimePage::TimePage(QWidget* parent)
    : Page(parent),
      timeline_(new TimelineView(this)),
      selected_(new QLabel(this)),
      exposed_(new TableView(tr("What compute waits for"), this)),
      lanes_(new TableView(tr("Lanes"), this)),
      kernels_(new TableView(tr("Kernels and collectives"), this)),
      path_(new TableView(tr("Critical path"), this)) {
  selected_->setTextInteractionFlags(Qt::TextSelectableByMouse);
  selected_->setContentsMargins(8, 2, 8, 2);
  selected_->setText(tr("+ and − zoom, arrows pan, Home shows all; click an op, or step with , and ."));
  kernels_->set_sortable(true);
  auto* above = new QWidget;
  auto* layout = new QVBoxLayout(above);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(0);
  layout->addWidget(timeline_, 1);
  layout->addWidget(selected_);
  auto* details = new QTabWidget;
  details->setDocumentMode(true);
  details->addTab(path_, tr("Critical path"));
  details->addTab(kernels_, tr("Kernels and collectives"));
  stack(this, above, side_by_side({exposed_, lanes_, details}, {330, 280, 420}), {430, 230});
  connect(timeline_, &TimelineView::selected_changed, selected_, &QLabel::setText);
  connect(path_, &TableView::current_row_changed, this, [this](const QString& id) {
    if (!id.isEmpty() && path_->hasFocus()) timeline_->select(id.toUInt());
  });
}

void TimePage::show_answer(const AnswerPtr& answer, bool stale) {
  timeline_->set_dimmed(stale || !answer->step);
  if (!answer->step) return;  // the old step stands until the new one is simulated
  timeline_->show_answer(answer);
  exposed_->show_table(exposed_table(*answer->step));
  lanes_->show_table(lanes_table(*answer->step));
  kernels_->show_table(kernels_table(*answer->step));
  path_->show_table(path_table(*answer->evaluation, *answer->step));
}

QWidget* TimePage::first_focus() { return timeline_; }

}  // namespace plimsoll::gui
