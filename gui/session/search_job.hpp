// Who searches for the best plan while the window stays alive?  A thread, with progress and a way to stop it.
#pragma once

#include <QObject>
#include <memory>
#include <thread>

#include "gui/session/scenario_text.hpp"
#include "planner/cli/recommendation.hpp"
#include "planner/spec/read_calibration.hpp"

namespace plimsoll::gui {

struct SearchQuestion {
  ScenarioText text;
  std::vector<std::string> open;  ///< keys that the search may choose although the scenario sets them
  std::int64_t global_batch = 0;  ///< sequences of an optimizer step; 0: most tokens/s
  double budget_s = 5;
  bool accept_tight = false;
};

/// The settings of a scenario that a search may choose anew: all but what says how the run is to be.
std::vector<std::string> keys_to_search(const ScenarioText& text);

class SearchJob : public QObject {
  Q_OBJECT
 public:
  using QObject::QObject;
  ~SearchJob() override;

  bool is_running() const { return running_; }
  /// Of the last search; null before.
  const std::shared_ptr<const Recommendation>& result() const { return result_; }
  /// Whose result it is.
  const SearchQuestion& question() const { return question_; }

  /// Asks the running one to stop; what it still finds is not heard.
  void start(SearchQuestion question);
  /// The best that has been found so far is the result, soon.
  void cancel();

 Q_SIGNALS:
  void progressed(const QString& words);
  /// result() is there, or `error` says why not.
  void finished(const QString& error);

 private:
  void take(const SearchQuestion& asked, const std::shared_ptr<const Recommendation>& result, const QString& error);

  SearchQuestion question_;
  std::shared_ptr<const Recommendation> result_;
  bool running_ = false;
  std::uint64_t run_ = 0;
  std::jthread thread_;
};

}  // namespace plimsoll::gui
