// What the tests of the window share: waiting for answers, and scenarios.
#pragma once

#include <QCoreApplication>
#include <QElapsedTimer>
#include <QEventLoop>
#include <QString>
#include <QTimer>

#include "gui/session/session.hpp"

namespace plimsoll::gui::testing {

/// Handles events until the condition holds.  @return false after 60 s
template <class Condition>
bool wait_until(Condition condition, int seconds = 60) {
  QElapsedTimer timer;
  timer.start();
  QTimer alarm;  // wakes the loop, which otherwise sleeps and leaves the processor to the evaluation
  alarm.start(2);
  while (!condition()) {
    if (timer.elapsed() > qint64{1000} * seconds) return false;
    QCoreApplication::processEvents(QEventLoop::AllEvents | QEventLoop::WaitForMoreEvents);
  }
  return true;
}

inline ScenarioText scenario_text(std::string model, std::string cluster, Settings settings) {
  ScenarioText text;
  text.model = std::move(model);
  text.cluster = std::move(cluster);
  text.settings = std::move(settings);
  return text;
}

inline SessionState small_state() {
  SessionState state;
  state.scenario = scenario_text("llama-3.2-1b", "8xh100", {{"zero.stage", "3"}});
  return state;
}

/// The whole answer to the text as it stands has arrived.
inline bool settles(const Session& session) {
  return wait_until([&] { return !session.is_stale() && session.good()->remedy_known; });
}

/// The answer with errors to the text as it stands has arrived.
inline bool fails(const Session& session) {
  return wait_until([&] { return session.is_stale() && session.newest() && session.newest()->has_errors(); });
}

}  // namespace plimsoll::gui::testing
