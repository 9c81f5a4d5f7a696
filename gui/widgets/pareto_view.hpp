// Which plans are worth having?  Time against memory; a point is a plan that no other beats in both, or one of the list.
#pragma once

#include <QChartView>

#include "planner/cli/recommendation.hpp"

class QScatterSeries;

namespace plimsoll::gui {

class ParetoView : public QChartView {
  Q_OBJECT
 public:
  explicit ParetoView(QWidget* parent = nullptr);
  void show_result(const std::shared_ptr<const Recommendation>& result);
  /// Marks a plan of the list; nothing below 0.
  void mark(int index);

 Q_SIGNALS:
  void plan_clicked(int index);   ///< of Recommendation::plans
  void front_clicked(int index);  ///< of Recommendation::front

 private:
  std::shared_ptr<const Recommendation> result_;
};

}  // namespace plimsoll::gui
