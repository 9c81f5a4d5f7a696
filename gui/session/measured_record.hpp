// What does a measured step say beside the predicted one?  An allocator trace, a memory snapshot, or a profiler's trace, read
// and compared on a thread.
#pragma once

#include <QObject>
#include <memory>
#include <thread>

#include "gui/session/scenario_text.hpp"
#include "planner/cli/kineto_comparison.hpp"
#include "planner/cli/trace_comparison.hpp"

namespace plimsoll::gui {

struct MeasuredRecord {
  std::string file;
  Diagnostics diagnostics;                      ///< of the file
  std::shared_ptr<TraceComparison> comparison;  ///< null where it could not be read
  std::shared_ptr<KinetoComparison> profile;    ///< of a profiler's trace
  std::vector<Bytes> predicted, measured;       ///< live bytes before the step and after each event
};

/// Compares as `plimsoll compare` does: rank 0, tensors of at least 1 MiB.
MeasuredRecord compare_with_file(const ScenarioText& text, const std::string& file);

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
