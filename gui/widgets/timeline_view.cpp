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

constexpr double left_margin = 100, right_margin = 14, axis_height = 22;
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
  critical_.assign(timeline.ops.size(), false);
  for (const std::uint32_t index : timeline.critical_path) critical_[index] = true;
  rows_ = rows_of(timeline);
  if (before == 0 || end_ - begin_ >= before || begin_ >= timeline.step_time) fit();
  update();
}

std::vector<TimelineView::LaneRow> TimelineView::rows_of(const Timeline& timeline) {
  std::vector<LaneRow> rows;
  for (std::size_t c = 0; c < timeline.classes.size(); ++c)
    for (int lane = 0; lane < lane_count; ++lane)
      rows.push_back({static_cast<std::uint16_t>(c), static_cast<Lane>(lane), {}, {}});
  const auto row_of = [&](const TimedOp& op) -> LaneRow& {
    return rows[op.class_index * std::size_t{lane_count} + static_cast<std::size_t>(op.lane)];
  };
  for (std::uint32_t i = 0; i < timeline.ops.size(); ++i)
    if (timeline.ops[i].end > timeline.ops[i].start) row_of(timeline.ops[i]).ops.push_back(i);
  for (const std::uint32_t index : timeline.critical_path) row_of(timeline.ops[index]).path.push_back(index);
  const auto earlier = [&](std::uint32_t a, std::uint32_t b) { return timeline.ops[a].start < timeline.ops[b].start; };
  for (LaneRow& row : rows) {
    std::sort(row.ops.begin(), row.ops.end(), earlier);
    std::sort(row.path.begin(), row.path.end(), earlier);
  }
  std::erase_if(rows, [&](const LaneRow& row) {
    return row.ops.empty() || (row.path.empty() && row.class_index != timeline.told);
  });
  std::stable_partition(rows.begin(), rows.end(), [&](const LaneRow& row) { return row.class_index == timeline.told; });
  return rows;
}

/// Where it is of another rank than the others, or on a slower host, with what makes it another.
QString TimelineView::name_of_row(const LaneRow& row) const {
  const Timeline& timeline = answer_->step->timeline;
  QString lane = QString::fromUtf8(name_of(row.lane));
  if (row.class_index == timeline.told) return lane;
  const QString rank = QString::fromStdString(timeline.classes[row.class_index].name);
  return lane + '\n' + rank.section(", ", -1);
}

/// rows_.size() for an op that is on none.
std::size_t TimelineView::row_of(std::uint32_t index) const {
  const TimedOp& op = answer_->step->timeline.ops[index];
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const LaneRow& row) {
    return row.lane == op.lane && row.class_index == op.class_index;
  });
  return static_cast<std::size_t>(found - rows_.begin());
}

const Op& TimelineView::op_of(std::uint32_t index) const {
  const TimedOp& timed = answer_->step->timeline.ops[index];
  return program_of(answer_->evaluation->program, answer_->step->timeline, timed).ops[timed.op];
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
  const RankProgram& program = program_of(answer_->evaluation->program, answer_->step->timeline, timed);
  const Op& op = op_of(index);
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
  std::string where = name_of(timed.lane);
  if (answer_->step->timeline.classes.size() > 1)
    where += fmt::format(" of {}", answer_->step->timeline.classes[timed.class_index].name);
  return QString::fromStdString(
      fmt::format("{}: {} for {}, from {}{}", where, what, format(Seconds(to_seconds(timed.end - timed.start))),
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
  const std::size_t row = row_of(*selected_);
  if (row == rows_.size()) return;
  const auto& list = rows_[row].ops;
  const auto at = std::find(list.begin(), list.end(), *selected_) - list.begin() + by;
  if (at >= 0 && at < static_cast<std::ptrdiff_t>(list.size())) select(list[static_cast<std::size_t>(at)]);
}

void TimelineView::step_lane(int by) {
  if (!answer_ || rows_.empty()) return;
  if (!selected_) return step(0);
  const TimedOp& now = answer_->step->timeline.ops[*selected_];
  const std::size_t row = row_of(*selected_);
  const auto to = static_cast<std::ptrdiff_t>(row) + by;
  if (row == rows_.size() || to < 0 || to >= static_cast<std::ptrdiff_t>(rows_.size())) return;
  const auto& list = rows_[static_cast<std::size_t>(to)].ops;
  const auto next = std::lower_bound(list.begin(), list.end(), now.start, [&](std::uint32_t index, SimTime time) {
    return answer_->step->timeline.ops[index].start < time;
  });
  select(next == list.end() ? list.back() : *next);
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
    return true;
  }
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const QRectF beside(0, row_area(row).top(), left_margin, row_area(row).height());
    if (!beside.contains(help->pos())) continue;
    QToolTip::showText(help->globalPos(), name_of_row(rows_[row]).replace('\n', ", "), this);  // which may be cut
    return true;
  }
  QToolTip::hideText();
  return true;
}

}  // namespace plimsoll::gui
