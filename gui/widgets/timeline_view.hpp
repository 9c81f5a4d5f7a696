// When does each op run?  The simulated step as swim-lanes with its critical path, and under it, on the same axis, the bytes
// alive on the device.  Of the ranks that are on the clock it shows the one that the step's figures are told of, whole, and of
// the others the lanes that the critical path goes through.  Each repaint touches as many ops as there are pixels, however many
// the step has.
#pragma once

#include <QWidget>
#include <array>

#include "gui/session/answer.hpp"

namespace plimsoll::gui {

/// Pixels of a line of the legend.
inline constexpr double legend_line = 20;

class TimelineView : public QWidget {
  Q_OBJECT
 public:
  explicit TimelineView(QWidget* parent = nullptr);

  /// Shows the step of an answer that has one; the view keeps its window of time where the step's length is about the same.
  void show_answer(AnswerPtr answer);
  /// The step shown is not of the scenario as it stands.
  void set_dimmed(bool dimmed);
  /// Makes an op of Timeline::ops the selected one and brings it into view.
  void select(std::uint32_t index);
  std::optional<std::uint32_t> selected() const { return selected_; }
  /// Is an op of Timeline::ops on one of the lanes?
  bool shows(std::uint32_t index) const { return row_of(index) < rows_.size(); }

  void zoom(double factor, double at_pixel);
  void pan(double pixels);
  void fit();
  double visible_seconds() const { return to_seconds(end_ - begin_); }

  QSize sizeHint() const override { return {900, 360}; }
  QSize minimumSizeHint() const override { return {400, 260}; }

 Q_SIGNALS:
  void selected_changed(const QString& words);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void resizeEvent(QResizeEvent* event) override;
  void wheelEvent(QWheelEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void mouseMoveEvent(QMouseEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  bool event(QEvent* event) override;

 private:
  struct LaneRow {
    std::uint16_t class_index;
    Lane lane;
    std::vector<std::uint32_t> ops;   ///< indices into Timeline::ops, by start
    std::vector<std::uint32_t> path;  ///< those on the critical path, likewise
  };
  static std::vector<LaneRow> rows_of(const Timeline& timeline);
  double x_of(SimTime time) const;
  SimTime time_at(double x) const;
  QRectF lanes_area() const;
  QRectF row_area(std::size_t row) const;
  QString name_of_row(const LaneRow& row) const;
  std::size_t row_of(std::uint32_t index) const;
  const Op& op_of(std::uint32_t index) const;
  QRectF curve_area() const;
  void paint_axis(QPainter& painter) const;
  void paint_row(QPainter& painter, std::size_t row) const;
  void paint_path(QPainter& painter, std::size_t row) const;
  void paint_curve(QPainter& painter) const;
  void paint_legend(QPainter& painter) const;
  int legend_lines() const;
  void paint_selected(QPainter& painter) const;
  std::optional<std::uint32_t> op_at(const QPointF& point) const;
  QString words_of(std::uint32_t index) const;
  void keep_inside();
  void step(int by);
  void step_lane(int by);

  int legend_lines_ = 1;  ///< at this width
  AnswerPtr answer_;
  bool dimmed_ = false;
  std::vector<LaneRow> rows_;
  std::vector<bool> critical_;  ///< by index into Timeline::ops
  SimTime begin_ = 0, end_ = 1;
  std::optional<std::uint32_t> selected_;
  double drag_from_ = 0;
};

}  // namespace plimsoll::gui
