// The three threads of an evaluator (gui/session/evaluator.hpp).
#include "gui/session/evaluator.hpp"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "planner/base/give_up.hpp"

namespace plimsoll::gui {
namespace {

/// As long as edits follow each other faster than this, nothing settles: the first answers have the machine to themselves.
constexpr auto pause_before_settling = std::chrono::milliseconds(30);

/// Step programs are large: answers are remembered up to so many ops in all, about 200 MB.
constexpr std::size_t most_remembered_ops = 1'000'000;
constexpr std::size_t bytes_of_op = 200;

/// A step program is some ten thousand small pieces and a few large ones, made and dropped at every edit: memory that has been
/// given back to the system and is asked for again costs more than the program itself.  Each thread keeps an arena of its own:
/// two that build at once would wait for each other at every piece, and take half as long again.
void keep_freed_memory() {
  static const bool done = [] {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_TOP_PAD, 16 << 20);
    return true;
  }();
  static_cast<void>(done);
}

/// An answer without its program takes as much as so many ops.
constexpr std::size_t ops_beside = 2'000;

/// Of the likely questions so many get answers with their programs, ready to settle; the rest the figures alone.
constexpr std::size_t kept_programs = 2;

std::size_t ops_of(const AnswerPtr& answer) {
  const Evaluation* evaluation = answer->evaluation ? answer->evaluation.get() : answer->begun.get();
  return ops_beside + (evaluation != nullptr ? evaluation->rank_program().ops.size() : 0);
}

/// Without edits for so long a thread readies itself for the next one.
constexpr auto idle = std::chrono::milliseconds(100);

/// Takes memory for a program of so many ops and frees it, so that this thread's arena has it when it is needed: the system
/// gives a page when it is first written, which for the pages of a large program takes longer than to build it.
/// @param wanted_elsewhere ends it
template <class Condition>
void have_at_hand(std::size_t ops, Condition wanted_elsewhere) {
  constexpr std::size_t piece = 4 << 20, page = 4096;
  std::vector<std::unique_ptr<char[]>> pieces;
  for (std::size_t taken = 0; taken < ops * bytes_of_op && !wanted_elsewhere(); taken += piece) {
    pieces.push_back(std::make_unique_for_overwrite<char[]>(piece));
    volatile char* bytes = pieces.back().get();
    for (std::size_t at = 0; at < piece; at += page) bytes[at] = 0;
  }
}

/// Waits for the condition, under the lock, with memory at hand for what comes then.
/// @return false where stop is requested
template <class Condition>
bool wait_with_memory(std::condition_variable_any& changed, std::unique_lock<std::mutex>& lock,
                      const std::stop_token& stop, std::size_t ops, Condition condition) {
  if (changed.wait_for(lock, stop, idle, condition)) return true;
  lock.unlock();
  have_at_hand(ops, [&] {
    const std::lock_guard look(*lock.mutex());
    return condition() || stop.stop_requested();
  });
  lock.lock();
  return changed.wait(lock, stop, condition);
}

}  // namespace

Evaluator::Evaluator(std::function<void(AnswerPtr)> deliver)
    : deliver_((keep_freed_memory(), std::move(deliver))),
      quick_([this](const std::stop_token& stop) { answer_newest(stop); }),
      slow_([this](const std::stop_token& stop) { settle_newest(stop); }),
      ahead_([this](const std::stop_token& stop) { look_ahead(stop); }) {}

Evaluator::~Evaluator() {
  const std::lock_guard lock(mutex_);
  newer_.request_stop();
  preparing_.request_stop();
  likely_.clear();
}

std::uint64_t Evaluator::ask(ScenarioText text) {
  const std::lock_guard lock(mutex_);
  ++counts_.asked;
  if (question_) ++counts_.skipped;
  question_ = Question{std::move(text), ++newest_};
  likely_.clear();
  newer_.request_stop();
  newer_ = std::stop_source();
  preparing_.request_stop();  // also where just that is asked: the first answer has memory at hand, and is there sooner
  asked_.notify_all();        // the slow thread waits for the next edit too
  return newest_;
}

void Evaluator::prepare(std::vector<ScenarioText> likely) {
  const std::lock_guard lock(mutex_);
  likely_ = {likely.rbegin(), likely.rend()};
  programs_to_keep_ = kept_programs;
  expected_.notify_one();
}

EvaluatorCounts Evaluator::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Evaluator::forget() {
  const std::lock_guard lock(mutex_);
  memory_.clear();
}

bool Evaluator::deliver(const AnswerPtr& answer) {
  const std::lock_guard order(delivery_);
  {
    const std::lock_guard lock(mutex_);
    if (answer->generation != newest_) {
      ++counts_.stale;
      return false;
    }
    ++counts_.delivered;
  }
  delivered_.push_back(answer);
  deliver_(answer);
  std::erase_if(delivered_, [](const AnswerPtr& old) { return old.use_count() == 1; });
  return true;
}

void Evaluator::answer_newest(const std::stop_token& stop) {
  std::size_t ops = 0;  // of the last program
  while (true) {
    Question question;
    {
      std::unique_lock lock(mutex_);
      if (!wait_with_memory(asked_, lock, stop, ops, [&] { return question_.has_value(); })) return;
      question = std::move(*question_);
      question_.reset();
    }
    AnswerPtr answer = remembered(question.text);
    if (answer) {
      auto again = std::make_shared<Answer>(*answer);
      again->generation = question.generation;
      answer = std::move(again);
    } else {
      answer = answer_quickly(question.text, question.generation);
    }
    if (answer->begun) ops = ops_of(answer);
    if (!deliver(answer)) {
      if (!answer->has_errors()) remember(without_program(*answer));  // a drag passes here again
      continue;
    }
    if (!answer->inputs) continue;
    AnswerPtr overtaken;
    {
      const std::lock_guard lock(mutex_);
      overtaken = std::exchange(to_settle_, std::move(answer));
      answered_.notify_one();
    }
    if (overtaken && !overtaken->has_errors()) remember(overtaken);  // a slider may come back to it
  }
}

void Evaluator::settle_newest(const std::stop_token& stop) {
  while (true) {
    AnswerPtr answer;
    {
      std::unique_lock lock(mutex_);
      if (!answered_.wait(lock, stop, [&] { return to_settle_ != nullptr; })) return;
      // Another edit within the pause starts it anew.
      std::uint64_t seen = 0;
      while (seen != newest_ && !stop.stop_requested()) {
        seen = newest_;
        asked_.wait_for(lock, stop, pause_before_settling, [&] { return newest_ != seen; });
      }
      answer = std::exchange(to_settle_, nullptr);
    }
    if (answer) settle_in_steps(std::move(answer));
  }
}

void Evaluator::look_ahead(const std::stop_token& stop) {
  std::size_t ops = 0;  // of the last program
  while (true) {
    ScenarioText text;
    bool with_program = false;
    std::stop_token overtaken;
    {
      std::unique_lock lock(mutex_);
      if (!wait_with_memory(expected_, lock, stop, ops, [&] { return !likely_.empty(); })) return;
      text = std::move(likely_.back());
      likely_.pop_back();
      with_program = programs_to_keep_ > 0;
      if (with_program) --programs_to_keep_;
      if (is_known(text)) continue;
      preparing_ = std::stop_source();
      overtaken = preparing_.get_token();
    }
    AnswerPtr answer;
    try {
      const Wanted wanted(overtaken);
      answer = answer_quickly(text, 0);
    } catch (const GivenUp&) {
      const std::lock_guard lock(mutex_);
      ++counts_.given_up;
      continue;
    }
    if (answer->begun) ops = ops_of(answer);
    if (!answer->has_errors()) remember(with_program ? answer : without_program(*answer));
  }
}

void Evaluator::settle_in_steps(AnswerPtr answer) {
  std::stop_token overtaken;
  {
    const std::lock_guard lock(mutex_);
    if (answer->generation != newest_) {
      ++counts_.stale;
      return;
    }
    overtaken = newer_.get_token();
  }
  try {
    settle_until(overtaken, answer);
  } catch (const GivenUp&) {
    if (!answer->has_errors()) remember(without_program(*answer));
    const std::lock_guard lock(mutex_);
    ++counts_.stale;
    ++counts_.given_up;
  }
}

/// @param answer becomes what the steps have made of it
void Evaluator::settle_until(const std::stop_token& overtaken, AnswerPtr& answer) {
  bool newest = true;
  const auto next = [&](AnswerPtr further) {
    answer = std::move(further);
    newest = deliver(answer);
    return newest;
  };
  if (!answer->settled) {
    settle_and_simulate(*AnswerPtr(answer), overtaken, next);
  } else if (!answer->step) {
    const Wanted wanted(overtaken);
    next(simulate(*answer));
  }
  if (!newest || !answer->evaluation) return;
  remember(answer);
  if (answer->remedy_known) return;
  if (next(find_remedy(*answer, overtaken))) remember(answer);
}

void Evaluator::remember(const AnswerPtr& answer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(memory_, [&](const AnswerPtr& known) { return known->text == answer->text; });
  memory_.push_front(answer);
  std::size_t ops = 0;
  const auto last = std::find_if(memory_.begin(), memory_.end(), [&](const AnswerPtr& known) {
    ops += ops_of(known);
    return ops > most_remembered_ops;
  });
  memory_.erase(last, memory_.end());
}

bool Evaluator::is_known(const ScenarioText& text) const {
  return std::any_of(memory_.begin(), memory_.end(), [&](const AnswerPtr& known) { return known->text == text; });
}

AnswerPtr Evaluator::remembered(const ScenarioText& text) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(memory_.begin(), memory_.end(), [&](const AnswerPtr& known) { return known->text == text; });
  if (found == memory_.end()) return nullptr;
  ++counts_.remembered;
  AnswerPtr answer = *found;
  memory_.erase(found);
  if (!answer->begun) memory_.push_front(answer);  // else its program is given up when it settles
  return answer;
}

}  // namespace plimsoll::gui
