// The tab of memory: the hull, the ledger beside it, and what is behind the number that is chosen in either.
#pragma once

#include "gui/widgets/page.hpp"

class QTabWidget;

namespace plimsoll::gui {

class ExplainPanel;
class HullView;
class TableView;

class MemoryPage : public Page {
  Q_OBJECT
 public:
  explicit MemoryPage(QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  HullView* hull() const { return hull_; }
  TableView* ledger() const { return ledger_; }
  ExplainPanel* explained() const { return explained_; }

 private:
  TableView* add_table(const QString& title);
  void show_tables();

  HullView* hull_;
  TableView* ledger_;
  QTabWidget* below_;
  ExplainPanel* explained_;
  TableView *figures_, *phases_, *host_, *rests_on_, *parameters_, *files_;
  AnswerPtr answer_;
};

}  // namespace plimsoll::gui
