// Painting of the timeline (gui/widgets/timeline_view.hpp): per lane, from pixel to pixel.
#include <QPainter>
#include <QPainterPath>
#include <cmath>

#include "gui/widgets/theme.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "planner/base/format.hpp"

namespace plimsoll::gui {
namespace {

constexpr double least_label_width = 46;

/// 1, 2 or 5 times a power of ten picoseconds, about a tick every hundred pixels.
SimTime nice_tick(SimTime window, double width) {
  const double raw = static_cast<double>(window) / std::max(1.0, width / 110);
  const double power = std::pow(10, std::floor(std::log10(std::max(1.0, raw))));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return static_cast<SimTime>(factor * power);
  return static_cast<SimTime>(10 * power);
}

QColor colour_of_path(bool dark) { return {dark ? "#ffb000" : "#d95f02"}; }

std::vector<OpInk> legend(bool dark) {
  std::vector<OpInk> inks = op_inks(dark);
  inks.push_back({"critical path", {colour_of_path(dark), Qt::SolidPattern}});
  return inks;
}

double legend_width(const QFontMetrics& metrics, const OpInk& kind) {
  return 30.0 + metrics.horizontalAdvance(QString::fromUtf8(kind.name));
}

}  // namespace

void TimelineView::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.fillRect(rect(), palette().base());
  if (!answer_) {
    painter.setPen(palette().placeholderText().color());
    painter.drawText(rect(), Qt::AlignCenter, tr("The step is being simulated …"));
    return;
  }
  if (dimmed_) painter.setOpacity(0.4);
  paint_axis(painter);
  for (std::size_t row = 0; row < rows_.size(); ++row) paint_row(painter, row);
  paint_curve(painter);
  paint_selected(painter);
  paint_legend(painter);
  painter.setOpacity(1);
  if (!hasFocus()) return;
  painter.setPen(QPen(palette().highlight().color(), 1, Qt::DotLine));
  painter.setBrush(Qt::NoBrush);
  painter.drawRect(QRectF(rect()).adjusted(0.5, 0.5, -0.5, -0.5));
}

void TimelineView::paint_axis(QPainter& painter) const {
  const QRectF area = lanes_area();
  QColor faint = palette().text().color();
  faint.setAlpha(26);
  QColor words = palette().text().color();
  words.setAlpha(170);
  const SimTime tick = nice_tick(end_ - begin_, area.width());
  for (SimTime time = (begin_ + tick - 1) / tick * tick; time <= end_; time += tick) {
    const double x = x_of(time);
    painter.setPen(faint);
    painter.drawLine(QPointF(x, area.top()), QPointF(x, curve_area().bottom()));
    painter.setPen(words);
    painter.drawText(QRectF(x - 55, 2, 110, 18), Qt::AlignCenter,
                     QString::fromStdString(format(Seconds(to_seconds(time)))));
  }
}

void TimelineView::paint_row(QPainter& painter, std::size_t row) const {
  const QRectF area = row_area(row);
  const LaneRow& lane = rows_[row];
  const std::vector<TimedOp>& ops = answer_->step->timeline.ops;
  const bool dark = is_dark(palette());
  QColor ground = palette().text().color();
  ground.setAlpha(10);
  painter.fillRect(area, ground);
  painter.setPen(palette().text().color());
  QString name = name_of_row(lane);
  if (area.height() < 2 * painter.fontMetrics().ascent())
    name =
        painter.fontMetrics().elidedText(name.replace('\n', ", "), Qt::ElideRight, static_cast<int>(area.left()) - 14);
  painter.drawText(QRectF(6, area.top(), area.left() - 14, area.height()), Qt::AlignRight | Qt::AlignVCenter, name);
  painter.save();
  painter.setClipRect(area.adjusted(0, -1, 0, 3));
  auto next = std::lower_bound(lane.ops.begin(), lane.ops.end(), begin_,
                               [&](std::uint32_t index, SimTime time) { return ops[index].end < time; });
  while (next != lane.ops.end() && ops[*next].start <= end_) {
    const TimedOp& timed = ops[*next];
    const double from = x_of(timed.start), to = std::max(x_of(timed.end), from + 0.8);
    const QRectF bar(from, area.top(), to - from, area.height() - 4);
    const Op& op = op_of(*next);
    const Ink ink = ink_of(program_of(answer_->evaluation->program, answer_->step->timeline, timed), op, dark);
    fill(painter, bar, to - from >= 3 ? ink : Ink{ink.colour, Qt::SolidPattern});  // no room for a pattern
    if (to - from > least_label_width) {
      painter.setPen(text_on(ink.colour));
      painter.drawText(bar.adjusted(4, 0, -2, 0), Qt::AlignVCenter | Qt::AlignLeft,
                       painter.fontMetrics().elidedText(QString::fromUtf8(op.role), Qt::ElideRight,
                                                        static_cast<int>(to - from) - 6));
    }
    if (to - from >= 3) {
      painter.setPen(QPen(palette().base().color(), 0.6));
      painter.drawLine(bar.topRight(), bar.bottomRight());
      ++next;
      continue;
    }
    // Ops within the same pixel are one stroke: go on with the first that begins beyond it.
    const SimTime beyond = time_at(std::floor(from) + 1);
    next = std::lower_bound(std::next(next), lane.ops.end(), beyond,
                            [&](std::uint32_t index, SimTime time) { return ops[index].start < time; });
  }
  paint_path(painter, row);
  painter.restore();
}

/// A stripe under what is on the critical path, on its own: of many ops in a pixel one may be on it.
void TimelineView::paint_path(QPainter& painter, std::size_t row) const {
  const QRectF area = row_area(row);
  const std::vector<std::uint32_t>& path = rows_[row].path;
  const std::vector<TimedOp>& ops = answer_->step->timeline.ops;
  const QColor colour = colour_of_path(is_dark(palette()));
  auto next = std::lower_bound(path.begin(), path.end(), begin_,
                               [&](std::uint32_t index, SimTime time) { return ops[index].end < time; });
  while (next != path.end() && ops[*next].start <= end_) {
    const double from = x_of(ops[*next].start), to = std::max(x_of(ops[*next].end), from + 0.8);
    painter.fillRect(QRectF(from, area.bottom() - 3, to - from, 3), colour);
    const SimTime beyond = time_at(std::floor(to) + 1);
    ++next;
    if (to - from < 1)
      next = std::lower_bound(next, path.end(), beyond,
                              [&](std::uint32_t index, SimTime time) { return ops[index].start < time; });
  }
}

void TimelineView::paint_curve(QPainter& painter) const {
  const QRectF area = curve_area();
  const std::vector<LiveBytes>& curve = answer_->live_bytes;
  QColor words = palette().text().color();
  painter.setPen(words);
  painter.drawText(QRectF(6, area.top(), area.left() - 14, area.height()), Qt::AlignRight | Qt::AlignVCenter,
                   tr("live bytes"));
  if (curve.empty()) return;
  const Bytes capacity = answer_->ledger->capacity;
  Bytes top = capacity;
  for (const LiveBytes& point : curve) top = std::max(top, point.bytes);
  const auto y_of = [&](Bytes bytes) { return area.bottom() - area.height() * (bytes / top); };
  painter.save();
  painter.setClipRect(area.adjusted(0, -2, 0, 2));
  QPainterPath shape;
  auto next = std::lower_bound(curve.begin(), curve.end(), begin_,
                               [](const LiveBytes& point, SimTime time) { return point.at < time; });
  if (next != curve.begin()) --next;
  shape.moveTo(area.left(), area.bottom());
  double y = y_of(next->bytes);
  shape.lineTo(area.left(), y);
  while (next != curve.end() && next->at <= end_) {
    const double x = x_of(next->at);
    const SimTime beyond = time_at(std::floor(x) + 1);
    Bytes highest = next->bytes, last = next->bytes;  // a pixel shows its highest point
    for (++next; next != curve.end() && next->at < beyond; ++next) {
      highest = std::max(highest, next->bytes);
      last = next->bytes;
    }
    shape.lineTo(x, y);
    shape.lineTo(x, y_of(highest));
    y = y_of(last);
    shape.lineTo(x, y);
  }
  shape.lineTo(area.right(), y);
  shape.lineTo(area.right(), area.bottom());
  QColor under = ink_of(Category::activations, is_dark(palette())).colour;
  under.setAlpha(130);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.setPen(QPen(under.darker(150), 1));
  painter.setBrush(under);
  painter.drawPath(shape);
  painter.setPen(QPen(palette().text().color(), 1.2));
  painter.drawLine(QPointF(area.left(), y_of(capacity)), QPointF(area.right(), y_of(capacity)));
  painter.restore();
  painter.setPen(words);
  painter.drawText(QRectF(area.left() + 4, y_of(capacity) + 1, 220, 16), Qt::AlignLeft,
                   tr("capacity %1").arg(QString::fromStdString(format(capacity))));
}

void TimelineView::paint_selected(QPainter& painter) const {
  if (!selected_) return;
  const TimedOp& op = answer_->step->timeline.ops[*selected_];
  const std::size_t row = row_of(*selected_);
  if (row == rows_.size()) return;
  const QRectF area = row_area(row);
  const double from = x_of(op.start), to = std::max(x_of(op.end), from + 2);
  painter.setPen(QPen(palette().text().color(), 2));
  painter.setBrush(Qt::NoBrush);
  if (to - from > 6) painter.drawRect(QRectF(from, area.top(), to - from, area.height() - 4));
  const QPointF tip((from + to) / 2, area.top());
  painter.setBrush(palette().text());
  painter.drawPolygon(QPolygonF({tip, tip + QPointF(-4, -6), tip + QPointF(4, -6)}));
  painter.setPen(QPen(palette().text().color(), 1, Qt::DashLine));
  painter.drawLine(QPointF(from, lanes_area().top()), QPointF(from, curve_area().bottom()));
}

/// In as many lines as it needs; from the bottom up.
void TimelineView::paint_legend(QPainter& painter) const {
  double x = lanes_area().left();
  double y = height() - legend_line * legend_lines_ + 3;
  for (const OpInk& kind : legend(is_dark(palette()))) {
    const double width = legend_width(fontMetrics(), kind);
    if (x > lanes_area().left() && x + width > lanes_area().right()) {
      x = lanes_area().left();
      y += legend_line;
    }
    fill(painter, QRectF(x, y, 11, 11), kind.ink);
    painter.setPen(palette().text().color());
    painter.drawText(QRectF(x + 16, y - 4, width, 18), Qt::AlignVCenter | Qt::AlignLeft, QString::fromUtf8(kind.name));
    x += width;
  }
}

int TimelineView::legend_lines() const {
  const double room = lanes_area().width();
  double x = 0;
  int lines = 1;
  for (const OpInk& kind : legend(false)) {
    const double width = legend_width(fontMetrics(), kind);
    if (x > 0 && x + width > room) {
      x = 0;
      ++lines;
    }
    x += width;
  }
  return lines;
}

}  // namespace plimsoll::gui
