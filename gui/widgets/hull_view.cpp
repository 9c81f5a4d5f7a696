// Painting of the hull (gui/widgets/hull_view.hpp).
#include "gui/widgets/hull_view.hpp"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QLocale>
#include <QMouseEvent>
#include <QPainter>
#include <QPainterPath>
#include <QToolTip>
#include <cmath>

#include "gui/widgets/theme.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

constexpr double left_margin = 58, right_margin = 16, top_margin = 26, bottom_margin = 44;
constexpr double left_of_words = 34;  // the mark stands there
constexpr double faint = 0.35;        // opacity of what has not settled
constexpr double set_back = 0.6;      // opacity of what is not highlighted where something is

QString gib(Bytes bytes) { return QString::fromStdString(gibibytes(bytes)); }

/// 1, 2 or 5 times a power of ten, so that about six of them make `span`.
double nice_step(double span) {
  const double raw = span / 6, power = std::pow(10, std::floor(std::log10(std::max(raw, 1e-3))));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

QString in_two_lines(const std::string& phase) {
  QString text = QString::fromStdString(phase);
  const auto at = text.lastIndexOf('_');
  return at < 0 ? text : text.replace(at, 1, '\n');
}

}  // namespace

/// Pixels of bytes: y(0) is the keel.
struct HullView::Frame {
  QRectF plot;
  Bytes top;
  std::size_t phases = 1;
  double y(Bytes bytes) const { return plot.bottom() - plot.height() * (bytes / top); }
  double slot() const { return plot.width() / static_cast<double>(phases); }
  QRectF column(std::size_t phase) const {
    const double width = std::min(92.0, slot() * 0.72);
    const double centre = plot.left() + slot() * (static_cast<double>(phase) + 0.5);
    return {centre - width / 2, plot.top(), width, plot.height()};
  }
};

HullView::HullView(QWidget* parent) : QWidget(parent) {
  setFocusPolicy(Qt::StrongFocus);
  setAccessibleName(tr("Device memory by phase of the job"));
  setWhatsThis(tr("Left and right choose a phase, up and down a category."));
  setMouseTracking(true);
}

void HullView::show_answer(AnswerPtr answer, bool stale) {
  answer_ = std::move(answer);
  if (answer_ && answer_->settled && answer_->ledger) settled_ = answer_;
  stale_ = stale;
  if (answer_ && phase_ >= answer_->phases.size()) phase_ = 0;
  update();
}

void HullView::highlight(const std::string& category) {
  if (category == highlighted_) return;
  highlighted_ = category;
  update();
}

HullView::Frame HullView::frame() const {
  Frame frame;
  frame.plot =
      QRectF(left_margin, top_margin, width() - left_margin - right_margin, height() - top_margin - bottom_margin);
  frame.phases = std::max<std::size_t>(1, answer_->phases.size());
  Bytes top = std::max(answer_->ledger->capacity, answer_->ledger->allocated_peak.value);
  for (const PhaseCategories& phase : answer_->phases) top = std::max(top, phase.total());
  if (settled_) top = std::max(top, settled_->ledger->job_device_peak.value);
  frame.top = top + top / std::int64_t{14};
  return frame;
}

void HullView::paintEvent(QPaintEvent*) {
  QPainter painter(this);  // upright edges need no smoothing, which would be half of the painting's time
  painter.fillRect(rect(), palette().base());
  parts_.clear();
  if (!answer_ || !answer_->ledger) return;
  const Frame at = frame();
  paint_scale(painter, at);
  if (stale_) painter.setOpacity(0.55);
  paint_columns(painter, at);
  painter.setOpacity(1);
  painter.setRenderHint(QPainter::Antialiasing);
  paint_load_line(painter, at);
  if (!hasFocus()) return;
  painter.setPen(QPen(palette().highlight().color(), 1, Qt::DotLine));
  painter.setBrush(Qt::NoBrush);
  painter.drawRect(QRectF(rect()).adjusted(0.5, 0.5, -0.5, -0.5));
}

void HullView::paint_scale(QPainter& painter, const Frame& at) const {
  constexpr double gibibyte = 1 << 30;
  const double top = static_cast<double>(at.top.count) / gibibyte, step = nice_step(top);
  QColor line = palette().text().color();
  line.setAlpha(28);
  QColor words = palette().text().color();
  words.setAlpha(170);
  for (double value = 0; value <= top; value += step) {
    const double y = at.y(Bytes(static_cast<std::int64_t>(value * gibibyte)));
    painter.setPen(line);
    painter.drawLine(QPointF(at.plot.left(), y), QPointF(at.plot.right(), y));
    painter.setPen(words);
    painter.drawText(QRectF(0, y - 9, left_margin - 8, 18), Qt::AlignRight | Qt::AlignVCenter,
                     locale().toString(value));
  }
  painter.drawText(QRectF(0, 4, left_margin - 8, 18), Qt::AlignRight | Qt::AlignVCenter, QStringLiteral("GiB"));
}

void HullView::paint_columns(QPainter& painter, const Frame& at) {
  const double opacity = painter.opacity();
  QFont small = font();
  small.setPointSizeF(small.pointSizeF() * name_scale(at.slot()));
  for (std::size_t i = 0; i < answer_->phases.size(); ++i) {
    painter.setFont(font());
    paint_column(painter, at, i);
    painter.setOpacity(1);
    const std::string& name = answer_->phases[i].name;
    small.setBold(name == answer_->ledger->peak_phase);
    painter.setFont(small);
    painter.setPen(palette().text().color());
    QStringList lines = in_two_lines(name).split('\n');
    for (QString& line : lines)
      line = painter.fontMetrics().elidedText(line, Qt::ElideRight, static_cast<int>(at.slot()) - 2);
    painter.drawText(QRectF(at.plot.left() + at.slot() * static_cast<double>(i), at.plot.bottom() + 5, at.slot(), 38),
                     Qt::AlignHCenter | Qt::AlignTop, lines.join('\n'));
    painter.setOpacity(opacity);
  }
  painter.setFont(font());
}

/// How much smaller than the window's font the names of phases must be to stand side by side.
double HullView::name_scale(double slot) const {
  constexpr double usual = 0.86, least = 0.6;
  QFont bold = font();
  bold.setBold(true);
  const QFontMetrics metrics(bold);
  int widest = 1;
  for (const PhaseCategories& phase : answer_->phases)
    for (const QString& line : in_two_lines(phase.name).split('\n'))
      widest = std::max(widest, metrics.horizontalAdvance(line));
  return std::clamp((slot - 3) / widest, least, usual);
}

void HullView::paint_column(QPainter& painter, const Frame& at, std::size_t index) {
  const PhaseCategories& phase = answer_->phases[index];
  const bool dark = is_dark(palette());
  const QRectF column = at.column(index);
  const double opacity = painter.opacity();
  Bytes from;
  const auto part = [&](const std::string& name, Bytes bytes) {
    if (bytes.count <= 0) return;
    const QRectF area(column.left(), at.y(from + bytes), column.width(), at.y(from) - at.y(from + bytes));
    const double shown = highlighted_.empty() || highlighted_ == name ? 1 : set_back;
    painter.setOpacity(opacity * shown);
    const Ink ink = ink_of(name, dark);
    fill(painter, area, ink);
    painter.setPen(palette().base().color());
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(area);
    if (highlighted_ == name) {
      painter.setPen(QPen(palette().text().color(), index == phase_ ? 2.4 : 1.2));
      painter.drawRect(area.adjusted(0.5, 0.5, -0.5, -0.5));
    }
    if (area.height() > 15 && column.width() > painter.fontMetrics().horizontalAdvance(gib(bytes)) + 4) {
      painter.setOpacity(opacity);  // figures read well on faint parts too
      painter.setPen(text_on(over(ink.colour, shown, palette().base().color())));
      painter.drawText(area.adjusted(3, 0, -3, 0), Qt::AlignCenter, gib(bytes));
    }
    parts_.push_back({area, index, name, bytes});
    from += bytes;
  };
  for (int i = 0; i < category_count; ++i)
    part(name_of(static_cast<Category>(i)), phase.categories[static_cast<std::size_t>(i)]);
  // What lies beside the tensors follows from the allocator, so from the last settled answer.
  if (!settled_ || index >= settled_->ledger->replay.phases.size()) return;
  painter.setOpacity(answer_->settled ? opacity : opacity * faint);
  const double settled_opacity = painter.opacity();
  const PhaseMemory& memory = settled_->ledger->replay.phases[index];
  const auto above = [&](const char* name, Bytes until) {
    if (until <= from) return;
    const QRectF area(column.left(), at.y(until), column.width(), at.y(from) - at.y(until));
    painter.setOpacity(settled_opacity * (highlighted_.empty() || highlighted_ == name ? 1 : set_back));
    fill(painter, area, ink_of(name, dark));
    parts_.push_back({area, index, name, until - from});
    from = until;
  };
  above("reserved but not in use then", memory.reserved_peak);
  above("outside the framework", memory.reserved_peak + settled_->ledger->outside.total());
  painter.setOpacity(opacity);
}

/// Words on a ground of their own, so that they read above columns too.
void HullView::label(QPainter& painter, const QPointF& at, Qt::Alignment side, const QString& words) const {
  const double width = painter.fontMetrics().horizontalAdvance(words) + 12.0;
  const QRectF area(side == Qt::AlignRight ? at.x() - width : at.x(), at.y(), width, 19);
  QColor ground = palette().base().color();
  ground.setAlpha(215);
  const QPen pen = painter.pen();
  painter.setPen(Qt::NoPen);
  painter.setBrush(ground);
  painter.drawRoundedRect(area, 4, 4);
  painter.setPen(pen);
  painter.setBrush(Qt::NoBrush);
  painter.drawText(area, Qt::AlignCenter, words);
}

void HullView::paint_load_line(QPainter& painter, const Frame& at) const {
  const bool dark = is_dark(palette());
  const Bytes capacity = answer_->ledger->capacity;
  const double y = at.y(capacity);
  const QColor ink = palette().text().color();
  // The mark on a ship's hull: a circle with a line through it.
  painter.setPen(QPen(ink, 2));
  painter.setBrush(Qt::NoBrush);
  painter.drawLine(QPointF(at.plot.left() - 4, y), QPointF(at.plot.right() + 6, y));
  const QPointF centre(at.plot.left() + 16, y);
  painter.drawEllipse(centre, 9, 9);
  painter.drawLine(centre - QPointF(15, 0), centre + QPointF(15, 0));
  QFont bold = font();
  bold.setBold(true);
  painter.setFont(bold);
  const QString words = tr("capacity %1 GiB").arg(gib(capacity)), margin = margin_in_words();
  const double both = painter.fontMetrics().horizontalAdvance(words + margin) + 24.0;
  const bool beside = margin_is_over() || left_of_words + both < at.plot.width();
  label(painter, {at.plot.left() + left_of_words, beside ? y - 23 : y + 4}, Qt::AlignLeft, words);
  if (settled_) {
    const Ledger& ledger = *settled_->ledger;
    painter.setOpacity(answer_->settled && !stale_ ? 1 : faint);
    painter.setPen(QPen(colour_of(ledger.verdict, dark), 1.4, Qt::DashLine));
    const double peak = at.y(ledger.job_device_peak.value);
    painter.drawLine(QPointF(at.plot.left(), peak), QPointF(at.plot.right() + 6, peak));
    painter.setPen(colour_of(ledger.verdict, dark));
    label(painter, {at.plot.right(), (margin_is_over() ? peak : y) - 23}, Qt::AlignRight, margin);
    painter.setOpacity(1);
  }
  painter.setFont(font());
}

bool HullView::margin_is_over() const { return settled_ && settled_->ledger->margin.count < 0; }

QString HullView::margin_in_words() const {
  if (!settled_) return {};
  const Ledger& ledger = *settled_->ledger;
  const QString words =
      margin_is_over()
          ? tr("over by %1 GiB").arg(gib(Bytes(0) - ledger.margin))
          : tr("margin %1 GiB (%2)")
                .arg(gib(ledger.margin), QString::fromStdString(share_in_words(ledger.margin, ledger.capacity)));
  return mark_of(ledger.verdict) + QStringLiteral("  ") + words;
}

const HullView::Part* HullView::part_at(const QPointF& point) const {
  for (const Part& part : parts_)
    if (part.area.contains(point)) return &part;
  return nullptr;
}

void HullView::choose(const Part& part) {
  phase_ = part.phase;
  highlighted_ = part.name;
  update();
  Q_EMIT part_chosen(QString::fromStdString(answer_->phases[part.phase].name), QString::fromStdString(part.name));
}

void HullView::mousePressEvent(QMouseEvent* event) {
  if (!answer_ || !answer_->ledger) return;
  if (const Part* part = part_at(event->position())) {
    choose(*part);
  } else {
    highlighted_.clear();
    update();
    Q_EMIT part_chosen({}, {});
  }
}

void HullView::step_phase(int by) {
  const auto count = static_cast<int>(answer_->phases.size());
  if (count == 0) return;
  phase_ = static_cast<std::size_t>((static_cast<int>(phase_) + by + count) % count);
  for (const Part& part : parts_)
    if (part.phase == phase_ && (part.name == highlighted_ || highlighted_.empty())) return choose(part);
  step_category(1);
}

void HullView::step_category(int by) {
  std::vector<const Part*> of_phase;
  std::size_t now = 0;
  for (const Part& part : parts_) {
    if (part.phase != phase_) continue;
    if (part.name == highlighted_) now = of_phase.size();
    of_phase.push_back(&part);
  }
  if (of_phase.empty()) return;
  const auto count = static_cast<int>(of_phase.size());
  const Part part = *of_phase[static_cast<std::size_t>((static_cast<int>(now) + by + count) % count)];
  choose(part);
}

void HullView::keyPressEvent(QKeyEvent* event) {
  if (!answer_ || !answer_->ledger) return QWidget::keyPressEvent(event);
  switch (event->key()) {
    case Qt::Key_Left: return step_phase(-1);
    case Qt::Key_Right: return step_phase(1);
    case Qt::Key_Up: return step_category(1);
    case Qt::Key_Down: return step_category(-1);
    default: QWidget::keyPressEvent(event);
  }
}

bool HullView::event(QEvent* event) {
  if (event->type() != QEvent::ToolTip) return QWidget::event(event);
  const auto* help = static_cast<QHelpEvent*>(event);
  const Part* part = part_at(help->pos());
  if (part == nullptr) {
    QToolTip::hideText();
    return true;
  }
  const Bytes capacity = answer_->ledger->capacity;
  QToolTip::showText(
      help->globalPos(),
      tr("<b>%1</b>, %2<br>%3 GiB, %4 of the card (%5 B)<br>%6")
          .arg(QString::fromStdString(part->name), QString::fromStdString(answer_->phases[part->phase].name),
               gib(part->bytes), QString::fromStdString(share_in_words(part->bytes, capacity)),
               QString::fromStdString(format_count(part->bytes.count)), term_of(part->name)),
      this, part->area.toAlignedRect());
  return true;
}

}  // namespace plimsoll::gui
