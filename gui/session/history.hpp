// What can be undone and redone?  Every scenario that was asked, in order; edits of one key in quick succession, as a slider
// makes them, are one step.
#pragma once

#include <string>
#include <vector>

#include "gui/session/scenario_text.hpp"

namespace plimsoll::gui {

class History {
 public:
  explicit History(ScenarioText first) : steps_{{std::move(first), {}}} {}

  const ScenarioText& now() const { return steps_[at_].text; }
  bool can_undo() const { return at_ > 0; }
  bool can_redo() const { return at_ + 1 < steps_.size(); }
  const ScenarioText& undo() {
    if (can_undo()) --at_;
    return now();
  }
  const ScenarioText& redo() {
    if (can_redo()) ++at_;
    return now();
  }

  /// @param key of the edit; an edit of the same key is merged into the last one where `merge` says so
  void edit(ScenarioText text, const std::string& key, bool merge) {
    steps_.resize(at_ + 1);
    if (merge && at_ > 0 && !key.empty() && steps_[at_].key == key) {
      steps_[at_].text = std::move(text);
      return;
    }
    steps_.push_back({std::move(text), key});
    constexpr std::size_t most = 1000;
    if (steps_.size() > most) steps_.erase(steps_.begin());
    at_ = steps_.size() - 1;
  }

 private:
  struct Step {
    ScenarioText text;
    std::string key;
  };
  std::vector<Step> steps_;
  std::size_t at_ = 0;
};

}  // namespace plimsoll::gui
