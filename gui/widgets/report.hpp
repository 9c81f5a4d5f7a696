// What can be taken out of the window?  Pictures of a view, and a report of the whole answer as PDF.
#pragma once

#include <QString>

#include "gui/session/answer.hpp"

class QWidget;

namespace plimsoll::gui {

/// As its ending says: .png, .svg or .pdf.  @return why it failed; "" if it did not
QString save_picture(QWidget& view, const QString& path);

/// Verdict, ledger with its hull, volumes, time, assumptions, and the command that answers the same.
/// @param answer settled; its step and remedy where they are known
QString save_report(const AnswerPtr& answer, const QString& path);

/// The report's text as HTML, without the pictures.
QString report_html(const Answer& answer);

/// The plan of an answer as a file that runs.  @return why it failed; "" if it did not
QString save_plan(const Answer& answer, const QString& path);
QString save_ds_config(const Answer& answer, const QString& path);

}  // namespace plimsoll::gui
