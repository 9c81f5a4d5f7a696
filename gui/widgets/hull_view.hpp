// How deep is the card loaded?  A column a phase of the job, stacked by category, against the device's capacity: the load line,
// with its margin.  Figures that have not settled yet are those of the last settled answer, dimmed.
#pragma once

#include <QWidget>

#include "gui/session/answer.hpp"

namespace plimsoll::gui {

class HullView : public QWidget {
  Q_OBJECT
 public:
  explicit HullView(QWidget* parent = nullptr);

  /// @param stale the answer is not of the scenario as it stands
  void show_answer(AnswerPtr answer, bool stale);
  /// Highlights a category in all phases; "" for none.
  void highlight(const std::string& category);
  std::string highlighted() const { return highlighted_; }

  QSize sizeHint() const override { return {760, 380}; }
  QSize minimumSizeHint() const override { return {360, 220}; }

 Q_SIGNALS:
  /// A part was clicked, or chosen by keys.  @param category or "" between parts
  void part_chosen(const QString& phase, const QString& category);

 protected:
  void paintEvent(QPaintEvent* event) override;
  void mousePressEvent(QMouseEvent* event) override;
  void keyPressEvent(QKeyEvent* event) override;
  bool event(QEvent* event) override;

 private:
  struct Part {
    QRectF area;
    std::size_t phase = 0;
    std::string name;
    Bytes bytes;
  };
  struct Frame;  ///< where bytes lie on the screen
  Frame frame() const;
  void paint_scale(QPainter& painter, const Frame& at) const;
  void paint_columns(QPainter& painter, const Frame& at);
  double name_scale(double slot) const;
  void paint_column(QPainter& painter, const Frame& at, std::size_t index);
  void paint_load_line(QPainter& painter, const Frame& at) const;
  bool margin_is_over() const;
  QString margin_in_words() const;  ///< "" until it is known
  void label(QPainter& painter, const QPointF& at, Qt::Alignment side, const QString& words) const;
  const Part* part_at(const QPointF& point) const;
  void choose(const Part& part);
  void step_phase(int by);
  void step_category(int by);

  AnswerPtr answer_, settled_;
  bool stale_ = false;
  std::string highlighted_;
  std::size_t phase_ = 0;  ///< chosen
  std::vector<Part> parts_;
};

}  // namespace plimsoll::gui
