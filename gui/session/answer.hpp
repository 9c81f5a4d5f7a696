// What does the program answer for a scenario?  One immutable value, made in steps from the quickest figures to the slowest, so
// that a window can show the first while the others follow: the step program with live tensors and volumes; the ledger with
// the allocator's replay; the simulated step; the smallest change that fits.  Each step is what the command line evaluates.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "gui/session/controls.hpp"
#include "gui/session/scenario_text.hpp"
#include "planner/account/phase_categories.hpp"
#include "planner/account/volume.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/remedy.hpp"
#include "planner/cli/simulated.hpp"
#include "planner/cli/volume_sums.hpp"
#include "simulator/chrome_trace.hpp"

namespace plimsoll::gui {

struct Answer {
  std::uint64_t generation = 0;  ///< of the edit that it answers
  ScenarioText text;
  std::shared_ptr<const Inputs> inputs;  ///< null where a file could not be read
  Diagnostics diagnostics;               ///< of all files; of the machine (code "machine") where one could not be read
  ControlStates controls;

  /// Null where the input has errors.
  std::shared_ptr<const Scenario> scenario;
  /// Null where the input has errors.  Until `settled` it holds live tensors alone: no reserved or device figure, no host, no
  /// verdict; and its rank need not be the hottest.
  std::shared_ptr<const Ledger> ledger;
  std::vector<PhaseCategories> phases;
  std::vector<LiveTensors> live;  ///< at the peak, largest sum first
  CommVolume volume;
  std::vector<TierLoad> loads;

  bool settled = false;  ///< the ledger is whole, and `controls` say what is legal
  /// Once settled: as `plimsoll ledger` has it; null where the input has errors.
  std::shared_ptr<const Evaluation> evaluation;

  std::shared_ptr<const SimulatedStep> step;  ///< null until it is simulated
  std::vector<LiveBytes> live_bytes;          ///< over the simulated step, of the rank that it is told of

  bool remedy_known = false;
  bool all_changes_tried = true;  ///< see SmallestChange
  std::optional<Remedy> remedy;   ///< where it does not fit, once known

  bool has_errors() const { return !ledger; }

  /// Belongs to the steps: the program on its way from the first to the second; null where it was not kept, and is built anew.
  /// (Its text lives where it is: no copies.)
  mutable std::shared_ptr<Evaluation> begun;
};

using AnswerPtr = std::shared_ptr<const Answer>;

/// The first step.  Where this thread has a Wanted (planner/base/give_up.hpp), each step ends with GivenUp once it is unwanted.
AnswerPtr answer_quickly(const ScenarioText& text, std::uint64_t generation);
/// The same answer without its program, a thousandth of its size: for those that may never be asked for.
AnswerPtr without_program(const Answer& quick);
/// The second: from an answer of the first, which gives up its program for it, so once only.
AnswerPtr settle(const Answer& quick);
/// The third: from an answer of the second.
AnswerPtr simulate(const Answer& settled);
/// The second and the third beside each other, since both only read the program.
/// @param next is called with each; where it returns false there is no further one
/// @param overtaken where stop is requested they end with GivenUp
void settle_and_simulate(const Answer& quick, const std::stop_token& overtaken,
                         const std::function<bool(AnswerPtr)>& next);
/// The last: looks for the smallest change where the verdict is not `fits`.
AnswerPtr find_remedy(const Answer& simulated, const std::stop_token& stop);

/// All steps, for those who can wait.
AnswerPtr answer_fully(const ScenarioText& text);

}  // namespace plimsoll::gui
