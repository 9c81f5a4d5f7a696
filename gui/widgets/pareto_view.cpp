// The chart (gui/widgets/pareto_view.hpp).
#include "gui/widgets/pareto_view.hpp"

#include <QAreaSeries>
#include <QChart>
#include <QLegendMarker>
#include <QScatterSeries>
#include <QToolTip>
#include <QValueAxis>
#include <algorithm>

#include "gui/widgets/theme.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

constexpr double gibibyte = 1 << 30, micro = 1e6;

QPointF point_of(const Listed& listed) {
  return {listed.found.seconds_per_token * micro,
          static_cast<double>(listed.found.evaluated.job_device_peak.count) / gibibyte};
}

QString words_of(const Listed& listed) {
  return QObject::tr("%1 tokens/s, %2 GiB: %3\n%4")
      .arg(QString::fromStdString(format_count(static_cast<std::int64_t>(listed.tokens_per_s))),
           QString::fromStdString(gibibytes(listed.found.evaluated.job_device_peak)),
           QString::fromUtf8(name_of(listed.found.evaluated.verdict)), QString::fromStdString(listed.why));
}

}  // namespace

ParetoView::ParetoView(QWidget* parent) : QChartView(parent) {
  setAccessibleName(tr("Plans: time a token against device memory"));
  setRenderHint(QPainter::Antialiasing);
  setFrameShape(QFrame::NoFrame);
  setMinimumSize(300, 200);
  chart()->setMargins({4, 4, 4, 4});
  chart()->setBackgroundRoundness(0);
  chart()->setBackgroundBrush(palette().base());
  setFocusPolicy(Qt::NoFocus);  // the table beside it holds the same plans
}

void ParetoView::show_result(const std::shared_ptr<const Recommendation>& result) {
  result_ = result;
  auto* fresh = new QChart;
  fresh->setBackgroundRoundness(0);
  fresh->setMargins({4, 4, 4, 4});
  fresh->setBackgroundBrush(palette().base());
  const bool dark = is_dark(palette());
  const QColor words = palette().text().color();
  const auto series_of = [&](const std::vector<Listed>& plans, const QString& name, QScatterSeries::MarkerShape shape,
                             Category ink, double size, auto clicked) {
    auto* series = new QScatterSeries;
    series->setName(name);
    series->setMarkerShape(shape);
    series->setMarkerSize(size);
    series->setColor(ink_of(ink, dark).colour);
    series->setBorderColor(palette().base().color());
    for (const Listed& listed : plans) series->append(point_of(listed));
    const auto index_of = [plans](const QPointF& point) {
      const auto found =
          std::find_if(plans.begin(), plans.end(), [&](const Listed& listed) { return point_of(listed) == point; });
      return found == plans.end() ? -1 : static_cast<int>(found - plans.begin());
    };
    connect(series, &QScatterSeries::clicked, this, [index_of, clicked](const QPointF& point) {
      if (const int index = index_of(point); index >= 0) clicked(index);
    });
    connect(series, &QScatterSeries::hovered, this, [this, plans, index_of](const QPointF& point, bool over) {
      const int index = index_of(point);
      if (over && index >= 0)
        QToolTip::showText(QCursor::pos(), words_of(plans[static_cast<std::size_t>(index)]), this);
    });
    fresh->addSeries(series);
  };
  if (result) {
    series_of(result->front, tr("Pareto front"), QScatterSeries::MarkerShapeRotatedRectangle, Category::activations, 17,
              [this](int i) { Q_EMIT front_clicked(i); });
    series_of(result->plans, tr("listed"), QScatterSeries::MarkerShapeCircle, Category::parameters, 10,
              [this](int i) { Q_EMIT plan_clicked(i); });
  }
  fresh->createDefaultAxes();
  const auto axes = fresh->axes();
  for (QAbstractAxis* axis : axes) {
    axis->setLabelsColor(words);
    axis->setTitleBrush(words);
    axis->setGridLineColor(palette().midlight().color());
    axis->setTitleText(axis->orientation() == Qt::Horizontal ? tr("µs a token, whole job")
                                                             : tr("device peak of the job, GiB"));
    auto* values = qobject_cast<QValueAxis*>(axis);
    if (values == nullptr) continue;
    const double low = values->min(), high = values->max(), air = std::max((high - low) * 0.08, high * 0.02);
    values->setRange(std::max(0.0, low - air), high + air);
    values->applyNiceNumbers();
    values->setLabelFormat(QStringLiteral("%g"));
  }
  if (result) {  // on the axes of the others, which it must not stretch
    auto* mark = new QScatterSeries;
    mark->setName(tr("chosen"));
    mark->setMarkerSize(20);
    mark->setColor(Qt::transparent);
    mark->setBorderColor(words);
    fresh->addSeries(mark);
    for (QAbstractAxis* axis : axes) mark->attachAxis(axis);
  }
  fresh->legend()->setAlignment(Qt::AlignBottom);
  fresh->legend()->setLabelColor(words);
  QChart* old = chart();
  setChart(fresh);
  delete old;
}

void ParetoView::mark(int index) {
  if (!result_ || chart()->series().size() < 3) return;
  auto* series = qobject_cast<QScatterSeries*>(chart()->series().back());
  series->clear();
  if (index >= 0 && index < static_cast<int>(result_->plans.size()))
    series->append(point_of(result_->plans[static_cast<std::size_t>(index)]));
}

}  // namespace plimsoll::gui
