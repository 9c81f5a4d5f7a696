// How does a measured step hold its memory beside the predicted one?  Two curves of live bytes over the allocator's events.
#pragma once

#include <QWidget>

#include "gui/session/measured_record.hpp"

namespace plimsoll::gui {

class CurveView : public QWidget {
  Q_OBJECT
 public:
  explicit CurveView(QWidget* parent = nullptr);
  void show_record(std::shared_ptr<const MeasuredRecord> record);
  QSize sizeHint() const override { return {760, 260}; }

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  void paint_curve(QPainter& painter, const QRectF& area, const std::vector<Bytes>& curve, Bytes top,
                   const QPen& pen) const;

  std::shared_ptr<const MeasuredRecord> record_;
};

}  // namespace plimsoll::gui
