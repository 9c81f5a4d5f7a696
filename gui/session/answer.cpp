// The steps of an answer (gui/session/answer.hpp).
#include "gui/session/answer.hpp"

#include <future>
#include <utility>

#include "planner/base/give_up.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::gui {
namespace {

/// Rows of smaller tensors are not listed.
constexpr Bytes least_tensor{1 << 20};

/// What follows from the program and the ledger, beside them.
void derive(Answer& answer, const Evaluation& evaluation) {
  answer.live = live_at_peak(evaluation.rank_program(), evaluation.ledger.replay, least_tensor);
  answer.volume = account_volume(evaluation.program, evaluation.rank_program(), evaluation.scenario.cluster);
  answer.loads = loads_of(answer.volume, evaluation.scenario.cluster);
}

/// Where ranks differ any stands for the others until the answer has settled.
std::shared_ptr<Evaluation> begin(Scenario scenario) {
  const int rank = distinct_ranks(scenario).front().rank;
  return std::make_shared<Evaluation>(build_alone(std::move(scenario), rank));
}

/// With the ranks that are on the clock together, of which the hottest is told of.
std::shared_ptr<Evaluation> whole_program(const Answer& quick) {
  std::shared_ptr<Evaluation> evaluation = quick.begun ? std::exchange(quick.begun, nullptr) : begin(*quick.scenario);
  complete(*evaluation, true);
  return evaluation;
}

std::shared_ptr<Answer> with_controls(const Answer& quick, ControlStates controls) {
  auto answer = std::make_shared<Answer>(quick);
  answer->begun = nullptr;
  answer->controls = std::move(controls);
  answer->settled = true;
  return answer;
}

AnswerPtr with_ledger(const Answer& quick, const std::shared_ptr<Evaluation>& evaluation, ControlStates controls) {
  auto answer = with_controls(quick, std::move(controls));
  answer->phases = categories_by_phase(evaluation->rank_program(), evaluation->ledger.replay);
  derive(*answer, *evaluation);
  answer->evaluation = evaluation;
  answer->ledger = {evaluation, &evaluation->ledger};
  answer->scenario = {evaluation, &evaluation->scenario};
  return answer;
}

struct Simulation {
  Diagnostics diagnostics;
  std::shared_ptr<SimulatedStep> step;  ///< null where the calibration has errors
  std::vector<LiveBytes> live_bytes;
};

/// Reads the program alone: the ledger may be made at the same time.
Simulation simulate_program(const Inputs& inputs, const Evaluation& evaluation) {
  Simulation result;
  try {
    const auto calibration = inputs.prices();
    result.diagnostics = calibration.diagnostics();
    if (!calibration) return result;
    result.step =
        std::make_shared<SimulatedStep>(simulated(evaluation.program, evaluation.scenario.cluster, *calibration));
    const Timeline& timeline = result.step->timeline;
    const std::size_t told = timeline.classes[timeline.told].program;
    result.live_bytes = live_bytes(evaluation.program.classes[told].program, timeline, timeline.told);
  } catch (const MachineError& error) {
    result.diagnostics.push_back(make_error("machine", error.what()));
  }
  return result;
}

AnswerPtr with_step(const Answer& settled, Simulation simulation) {
  auto answer = std::make_shared<Answer>(settled);
  answer->diagnostics.insert(answer->diagnostics.end(), simulation.diagnostics.begin(), simulation.diagnostics.end());
  answer->step = std::move(simulation.step);
  answer->live_bytes = std::move(simulation.live_bytes);
  return answer;
}

}  // namespace

AnswerPtr answer_quickly(const ScenarioText& text, std::uint64_t generation) {
  auto answer = std::make_shared<Answer>();
  answer->generation = generation;
  answer->text = text;
  try {
    answer->inputs = std::make_shared<const Inputs>(options_of(text));
  } catch (const MachineError& error) {
    answer->diagnostics.push_back(make_error("machine", error.what()));
    return answer;
  }
  answer->diagnostics = answer->inputs->diagnostics();
  answer->controls = states_of(*answer->inputs, text, false);
  if (plimsoll::has_errors(answer->diagnostics) || !answer->inputs->model() || !answer->inputs->cluster())
    return answer;
  auto begun = begin(answer->inputs->scenario());
  Evaluation& evaluation = *begun;
  Ledger& ledger = evaluation.ledger;
  ledger.capacity = evaluation.context.capacity;
  ledger.outside = evaluation.context.outside;
  SizeReplay sizes = replay_sizes(evaluation.rank_program());
  ledger.replay = std::move(sizes.replay);
  answer->phases = std::move(sizes.categories);
  const Bytes peak = ledger.replay.allocated_peak;
  ledger.allocated_peak = {peak, {peak, peak}, evaluation.context.allocated_evidence, {peak, peak}};
  ledger.peak_phase = ledger.replay.peak_phase;
  derive(*answer, evaluation);
  answer->scenario = std::make_shared<const Scenario>(evaluation.scenario);
  answer->ledger = std::make_shared<const Ledger>(ledger);
  answer->begun = std::move(begun);
  return answer;
}

AnswerPtr without_program(const Answer& quick) {
  auto answer = std::make_shared<Answer>(quick);
  answer->begun = nullptr;
  return answer;
}

AnswerPtr settle(const Answer& quick) {
  if (quick.has_errors()) return with_controls(quick, states_of(*quick.inputs, quick.text, true));
  const auto evaluation = whole_program(quick);
  evaluation->ledger = make_ledger(evaluation->rank_program(), evaluation->context);
  return with_ledger(quick, evaluation, states_of(*quick.inputs, quick.text, true));
}

AnswerPtr simulate(const Answer& settled) {
  return with_step(settled, simulate_program(*settled.inputs, *settled.evaluation));
}

void settle_and_simulate(const Answer& quick, const std::stop_token& overtaken,
                         const std::function<bool(AnswerPtr)>& next) {
  const Wanted wanted(overtaken);
  if (quick.has_errors()) {
    next(settle(quick));
    return;
  }
  const auto evaluation = whole_program(quick);
  constexpr auto beside =
      std::launch::async | std::launch::deferred;  // on this thread where there is no other to be had
  auto controls = std::async(beside, [&] { return states_of(*quick.inputs, quick.text, true); });
  auto step = std::async(beside, [&] {
    const Wanted this_too(overtaken);
    return simulate_program(*quick.inputs, *evaluation);
  });
  evaluation->ledger = make_ledger(evaluation->rank_program(), evaluation->context);
  const AnswerPtr settled = with_ledger(quick, evaluation, controls.get());
  if (next(settled)) next(with_step(*settled, step.get()));
}

AnswerPtr find_remedy(const Answer& simulated, const std::stop_token& stop) {
  auto answer = std::make_shared<Answer>(simulated);
  const Wanted wanted(stop);
  if (simulated.evaluation->ledger.verdict != Verdict::fits) {
    SmallestChange change = smallest_change(*simulated.inputs, *simulated.evaluation, stop);
    answer->remedy = std::move(change.found);
    answer->all_changes_tried = change.all_tried;
  }
  answer->remedy_known = !stop.stop_requested();
  return answer;
}

AnswerPtr answer_fully(const ScenarioText& text) {
  AnswerPtr answer = answer_quickly(text, 0);
  if (!answer->inputs) return answer;
  answer = settle(*answer);
  if (!answer->evaluation) return answer;
  return find_remedy(*simulate(*answer), {});
}

}  // namespace plimsoll::gui
