// What does each link carry?  The cluster drawn from GPUs to spine, every tier of links as wide as the bytes that one GPU sends
// over it in a step.
#pragma once

#include <QWidget>

#include "gui/session/answer.hpp"

namespace plimsoll::gui {

class TopologyView : public QWidget {
  Q_OBJECT
 public:
  explicit TopologyView(QWidget* parent = nullptr);
  void show_answer(AnswerPtr answer, bool stale);
  QSize sizeHint() const override { return {620, 320}; }
  QSize minimumSizeHint() const override { return {320, 220}; }

 protected:
  void paintEvent(QPaintEvent* event) override;

 private:
  struct Links;
  void paint_node(QPainter& painter, const QRectF& area, int node, const Links& links) const;
  void paint_network(QPainter& painter, const std::vector<QRectF>& nodes, const Links& links) const;
  void paint_legend(QPainter& painter, const QRectF& area, const Links& links) const;
  void box(QPainter& painter, const QRectF& area, const QString& words) const;

  AnswerPtr answer_;
  bool stale_ = false;
};

}  // namespace plimsoll::gui
