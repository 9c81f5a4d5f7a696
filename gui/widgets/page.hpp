// What does a tab of the window do?  It shows an answer; it is shown only those that come while it is visible.
#pragma once

#include <QWidget>

#include "gui/session/answer.hpp"

namespace plimsoll::gui {

class Page : public QWidget {
  Q_OBJECT
 public:
  using QWidget::QWidget;

  /// @param answer without errors
  /// @param stale it is not of the scenario as it stands
  virtual void show_answer(const AnswerPtr& answer, bool stale) = 0;
  /// Where the keyboard goes when the tab is opened.
  virtual QWidget* first_focus() = 0;
  /// What an export of this view holds.
  virtual QWidget* picture() { return this; }
};

}  // namespace plimsoll::gui
