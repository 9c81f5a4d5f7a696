// Pictures and the report (gui/widgets/report.hpp).
#include "gui/widgets/report.hpp"

#include <QDate>
#include <QImage>
#include <QPainter>
#include <QPdfWriter>
#include <QSaveFile>
#include <QSvgGenerator>
#include <QTextDocument>
#include <QWidget>

#include "gui/models/tables.hpp"
#include "gui/widgets/hull_view.hpp"
#include "gui/widgets/timeline_view.hpp"
#include "gui/widgets/topology_view.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/spec/write_plan.hpp"

namespace plimsoll::gui {
namespace {

QString not_written(const QString& path) { return QObject::tr("cannot write %1").arg(path); }

QString save_text(const std::string& text, const QString& path) {
  QSaveFile file(path);
  if (!file.open(QIODevice::WriteOnly) || file.write(QByteArray::fromStdString(text)) < 0 || !file.commit())
    return QObject::tr("cannot write %1: %2").arg(path, file.errorString());
  return {};
}

QString escaped(const std::string& text) { return QString::fromStdString(text).toHtmlEscaped(); }

QString html_of(const TableData& table, std::size_t most_rows = 60) {
  QString html = QStringLiteral("<table cellspacing='0' cellpadding='3' width='100%'><tr>");
  const auto cell = [&](const QString& text, bool right, bool strong) {
    return QStringLiteral("<td align='%1'>%2</td>")
        .arg(right ? "right" : "left", strong ? "<b>" + text + "</b>" : text);
  };
  for (const TableColumn& column : table.columns) html += cell(escaped(column.title), column.right, true);
  html += "</tr>";
  for (std::size_t r = 0; r < std::min(most_rows, table.rows.size()); ++r) {
    html += r % 2 == 0 ? "<tr bgcolor='#f3f4f6'>" : "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      html += cell(escaped(table.rows[r].cells[c].text), table.columns[c].right, table.rows[r].strong);
    html += "</tr>";
  }
  html += "</table>";
  if (table.rows.size() > most_rows) html += QObject::tr("<p>… %1 more rows</p>").arg(table.rows.size() - most_rows);
  return html;
}

QString heading(const QString& words) { return QStringLiteral("<h3>%1</h3>").arg(words); }

/// A view as it would be on paper: light, whatever the window is.
template <class View, class Show>
QImage picture_of(const QSize& size, Show show) {
  View view;
  QPalette light;
  light.setColor(QPalette::Base, Qt::white);
  light.setColor(QPalette::Window, QColor("#f3f4f6"));
  light.setColor(QPalette::Text, Qt::black);
  light.setColor(QPalette::WindowText, Qt::black);
  light.setColor(QPalette::Mid, QColor("#a0a5ab"));
  view.setPalette(light);
  view.resize(size);
  show(view);
  constexpr int sharpness = 2;
  QImage image(size * sharpness, QImage::Format_RGB32);
  image.setDevicePixelRatio(sharpness);
  image.fill(Qt::white);
  view.render(&image);
  return image;
}

}  // namespace

QString save_picture(QWidget& view, const QString& path) {
  if (path.endsWith(".svg", Qt::CaseInsensitive)) {
    QSvgGenerator generator;
    generator.setFileName(path);
    generator.setSize(view.size());
    generator.setViewBox(view.rect());
    generator.setTitle(QStringLiteral("Plimsoll"));
    QPainter painter;
    if (!painter.begin(&generator)) return not_written(path);
    view.render(&painter);
    return {};
  }
  if (path.endsWith(".pdf", Qt::CaseInsensitive)) {
    QPdfWriter writer(path);
    writer.setPageSize(QPageSize(QSizeF(view.size()) * 0.75, QPageSize::Point));
    writer.setPageMargins({});
    QPainter painter;
    if (!painter.begin(&writer)) return not_written(path);
    painter.scale(writer.width() / static_cast<double>(view.width()),
                  writer.height() / static_cast<double>(view.height()));
    view.render(&painter);
    return {};
  }
  return view.grab().save(path, "PNG") ? QString() : not_written(path);
}

QString report_html(const Answer& answer) {
  const Ledger& ledger = *answer.ledger;
  QString html = QStringLiteral("<h2>%1</h2><p><b>%2</b>: %3</p>")
                     .arg(escaped(scenario_in_words(*answer.scenario)), QString::fromUtf8(name_of(ledger.verdict)),
                          escaped(room_in_words(ledger)));
  const std::string reason = reason_in_words(answer);
  if (!reason.empty()) html += QStringLiteral("<p>%1</p>").arg(escaped(reason));
  html += QStringLiteral("<p>The same from the command line:<br><code>%1</code></p>")
              .arg(escaped(command_line_of(answer.text, "ledger")));
  html += heading(QObject::tr("Memory of one GPU")) + QStringLiteral("<p><img src='hull' width='640'></p>");
  html += html_of(ledger_table(answer)) + "<p></p>" + html_of(figures_table(answer)) + "<p></p>" +
          html_of(phases_table(answer));
  html += heading(QObject::tr("Largest tensors at the peak")) + html_of(live_table(answer, {}), 24);
  html += heading(QObject::tr("Host memory")) + html_of(host_table(answer));
  html += heading(QObject::tr("Communication")) + QStringLiteral("<p><img src='topology' width='640'></p>") +
          html_of(loads_table(answer)) + "<p></p>" + html_of(volume_table(answer));
  if (answer.step) {
    html +=
        heading(QObject::tr("Time")) +
        QStringLiteral("<p>%1</p><p><img src='timeline' width='640'></p>").arg(escaped(step_in_words(*answer.step)));
    html += html_of(exposed_table(*answer.step)) + "<p></p>" + html_of(lanes_table(*answer.step));
  }
  html += heading(QObject::tr("Rests on")) + html_of(assumptions_table(answer));
  if (!answer.diagnostics.empty())
    html += heading(QObject::tr("Problems")) + html_of(problems_table(answer.diagnostics));
  html += QStringLiteral("<p>digest %1</p>").arg(escaped(answer.evaluation->program.digest));
  return html;
}

QString save_report(const AnswerPtr& answer, const QString& path) {
  if (!answer || !answer->evaluation) return QObject::tr("there is no answer to report yet");
  QPdfWriter writer(path);
  writer.setPageSize(QPageSize(QPageSize::A4));
  writer.setPageMargins(
      {});  // the document has its own, of 2 cm: 170 mm are left, and pictures are 640 px = 169.3 mm wide
  writer.setResolution(144);
  writer.setTitle(QStringLiteral("Plimsoll: %1").arg(QString::fromStdString(scenario_in_words(*answer->scenario))));
  QTextDocument document;
  document.addResource(QTextDocument::ImageResource, QUrl("hull"),
                       picture_of<HullView>({900, 420}, [&](HullView& view) { view.show_answer(answer, false); }));
  document.addResource(
      QTextDocument::ImageResource, QUrl("topology"),
      picture_of<TopologyView>({900, 380}, [&](TopologyView& view) { view.show_answer(answer, false); }));
  if (answer->step)
    document.addResource(QTextDocument::ImageResource, QUrl("timeline"),
                         picture_of<TimelineView>({900, 400}, [&](TimelineView& view) {
                           view.show_answer(answer);
                           view.fit();
                         }));
  QFont font = document.defaultFont();
  font.setPointSizeF(8.5);
  document.setDefaultFont(font);
  document.setHtml(report_html(*answer));
  QSaveFile probe(path);  // QPdfWriter does not say that it cannot write
  if (!probe.open(QIODevice::WriteOnly)) return QObject::tr("cannot write %1: %2").arg(path, probe.errorString());
  probe.cancelWriting();
  document.print(&writer);
  return {};
}

QString save_plan(const Answer& answer, const QString& path) {
  return save_text(write_plan_json(answer.scenario->plan), path);
}

QString save_ds_config(const Answer& answer, const QString& path) {
  if (answer.scenario->plan.engine != Engine::deepspeed)
    return QObject::tr("only the engine deepspeed has a ds_config.json");
  return save_text(write_ds_config(answer.scenario->plan, &answer.scenario->model), path);
}

}  // namespace plimsoll::gui
