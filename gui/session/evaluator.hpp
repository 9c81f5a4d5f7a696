// Who evaluates while the user goes on editing?  Three threads: one gives every newest edit its first answer, the second lets
// the newest answer settle once edits pause, the third looks ahead at what is likely to be asked next.  An edit carries a
// generation number; whatever is not of the newest generation when it is done is stale and dropped, and counted.  What
// a newer edit has made needless ends where it is, so that the first answer has the machine to itself.  No Qt here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "gui/session/answer.hpp"

namespace plimsoll::gui {

struct EvaluatorCounts {
  std::uint64_t asked = 0;       ///< edits
  std::uint64_t skipped = 0;     ///< overtaken by a newer edit before anything was computed
  std::uint64_t stale = 0;       ///< answers dropped since a newer edit came while they were computed
  std::uint64_t given_up = 0;    ///< computations ended on the way: of those answers, and of what was looked at ahead
  std::uint64_t delivered = 0;   ///< answers of any step
  std::uint64_t remembered = 0;  ///< edits whose answer, or its first step, was known already
};

class Evaluator {
 public:
  /// @param deliver is called on the evaluator's threads, one call at a time, for answers that are not stale
  explicit Evaluator(std::function<void(AnswerPtr)> deliver);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// @return the generation of this edit
  std::uint64_t ask(ScenarioText text);
  /// Makes the first answers to what is likely to be asked next, the likeliest first, until the next edit.
  void prepare(std::vector<ScenarioText> likely);
  EvaluatorCounts counts() const;
  /// Forgets what is remembered, since files may have changed.
  void forget();

 private:
  struct Question {
    ScenarioText text;
    std::uint64_t generation = 0;
  };
  void answer_newest(const std::stop_token& stop);
  void settle_newest(const std::stop_token& stop);
  void look_ahead(const std::stop_token& stop);
  void settle_in_steps(AnswerPtr answer);
  void settle_until(const std::stop_token& overtaken, AnswerPtr& answer);
  bool deliver(const AnswerPtr& answer);
  void remember(const AnswerPtr& answer);
  AnswerPtr remembered(const ScenarioText& text);
  bool is_known(const ScenarioText& text) const;

  std::function<void(AnswerPtr)> deliver_;
  mutable std::mutex mutex_;
  std::condition_variable_any asked_, answered_, expected_;
  std::optional<Question> question_;  ///< not begun
  AnswerPtr to_settle_;               ///< not begun
  std::vector<ScenarioText> likely_;  ///< not begun, the next one last
  std::size_t programs_to_keep_ = 0;  ///< for so many of them
  std::stop_source preparing_;        ///< stopped by the next edit
  std::uint64_t newest_ = 0;
  std::stop_source newer_;  ///< stopped when a newer edit comes
  EvaluatorCounts counts_;
  std::deque<AnswerPtr> memory_;  ///< settled or prepared answers, newest first
  std::mutex delivery_;
  std::vector<AnswerPtr> delivered_;   ///< so that large programs end on these threads, not on the window's
  std::jthread quick_, slow_, ahead_;  ///< last: they stop before the rest goes
};

}  // namespace plimsoll::gui
