// What is behind a number?  Its formula in words, how it is known, and the terms that sum to it.
#pragma once

#include <QWidget>

#include "gui/session/answer.hpp"

class QLabel;

namespace plimsoll::gui {

class TableView;

class ExplainPanel : public QWidget {
  Q_OBJECT
 public:
  explicit ExplainPanel(QWidget* parent = nullptr);

  /// Explains the number that was asked for last, of this answer.
  void show_answer(AnswerPtr answer);
  /// @param number as `plimsoll explain --number` takes it; "": what is alive at the peak
  void explain(const QString& number);
  TableView* table() const { return table_; }

 private:
  void refresh();

  AnswerPtr answer_;
  QString number_;
  QLabel* words_;
  TableView* table_;
};

}  // namespace plimsoll::gui
