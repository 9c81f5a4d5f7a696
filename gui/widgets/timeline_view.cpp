// Time to pixels, and what is under them (gui/widgets/timeline_view.hpp).
#include "gui/widgets/timeline_view.hpp"

#include <fmt/format.h>

#include <QHelpEvent>
#include <QKeyEvent>
#include <QToolTip>
#include <QWheelEvent>
#include <algorithm>
#include <cmath>

#include "planner/base/format.hpp"

namespace plimsoll::gui {
namespace {

constexpr double left_margin = 84, right_margin = 14, axis_height = 22;
constexpr SimTime shortest_window = 20'000;  // picoseconds

}  // namespace

TimelineView::TimelineView(QWidget* parent) : QWidget(parent) {
  setFocusPolicy(Qt::StrongFocus);
  setMouseTracking(true);
  setAccessibleName(tr("Timeline of the simulated step"));
  setWhatsThis(
      tr("Plus and minus zoom, left and right pan, Home shows all; comma and full stop step through a lane, up and "
         "down change it."));
}

void TimelineView::show_answer(AnswerPtr answer) {
  if (!answer || !answer->step || answer == answer_) return;
  const SimTime before = answer_ ? answer_->step->timeline.step_time : 0;
  answer_ = std::move(answer);
  selected_.reset();
  const Timeline& timeline = answer_->step->timeline;
  rows_.clear();
  for (int lane = 0; lane < lane_count; ++lane) rows_.push_back({static_cast<Lane>(lane), {}});
  for (std::uint32_t i = 0; i < timeline.ops.size(); ++i) {
    const TimedOp& op = timeline.ops[i];
    if (op.class_index == 0 && op.end > op.start) rows_[static_cast<std::size_t>(op.lane)].ops.push_back(i);
  }
  std::erase_if(rows_, [](const LaneRow& row) { return row.ops.empty(); });
  for (LaneRow& row : rows_)
    std::sort(row.ops.begin(), row.ops.end(),
              [&](std::uint32_t a, std::uint32_t b) { return timeline.ops[a].start < timeline.ops[b].start; });
  critical_.assign(timeline.ops.size(), false);
  for (const std::uint32_t index : timeline.critical_path) critical_[index] = true;
  if (before == 0 || end_ - begin_ >= before || begin_ >= timeline.step_time) fit();
  update();
}

void TimelineView::set_dimmed(bool dimmed) {
  if (dimmed == dimmed_) return;
  dimmed_ = dimmed;
  update();
}

void TimelineView::resizeEvent(QResizeEvent*) { legend_lines_ = legend_lines(); }

QRectF TimelineView::curve_area() const {
  const double height = std::clamp(this->height() * 0.24, 56.0, 130.0);
  const double legend = 4 + legend_line * legend_lines_;
  return {left_margin, this->height() - legend - height, width() - left_margin - right_margin, height - 8};
}

QRectF TimelineView::lanes_area() const {
  return {left_margin, axis_height, width() - left_margin - right_margin, curve_area().top() - axis_height - 12};
}

QRectF TimelineView::row_area(std::size_t row) const {
  const QRectF area = lanes_area();
  const double height = area.height() / static_cast<double>(std::max<std::size_t>(1, rows_.size()));
  return {area.left(), area.top() + height * static_cast<double>(row), area.width(), height - 5};
}

double TimelineView::x_of(SimTime time) const {
  const QRectF area = lanes_area();
  return area.left() + area.width() * (static_cast<double>(time - begin_) / static_cast<double>(end_ - begin_));
}

SimTime TimelineView::time_at(double x) const {
  const QRectF area = lanes_area();
  return begin_ + static_cast<SimTime>((x - area.left()) / area.width() * static_cast<double>(end_ - begin_));
}

void TimelineView::keep_inside() {
  const SimTime all = answer_ ? answer_->step->timeline.step_time : 1;
  const SimTime window = std::clamp(end_ - begin_, shortest_window, std::max(all, shortest_window));
  begin_ = std::clamp<SimTime>(begin_, 0, std::max<SimTime>(0, all - window));
  end_ = begin_ + window;
  update();
}

void TimelineView::fit() {
  begin_ = 0;
  end_ = answer_ ? std::max<SimTime>(answer_->step->timeline.step_time, shortest_window) : 1;
  update();
}

void TimelineView::zoom(double factor, double at_pixel) {
  const SimTime at = time_at(at_pixel);
  const auto window = static_cast<double>(end_ - begin_) / factor;
  const double share = static_cast<double>(at - begin_) / static_cast<double>(end_ - begin_);
  begin_ = at - static_cast<SimTime>(window * share);
  end_ = begin_ + static_cast<SimTime>(window);
  keep_inside();
}

void TimelineView::pan(double pixels) {
  const auto by = static_cast<SimTime>(pixels / lanes_area().width() * static_cast<double>(end_ - begin_));
  begin_ += by;
  end_ += by;
  keep_inside();
}

std::optional<std::uint32_t> TimelineView::op_at(const QPointF& point) const {
  if (!answer_) return std::nullopt;
  const std::vector<TimedOp>& ops = answer_->step->timeline.ops;
  const SimTime reach = time_at(point.x() + 1.5) - time_at(point.x());  // thin ops are hit beside their line too
  const SimTime time = time_at(point.x());
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (!row_area(row).contains(point)) continue;
    const auto& list = rows_[row].ops;
    auto next = std::upper_bound(list.begin(), list.end(), time,
                                 [&](SimTime t, std::uint32_t index) { return t < ops[index].start; });
    if (next != list.begin() && ops[*std::prev(next)].end + reach >= time) return *std::prev(next);
    if (next != list.end() && ops[*next].start - reach <= time) return *next;
  }
  return std::nullopt;
}

QString TimelineView::words_of(std::uint32_t index) const {
  const TimedOp& timed = answer_->step->timeline.ops[index];
  const RankProgram& program = answer_->evaluation->rank_program();
  const Op& op = program.ops[timed.op];
  std::string what = op.role;
  if (const auto* compute = std::get_if<Compute>(&op.action)) {
    const Kernel& kernel = program.kernels[compute->kernel];
    what += fmt::format(", {}", name_of(kernel.kind));
    if (kernel.kind == KernelKind::gemm) what += fmt::format(" {} x {} x {}", kernel.m, kernel.n, kernel.k);
    if (kernel.kind == KernelKind::grouped_gemm)
      what += fmt::format(" {} x {} x {} in {} groups", kernel.m, kernel.n, kernel.k, kernel.batch);
  } else if (const auto* collective = std::get_if<Collective>(&op.action)) {
    what += fmt::format(", {} of {} over {}", name_of(collective->kind), format(collective->full_size),
                        answer_->evaluation->program.groups[collective->group].name);
  } else if (const auto* copy = std::get_if<HostCopy>(&op.action)) {
    what += fmt::format(", {} {}", format(copy->size), copy->to_device ? "to the device" : "to the host");
  } else if (const auto* work = std::get_if<HostWork>(&op.action)) {
    what += fmt::format(", {}", name_of(work->kind));
  }
  if (op.layer >= 0) what += fmt::format(", layer {}", op.layer);
  return QString::fromStdString(fmt::format(
      "{}: {} for {}, from {}{}", name_of(timed.lane), what, format(Seconds(to_seconds(timed.end - timed.start))),
      format(Seconds(to_seconds(timed.start))), critical_[index] ? "; on the critical path" : ""));
}

void TimelineView::select(std::uint32_t index) {
  if (!answer_ || index >= answer_->step->timeline.ops.size()) return;
  selected_ = index;
  const TimedOp& op = answer_->step->timeline.ops[index];
  if (op.start < begin_ || op.end > end_) {
    const SimTime window = std::max(end_ - begin_, op.end - op.start);
    begin_ = op.start - window / 2;
    end_ = begin_ + window;
    keep_inside();
  }
  update();
  Q_EMIT selected_changed(words_of(index));
}

void TimelineView::step(int by) {
  if (!answer_ || rows_.empty()) return;
  if (!selected_) return select(rows_.front().ops.front());
  const Lane lane = answer_->step->timeline.ops[*selected_].lane;
  for (const LaneRow& row : rows_) {
    if (row.lane != lane) continue;
    const auto at = std::find(row.ops.begin(), row.ops.end(), *selected_) - row.ops.begin() + by;
    if (at >= 0 && at < static_cast<std::ptrdiff_t>(row.ops.size())) select(row.ops[static_cast<std::size_t>(at)]);
  }
}

void TimelineView::step_lane(int by) {
  if (!answer_ || rows_.empty()) return;
  if (!selected_) return step(0);
  const TimedOp& now = answer_->step->timeline.ops[*selected_];
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].lane != now.lane) continue;
    const auto to = static_cast<std::ptrdiff_t>(row) + by;
    if (to < 0 || to >= static_cast<std::ptrdiff_t>(rows_.size())) return;
    const auto& list = rows_[static_cast<std::size_t>(to)].ops;
    const auto next = std::lower_bound(list.begin(), list.end(), now.start, [&](std::uint32_t index, SimTime time) {
      return answer_->step->timeline.ops[index].start < time;
    });
    return select(next == list.end() ? list.back() : *next);
  }
}

void TimelineView::wheelEvent(QWheelEvent* event) {
  if (!answer_) return;
  const QPoint delta = event->angleDelta();
  if (event->modifiers().testFlag(Qt::ShiftModifier) || std::abs(delta.x()) > std::abs(delta.y())) {
    pan(-(delta.x() != 0 ? delta.x() : delta.y()));
  } else {
    zoom(std::pow(1.2, delta.y() / 120.0), event->position().x());
  }
  event->accept();
}

void TimelineView::mousePressEvent(QMouseEvent* event) {
  drag_from_ = event->position().x();
  if (const auto index = op_at(event->position())) select(*index);
}

void TimelineView::mouseMoveEvent(QMouseEvent* event) {
  if (!event->buttons().testFlag(Qt::LeftButton) || !answer_) return;
  pan(drag_from_ - event->position().x());
  drag_from_ = event->position().x();
}

void TimelineView::keyPressEvent(QKeyEvent* event) {
  const double centre = lanes_area().center().x();
  switch (event->key()) {
    case Qt::Key_Plus:
    case Qt::Key_Equal: return zoom(1.5, centre);
    case Qt::Key_Minus: return zoom(1 / 1.5, centre);
    case Qt::Key_Left: return pan(-lanes_area().width() / 8);
    case Qt::Key_Right: return pan(lanes_area().width() / 8);
    case Qt::Key_Home: return fit();
    case Qt::Key_Period: return step(1);
    case Qt::Key_Comma: return step(-1);
    case Qt::Key_Down: return step_lane(1);
    case Qt::Key_Up: return step_lane(-1);
    default: QWidget::keyPressEvent(event);
  }
}

bool TimelineView::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  if (const auto index = op_at(help->pos())) {
    QToolTip::showText(help->globalPos(), words_of(*index), this);
  } else {
    QToolTip::hideText();
  }
  return true;
}

}  // namespace plimsoll::gui
