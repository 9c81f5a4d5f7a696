// Reading and comparing (gui/session/measured_record.hpp).
#include "gui/session/measured_record.hpp"

#include <QMetaObject>

#include "planner/base/machine_error.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/record_curve.hpp"

namespace plimsoll::gui {
namespace {

constexpr Bytes threshold{1 << 20};

/// Both forms are JSON objects; a snapshot has "device_traces".
Result<AllocatorRecord> read_record(const std::shared_ptr<const SourceFile>& file) {
  return file->text.find("\"device_traces\"") != std::string::npos ? read_snapshot(file) : read_allocator_trace(file);
}

void enter_comparison(MeasuredRecord& measured, const ScenarioText& text, const std::string& file) {
  const auto source = load_unpacked(file);
  measured.diagnostics = source.diagnostics();
  if (!source) return;
  const auto record = read_record(*source);
  measured.diagnostics.insert(measured.diagnostics.end(), record.diagnostics().begin(), record.diagnostics().end());
  if (!record) return;
  const Inputs inputs(options_of(text));
  if (has_errors(inputs.diagnostics())) return;
  const Evaluation evaluation = build(inputs.scenario(), {RankChoice::Kind::one, 0});
  const ProgramRecord mine = record_of(evaluation.rank_program());
  measured.comparison = std::make_shared<TraceComparison>(compare(evaluation.rank_program(), mine, *record, threshold));
  measured.predicted = live_curve(mine.record);
  measured.measured = live_curve(*record);
}

}  // namespace

MeasuredRecord compare_with_file(const ScenarioText& text, const std::string& file) {
  MeasuredRecord measured;
  measured.file = file;
  try {
    enter_comparison(measured, text, file);
  } catch (const MachineError& error) {
    Diagnostic diagnostic;
    diagnostic.code = "machine";
    diagnostic.message = error.what();
    measured.diagnostics.push_back(std::move(diagnostic));
  }
  return measured;
}

void MeasuredJob::start(const ScenarioText& text, const QString& file) {
  threads_.emplace_back([this, run = ++run_, text, path = file.toStdString()] {
    auto record = std::make_shared<const MeasuredRecord>(compare_with_file(text, path));
    const auto deliver = [this, run, record] {
      if (run == run_) Q_EMIT finished(record);
    };
    QMetaObject::invokeMethod(this, deliver, Qt::QueuedConnection);
  });
}

}  // namespace plimsoll::gui
