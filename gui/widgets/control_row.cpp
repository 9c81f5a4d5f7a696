// One control (gui/widgets/control_row.hpp).
#include "gui/widgets/control_row.hpp"

#include <QComboBox>
#include <QEvent>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QRegularExpression>
#include <QSignalBlocker>
#include <QSlider>
#include <QStandardItemModel>
#include <QToolButton>
#include <QToolTip>
#include <algorithm>
#include <cstdlib>

namespace plimsoll::gui {
namespace {

/// "8,192", "8.192", "8 192" or "8\u2019192" is 8192, as people write whole numbers in one place or another; all else stays as it is.
QString without_grouping(const QString& text) {
  static const QRegularExpression grouped(QStringLiteral("^[0-9]{1,3}([.,\\s_'\u2019\u202f][0-9]{3})+$"));
  if (!grouped.match(text).hasMatch()) return text;
  QString digits = text;
  return digits.remove(QRegularExpression(QStringLiteral("[^0-9]")));
}

}  // namespace

ControlRow::ControlRow(const Control& control, QWidget* parent)
    : QWidget(parent), control_(control), back_(new QToolButton(this)) {
  auto* layout = new QHBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(4);
  if (control_.kind == Control::Kind::choice) {
    build_choice();
    layout->addWidget(box_, 1);
  } else {
    build_number();
    layout->addWidget(slider_, 1);
    layout->addWidget(field_);
  }
  back_->setText(QStringLiteral("↺"));
  back_->setAutoRaise(true);
  back_->setToolTip(tr("Back to the file's value or the default"));
  back_->setAccessibleName(tr("Reset %1").arg(QString::fromStdString(control_.key)));
  QSizePolicy policy = back_->sizePolicy();
  policy.setRetainSizeWhenHidden(true);
  back_->setSizePolicy(policy);
  back_->hide();
  layout->addWidget(back_);
  entry()->installEventFilter(this);
  connect(back_, &QToolButton::clicked, this, [this] { Q_EMIT given_back(QString::fromStdString(control_.key)); });
  const QString term = QString::fromStdString(control_.term + " (" + control_.key + ")");
  setToolTip(term);
  entry()->setAccessibleDescription(term);
  setFocusProxy(entry());
}

QWidget* ControlRow::entry() const { return box_ != nullptr ? static_cast<QWidget*>(box_) : slider_; }

void ControlRow::build_choice() {
  box_ = new QComboBox(this);
  box_->setAccessibleName(QString::fromStdString(control_.key));
  box_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
  box_->setMinimumContentsLength(8);
  for (std::size_t i = 0; i < control_.values.size(); ++i) box_->addItem(QString::fromStdString(control_.shown(i)));
  connect(box_, &QComboBox::activated, this, [this](int index) {
    if (index >= static_cast<int>(control_.values.size())) return;  // a value of the file that is not in the list
    Q_EMIT chosen(QString::fromStdString(control_.key),
                  QString::fromStdString(control_.values[static_cast<std::size_t>(index)]));
  });
}

void ControlRow::build_number() {
  slider_ = new QSlider(Qt::Horizontal, this);
  slider_->setAccessibleName(QString::fromStdString(control_.key));
  slider_->setRange(0, static_cast<int>(control_.values.size()) - 1);
  slider_->setPageStep(1);
  slider_->setFocusPolicy(Qt::StrongFocus);
  field_ = new QLineEdit(this);
  field_->setAccessibleName(tr("%1, any value").arg(QString::fromStdString(control_.key)));
  field_->setAlignment(Qt::AlignRight);
  const int digits = std::max<int>(5, static_cast<int>(control_.values.back().size()));
  field_->setFixedWidth(fontMetrics().horizontalAdvance(QString(digits, '0')) + 16);
  connect(slider_, &QSlider::valueChanged, this, &ControlRow::slide);
  connect(field_, &QLineEdit::editingFinished, this, [this] {
    const QString value = without_grouping(field_->text().trimmed());
    field_->setText(value);
    if (value.toStdString() != state_.value) Q_EMIT chosen(QString::fromStdString(control_.key), value);
  });
}

bool ControlRow::eventFilter(QObject* watched, QEvent* event) {
  if (event->type() == QEvent::FocusIn || event->type() == QEvent::Enter)
    Q_EMIT touched(QString::fromStdString(control_.key));
  return QWidget::eventFilter(watched, event);
}

QString ControlRow::reason(int index) const {
  const auto i = static_cast<std::size_t>(index);
  return i < state_.refused.size() ? QString::fromStdString(state_.refused[i]) : QString();
}

/// Goes to the next legal stop in the direction of the move; stays where there is none, and says why.
void ControlRow::slide(int index) {
  const int by = index > stop_ ? 1 : -1;
  int to = index;
  while (to >= 0 && to <= slider_->maximum() && !reason(to).isEmpty()) to += by;
  if (to != index) {
    const QString words =
        tr("%1 = %2 is not legal: %3")
            .arg(QString::fromStdString(control_.key),
                 QString::fromStdString(control_.values[static_cast<std::size_t>(index)]), reason(index));
    QToolTip::showText(mapToGlobal(QPoint(0, height())), QStringLiteral("<qt>%1</qt>").arg(words.toHtmlEscaped()),
                       this);
    Q_EMIT refused(words);
  }
  if (to < 0 || to > slider_->maximum()) to = stop_;
  {
    const QSignalBlocker blocker(slider_);
    slider_->setValue(to);
  }
  if (to == stop_) return;
  stop_ = to;
  const std::string& value = control_.values[static_cast<std::size_t>(to)];
  state_.value = value;
  field_->setText(QString::fromStdString(value));
  Q_EMIT chosen(QString::fromStdString(control_.key), QString::fromStdString(value));
}

/// Of the list; one beyond its end for a value that is not in it.
int ControlRow::index_of(const std::string& value) const {
  return static_cast<int>(std::find(control_.values.begin(), control_.values.end(), value) - control_.values.begin());
}

int ControlRow::nearest_stop(const std::string& value) const {
  const double number = std::strtod(value.c_str(), nullptr);
  int best = 0;
  for (int i = 0; i < static_cast<int>(control_.values.size()); ++i)
    if (std::strtod(control_.values[static_cast<std::size_t>(i)].c_str(), nullptr) <= number) best = i;
  return best;
}

void ControlRow::show_state(const ControlState& state, bool know_reasons) {
  const std::vector<std::string> refused = know_reasons ? state.refused : state_.refused;
  // Most rows stay as they are from answer to answer, and a list's items are dear to touch.
  const bool same = state.value == state_.value && state.stated == state_.stated && refused == state_.refused;
  if (same && box_ != nullptr && box_->currentIndex() == index_of(state.value)) return;
  state_ = state;
  state_.refused = refused;
  back_->setVisible(state.stated);
  if (slider_ != nullptr) {
    if (!slider_->isSliderDown()) {
      const QSignalBlocker blocker(slider_);
      stop_ = nearest_stop(state.value);
      slider_->setValue(stop_);
    }
    if (!field_->hasFocus() || !field_->isModified()) field_->setText(QString::fromStdString(state.value));
    return;
  }
  const auto& values = control_.values;
  const auto listed = static_cast<int>(values.size());
  while (box_->count() > listed) box_->removeItem(listed);
  const int index = index_of(state.value);
  if (index == listed) box_->addItem(QString::fromStdString(state.value));
  box_->setCurrentIndex(index);
  auto* items = qobject_cast<QStandardItemModel*>(box_->model());
  for (int i = 0; i < listed; ++i) {
    const QString why = reason(i);
    items->item(i)->setEnabled(why.isEmpty());
    items->item(i)->setToolTip(why);
  }
}

}  // namespace plimsoll::gui
