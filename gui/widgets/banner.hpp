// The answer first: does it fit, in a word with a mark and a colour; by how much, why not and what would; how long a step takes
// and what it sends.
#pragma once

#include <QFrame>

#include "gui/session/answer.hpp"

class QLabel;
class QPushButton;

namespace plimsoll::gui {

class Banner : public QFrame {
  Q_OBJECT
 public:
  explicit Banner(QWidget* parent = nullptr);
  /// @param good the newest without errors; may be null
  /// @param newest the newest at all; may be null
  void show_answer(const AnswerPtr& good, const AnswerPtr& newest, bool stale);
  QString verdict() const;
  QPushButton* apply_button() const { return apply_; }

 Q_SIGNALS:
  /// The smallest change that fits is to be made.
  void remedy_wanted();

 private:
  QLabel *verdict_, *room_, *reason_, *sent_;
  QPushButton* apply_;
  AnswerPtr settled_, timed_;
};

}  // namespace plimsoll::gui
