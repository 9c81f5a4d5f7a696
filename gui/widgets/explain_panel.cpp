// The panel that explains (gui/widgets/explain_panel.hpp).
#include "gui/widgets/explain_panel.hpp"

#include <QLabel>
#include <QVBoxLayout>

#include "gui/models/tables.hpp"
#include "gui/widgets/table_view.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/in_words.hpp"

namespace plimsoll::gui {
namespace {

const QString category_prefix = QStringLiteral("gpu.categories_at_peak.");

}  // namespace

ExplainPanel::ExplainPanel(QWidget* parent)
    : QWidget(parent), words_(new QLabel(this)), table_(new TableView(tr("Terms of the chosen number"), this)) {
  words_->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
  words_->setWordWrap(true);
  words_->setContentsMargins(8, 4, 8, 2);
  auto* layout = new QVBoxLayout(this);
  layout->setContentsMargins(0, 0, 0, 0);
  layout->setSpacing(2);
  layout->addWidget(words_);
  layout->addWidget(table_, 1);
}

void ExplainPanel::show_answer(AnswerPtr answer) {
  answer_ = std::move(answer);
  refresh();
}

void ExplainPanel::explain(const QString& number) {
  if (number == number_) return;
  number_ = number;
  refresh();
}

void ExplainPanel::refresh() {
  if (!answer_ || !answer_->ledger) return;
  const bool category = number_.startsWith(category_prefix);
  if (number_.isEmpty() || !answer_->evaluation) {
    const QString chosen = category ? number_.mid(category_prefix.size()) : QString();
    words_->setText(chosen.isEmpty() ? tr("<b>Alive at the peak</b> of a steady step, in %1")
                                           .arg(QString::fromStdString(answer_->ledger->peak_phase))
                                     : tr("<b>%1</b>, alive at the peak of a steady step").arg(chosen));
    table_->show_table(live_table(*answer_, chosen.toStdString()));
    return;
  }
  const auto number = explain_number(*answer_->evaluation, number_.toStdString());
  if (!number) {
    words_->setText(tr("<b>%1</b> has no terms of its own").arg(number_));
    return;
  }
  const QString value = number->unit == "B" ? tr("%1 GiB = %2 B")
                                                  .arg(QString::fromStdString(gibibytes(Bytes(number->value))),
                                                       QString::fromStdString(format_count(number->value)))
                                            : QString::fromStdString(format_count(number->value) + " " + number->unit);
  const Evidence evidence = answer_->evaluation->context.allocated_evidence;
  words_->setText(tr("<b>%1</b> = %2 &nbsp; %3 &nbsp; <i>%4</i>")
                      .arg(number_, value, QString::fromStdString(number->formula).toHtmlEscaped(),
                           number_.startsWith("parameters") ? QString() : QString::fromUtf8(name_of(evidence))));
  table_->show_table(explained_table(*number));
}

}  // namespace plimsoll::gui
