// The tab of recommendations: search, the plans found with their reasons, the chart of time against memory, what was excluded.
#pragma once

#include "gui/session/search_job.hpp"
#include "gui/session/session.hpp"
#include "gui/widgets/page.hpp"

class QCheckBox;
class QHBoxLayout;
class QLabel;
class QProgressBar;
class QPushButton;
class QSpinBox;
class QTextBrowser;

namespace plimsoll::gui {

class ParetoView;
class TableView;

class RecommendPage : public Page {
  Q_OBJECT
 public:
  explicit RecommendPage(Session& session, QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  const SearchJob& job() const { return job_; }
  TableView* plans() const { return plans_; }

 public Q_SLOTS:
  void search_or_cancel();
  /// Loads a plan of the table into the session.
  void load(int index);
  void write_files();
  /// @return why it failed; "" if it did not
  QString write_files_to(const QString& folder);

 private:
  void build_bar(QHBoxLayout* bar, QHBoxLayout* below);
  void show_result(const QString& error);
  bool is_behind_the_scenario() const;

  Session& session_;
  SearchJob job_;
  QPushButton *search_, *load_, *write_;
  QSpinBox *global_batch_, *budget_;
  QCheckBox *tight_, *open_;
  QLabel* state_;
  QProgressBar* busy_;
  TableView *plans_, *excluded_;
  ParetoView* chart_;
  QTextBrowser* why_;
};

}  // namespace plimsoll::gui
