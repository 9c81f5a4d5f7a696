// Painting of two curves (gui/widgets/curve_view.hpp).
#include "gui/widgets/curve_view.hpp"

#include <QPainter>
#include <QPainterPath>
#include <algorithm>

#include "gui/widgets/theme.hpp"
#include "planner/base/format.hpp"

namespace plimsoll::gui {

CurveView::CurveView(QWidget* parent) : QWidget(parent) {
  setAccessibleName(tr("Live bytes of the predicted and the measured step"));
  setMinimumHeight(180);
}

void CurveView::show_record(std::shared_ptr<const MeasuredRecord> record) {
  record_ = std::move(record);
  update();
}

void CurveView::paint_curve(QPainter& painter, const QRectF& area, const std::vector<Bytes>& curve, Bytes top,
                            const QPen& pen) const {
  QPainterPath path;
  const double count = static_cast<double>(std::max<std::size_t>(1, curve.size() - 1));
  const auto columns = static_cast<std::size_t>(std::max(1.0, area.width()));
  const auto y_of = [&](Bytes bytes) { return area.bottom() - area.height() * (bytes / top); };
  // A pixel shows its lowest and its highest point.
  for (std::size_t column = 0; column < columns; ++column) {
    const auto from = static_cast<std::size_t>(count * static_cast<double>(column) / static_cast<double>(columns));
    const auto to = std::max(
        from, static_cast<std::size_t>(count * static_cast<double>(column + 1) / static_cast<double>(columns)));
    const auto [low, high] =
        std::minmax_element(curve.begin() + static_cast<std::ptrdiff_t>(from),
                            curve.begin() + static_cast<std::ptrdiff_t>(std::min(to + 1, curve.size())));
    const double x = area.left() + static_cast<double>(column);
    if (column == 0) path.moveTo(x, y_of(*low));
    path.lineTo(x, y_of(*low));
    path.lineTo(x, y_of(*high));
  }
  painter.setPen(pen);
  painter.setBrush(Qt::NoBrush);
  painter.drawPath(path);
}

void CurveView::paintEvent(QPaintEvent*) {
  QPainter painter(this);
  painter.setRenderHint(QPainter::Antialiasing);
  painter.fillRect(rect(), palette().base());
  if (!record_ || record_->measured.empty() || record_->predicted.empty()) {
    painter.setPen(palette().placeholderText().color());
    painter.drawText(rect(), Qt::AlignCenter, tr("Open an allocator trace or a memory snapshot of one steady step"));
    return;
  }
  const QRectF area(78, 14, width() - 92, height() - 44);
  const Bytes top = std::max(*std::max_element(record_->predicted.begin(), record_->predicted.end()),
                             *std::max_element(record_->measured.begin(), record_->measured.end()));
  QColor faint = palette().text().color();
  faint.setAlpha(40);
  for (int i = 0; i <= 4; ++i) {
    const double y = area.bottom() - area.height() * i / 4;
    painter.setPen(faint);
    painter.drawLine(QPointF(area.left(), y), QPointF(area.right(), y));
    painter.setPen(palette().text().color());
    painter.drawText(QRectF(0, y - 9, area.left() - 8, 18), Qt::AlignRight | Qt::AlignVCenter,
                     QString::fromStdString(format(Bytes(top.count / 4 * i))));
  }
  const bool dark = is_dark(palette());
  const QPen mine(ink_of(Category::parameters, dark).colour, 1.6),
      theirs(ink_of(Category::expert_buffers, dark).colour, 1.6, Qt::DashLine);
  paint_curve(painter, area, record_->measured, top, theirs);
  paint_curve(painter, area, record_->predicted, top, mine);
  const auto label = [&](double x, const QPen& pen, const QString& words) {
    painter.setPen(pen);
    painter.drawLine(QPointF(x, height() - 14), QPointF(x + 28, height() - 14));
    painter.setPen(palette().text().color());
    painter.drawText(QRectF(x + 34, height() - 23, 300, 18), Qt::AlignLeft | Qt::AlignVCenter, words);
  };
  label(area.left(), mine, tr("predicted, over its allocations and frees"));
  label(area.left() + 340, theirs, tr("measured"));
}

}  // namespace plimsoll::gui
