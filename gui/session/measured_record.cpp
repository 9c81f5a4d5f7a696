// Reading and comparing (gui/session/measured_record.hpp).
#include "gui/session/measured_record.hpp"

#include <QFile>
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

void append(Diagnostics& all, const Diagnostics& more) { all.insert(all.end(), more.begin(), more.end()); }

/// Class by class, beside the simulated step of ranks in step.
void enter_profile(MeasuredRecord& measured, const std::shared_ptr<const SourceFile>& file, const Inputs& inputs) {
  const auto trace = read_profiler_trace(file);
  append(measured.diagnostics, trace.diagnostics());
  if (!trace) return;
  const Evaluation evaluation = build(inputs.scenario(), {RankChoice::Kind::one, 0});
  const auto calibration = inputs.prices();
  append(measured.diagnostics, calibration.diagnostics());
  if (!calibration) return;
  SimulateOptions in_step;
  in_step.host_skew = 0;
  const Timeline timeline = simulate_step(evaluation.program, evaluation.scenario.cluster, *calibration, in_step);
  measured.profile =
      std::make_shared<KinetoComparison>(KinetoComparison{use_of(timeline, evaluation.rank_program()), use_of(*trace)});
}

void enter_run(MeasuredRecord& measured, const std::shared_ptr<const SourceFile>& file, const Inputs& inputs) {
  const auto log = read_run_log(file);
  append(measured.diagnostics, log.diagnostics());
  if (!log) return;
  const Evaluation evaluation = build(inputs.scenario(), {RankChoice::Kind::one, 0});
  const auto calibration = inputs.prices();
  append(measured.diagnostics, calibration.diagnostics());
  if (!calibration) return;
  const auto figures = compare_run(evaluation, *log, *calibration);
  append(measured.diagnostics, figures.diagnostics());
  if (figures) measured.run = std::make_shared<RunComparison>(RunComparison{*figures, *log});
}

void enter_comparison(MeasuredRecord& measured, const ScenarioText& text, const std::string& file) {
  const auto source = load_unpacked(file);
  measured.diagnostics = source.diagnostics();
  if (!source) return;
  const Inputs inputs(options_of(text));
  if (has_errors(inputs.diagnostics())) return append(measured.diagnostics, inputs.diagnostics());
  if (is_run_log(**source)) return enter_run(measured, *source, inputs);
  if ((*source)->text.find("\"traceEvents\"") != std::string::npos) return enter_profile(measured, *source, inputs);
  const auto record = read_record(*source);
  append(measured.diagnostics, record.diagnostics());
  if (!record) return;
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
    measured.diagnostics.push_back(make_error("machine", error.what()));
  }
  return measured;
}

bool is_record(const QString& path) {
  constexpr qint64 beginning = 1 << 20;
  QFile file(path);
  if (!file.open(QIODevice::ReadOnly)) return false;
  SourceFile start{path.toStdString(), file.read(beginning).toStdString()};
  if (start.text.starts_with("\x1f\x8b")) return true;  // of what the window reads, only records come compressed
  if (is_run_log(start)) return true;
  for (const char* key : {"\"traceEvents\"", "\"device_traces\"", "\"live_before\""}) {
    if (start.text.find(key) != std::string::npos) return true;
  }
  return false;
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
