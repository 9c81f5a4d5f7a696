// The banner (gui/widgets/banner.hpp).
#include "gui/widgets/banner.hpp"

#include <fmt/format.h>

#include <QGridLayout>
#include <QLabel>
#include <QPainter>
#include <QPushButton>

#include "gui/models/tables.hpp"
#include "gui/widgets/theme.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

QString sent_in_words(const Answer& answer) {
  std::string text = fmt::format("One GPU sends {} GiB a step", gibibytes(answer.volume.per_gpu));
  std::string tiers;
  for (const TierLoad& load : answer.loads)
    tiers += fmt::format("{}{} {}", tiers.empty() ? ": " : ", ", name_of(load.tier), gibibytes(load.wire));
  return QString::fromStdString(text + tiers);
}

/// A line that ends in an ellipsis where there is no room.
class Line : public QLabel {
 public:
  using QLabel::QLabel;
  /// Whatever its words are: new ones lay nothing out anew.
  QSize sizeHint() const override { return {0, fontMetrics().height()}; }
  QSize minimumSizeHint() const override { return sizeHint(); }

 protected:
  void paintEvent(QPaintEvent*) override {
    QPainter painter(this);
    painter.setPen(palette().windowText().color());
    painter.drawText(contentsRect(), Qt::AlignLeft | Qt::AlignVCenter,
                     fontMetrics().elidedText(text(), Qt::ElideRight, contentsRect().width()));
  }
};

void dim(QLabel* label, bool dimmed) {
  QPalette palette = label->parentWidget()->palette();
  QColor colour = palette.color(QPalette::WindowText);
  if (dimmed) colour.setAlpha(105);
  palette.setColor(QPalette::WindowText, colour);
  label->setPalette(palette);
}

}  // namespace

Banner::Banner(QWidget* parent)
    : QFrame(parent),
      verdict_(new QLabel(this)),
      room_(new Line(this)),
      reason_(new Line(this)),
      sent_(new Line(this)),
      apply_(new QPushButton(tr("Appl&y"), this)) {
  setFrameShape(QFrame::NoFrame);
  QFont large = font();
  large.setPointSizeF(large.pointSizeF() * 1.7);
  large.setBold(true);
  verdict_->setFont(large);
  verdict_->setMinimumWidth(QFontMetrics(large).horizontalAdvance(QStringLiteral("✗ out of memory ")));
  verdict_->setAlignment(Qt::AlignLeft | Qt::AlignVCenter);
  verdict_->setAccessibleName(tr("Verdict"));
  QFont middle = font();
  middle.setPointSizeF(middle.pointSizeF() * 1.15);
  room_->setFont(middle);
  for (QLabel* label : {room_, reason_, sent_}) label->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
  apply_->setToolTip(tr("Makes the smallest change with which it fits (Ctrl+Shift+F)"));
  apply_->hide();
  auto* layout = new QGridLayout(this);
  layout->setContentsMargins(16, 8, 12, 8);
  layout->setHorizontalSpacing(16);
  layout->setVerticalSpacing(2);
  layout->addWidget(verdict_, 0, 0, 3, 1);
  layout->addWidget(room_, 0, 1);
  layout->addWidget(reason_, 1, 1);
  layout->addWidget(sent_, 2, 1);
  layout->addWidget(apply_, 0, 2, 3, 1, Qt::AlignVCenter);
  layout->setColumnStretch(1, 1);
  connect(apply_, &QPushButton::clicked, this, &Banner::remedy_wanted);
}

QString Banner::verdict() const { return verdict_->text(); }

void Banner::show_answer(const AnswerPtr& good, const AnswerPtr& newest, bool stale) {
  const bool broken = newest && newest->has_errors();
  const bool dark = is_dark(palette());
  if (!good) {
    verdict_->setText(broken ? tr("✗ errors") : QStringLiteral("…"));
    room_->setText(broken ? tr("The input has errors: see Problems") : tr("evaluating"));
    reason_->setText(broken ? QString::fromStdString(problems_in_words(newest->diagnostics)) : QString());
    sent_->clear();
    return;
  }
  if (good->settled) settled_ = good;
  if (good->step) timed_ = good;
  if (settled_) {
    const Verdict verdict = settled_->ledger->verdict;
    const QString word = verdict == Verdict::oom ? tr("out of memory") : QString::fromUtf8(name_of(verdict));
    verdict_->setText(mark_of(verdict) + QStringLiteral(" ") + word);
    QPalette colours = palette();
    QColor colour = colour_of(verdict, dark);
    if (!good->settled || stale) colour.setAlpha(105);
    colours.setColor(QPalette::WindowText, colour);
    verdict_->setPalette(colours);
    room_->setText(QString::fromStdString(room_in_words(*settled_->ledger)));
    dim(room_, !good->settled || stale);
  } else {
    verdict_->setText(QStringLiteral("…"));
    room_->setText(QString::fromStdString(verdict_in_words(*good)));
  }
  if (broken) {
    reason_->setText(tr("The input has %1: what is shown is of the last good one. See Problems.")
                         .arg(QString::fromStdString(problems_in_words(newest->diagnostics))));
    dim(reason_, false);
  } else if (good->settled && good->ledger->verdict != Verdict::fits) {
    reason_->setText(QString::fromStdString(reason_in_words(*good)));
    dim(reason_, false);
  } else if (timed_) {
    reason_->setText(QString::fromStdString(step_in_words(*timed_->step)));
    dim(reason_, timed_ != good);
  }
  sent_->setText(sent_in_words(*good));
  for (QLabel* label : {room_, reason_, sent_}) label->setToolTip(label->text());  // it may be cut
  dim(sent_, stale);
  apply_->setVisible(good->settled && !stale && good->remedy.has_value());
}

}  // namespace plimsoll::gui
