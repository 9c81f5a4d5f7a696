// What does a measured step say beside the predicted one?  An allocator trace, a memory snapshot, a profiler's trace, or the log
// of a run of plimsoll-run, read and compared on a thread.
#pragma once

#include <QObject>
#include <memory>
#include <thread>

#include "gui/session/scenario_text.hpp"
#include "planner/cli/kineto_comparison.hpp"
#include "planner/cli/run_log_comparison.hpp"
#include "planner/cli/trace_comparison.hpp"

namespace plimsoll::gui {

/// Figures of a step, predicted and run, and the steps themselves.
struct RunComparison {
  std::vector<RunFigure> figures;
  RunLog log;
};

struct MeasuredRecord {
  std::string file;
  Diagnostics diagnostics;                      ///< of the file
  std::shared_ptr<TraceComparison> comparison;  ///< null where it could not be read
  std::shared_ptr<KinetoComparison> profile;    ///< of a profiler's trace
  std::shared_ptr<RunComparison> run;           ///< of a run's log
  std::vector<Bytes> predicted, measured;       ///< live bytes before the step and after each event
};

/// Compares as `plimsoll compare` does: rank 0, tensors of at least 1 MiB.
MeasuredRecord compare_with_file(const ScenarioText& text, const std::string& file);

/// True if the file's beginning is that of a record that compare_with_file reads; false where it cannot be read.
bool is_record(const QString& path);

class MeasuredJob : public QObject {
  Q_OBJECT
 public:
  using QObject::QObject;
  /// Of several only the last is heard of.
  void start(const ScenarioText& text, const QString& file);

 Q_SIGNALS:
  void finished(std::shared_ptr<const MeasuredRecord> record);

 private:
  std::uint64_t run_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace plimsoll::gui
