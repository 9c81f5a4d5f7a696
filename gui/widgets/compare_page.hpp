// The tabs that set one thing beside another: two plans, and a measured step beside the predicted one.
#pragma once

#include "gui/session/measured_record.hpp"
#include "gui/session/session.hpp"
#include "gui/widgets/page.hpp"

class QLabel;
class QPushButton;

namespace plimsoll::gui {

class CurveView;
class HullView;
class TableView;

/// Plan A is the scenario as it stands, plan B one that was kept.
class ComparePage : public Page {
  Q_OBJECT
 public:
  explicit ComparePage(Session& session, QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  TableView* terms() const { return terms_; }

 private:
  void show_both();

  Session& session_;
  AnswerPtr answer_;
  QPushButton *keep_, *swap_, *forget_;
  QLabel *words_a_, *words_b_;
  HullView *hull_a_, *hull_b_;
  TableView *settings_, *terms_;
};

class MeasuredPage : public Page {
  Q_OBJECT
 public:
  explicit MeasuredPage(Session& session, QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  TableView* sums() const { return sums_; }
  TableView* details() const { return tensors_; }

 public Q_SLOTS:
  void choose_file();
  void open(const QString& file);

 private:
  void show_record(const std::shared_ptr<const MeasuredRecord>& record);

  Session& session_;
  MeasuredJob job_;
  QString file_;
  QPushButton *open_, *again_;
  QLabel* words_;
  CurveView* curves_;
  TableView *sums_, *tensors_, *problems_;
};

}  // namespace plimsoll::gui
