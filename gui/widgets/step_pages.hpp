// The tabs of communication and of time.
#pragma once

#include "gui/widgets/page.hpp"

class QLabel;

namespace plimsoll::gui {

class TableView;
class TimelineView;
class TopologyView;

class CommunicationPage : public Page {
  Q_OBJECT
 public:
  explicit CommunicationPage(QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  TableView* volumes() const { return volumes_; }

 private:
  TopologyView* topology_;
  TableView *loads_, *volumes_;
};

class TimePage : public Page {
  Q_OBJECT
 public:
  explicit TimePage(QWidget* parent = nullptr);
  void show_answer(const AnswerPtr& answer, bool stale) override;
  QWidget* first_focus() override;
  TimelineView* timeline() const { return timeline_; }

 private:
  TimelineView* timeline_;
  QLabel* selected_;
  TableView *exposed_, *lanes_, *kernels_, *path_;
};

}  // namespace plimsoll::gui
