// The steps of an answer (gui/session/answer.hpp).
#include "gui/session/answer.hpp"

#include <utility>

#include "planner/base/check.hpp"
#include "planner/base/machine_error.hpp"
#include "planner/spec/read_calibration.hpp"

namespace plimsoll::gui {
namespace {

/// Rows of smaller tensors are not listed.
constexpr Bytes least_tensor{1 << 20};

/// What follows from the program and the ledger, beside them.
void derive(Answer& answer, const Evaluation& evaluation) {
  answer.phases = categories_by_phase(evaluation.rank_program(), evaluation.ledger.replay);
  answer.live = live_at_peak(evaluation.rank_program(), evaluation.ledger.replay, least_tensor);
  answer.volume = account_volume(evaluation.program, evaluation.rank_program(), evaluation.scenario.cluster);
  answer.loads = loads_of(answer.volume, evaluation.scenario.cluster);
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
  Scenario scenario = answer->inputs->scenario();
  // Where ranks differ any stands for the others until the answer has settled.
  const int rank = distinct_ranks(scenario).front().rank;
  auto begun = std::make_shared<Evaluation>(build_alone(std::move(scenario), rank));
  Evaluation& evaluation = *begun;
  Ledger& ledger = evaluation.ledger;
  ledger.capacity = evaluation.context.capacity;
  ledger.outside = evaluation.context.outside;
  ledger.replay = replay_sizes(evaluation.rank_program());
  ledger.allocated_peak = {ledger.replay.allocated_peak,
                           {ledger.replay.allocated_peak, ledger.replay.allocated_peak},
                           evaluation.context.allocated_evidence};
  ledger.peak_phase = ledger.replay.peak_phase;
  derive(*answer, evaluation);
  answer->scenario = std::make_shared<const Scenario>(evaluation.scenario);
  answer->ledger = std::make_shared<const Ledger>(ledger);
  answer->begun = std::move(begun);
  return answer;
}

AnswerPtr settle(const Answer& quick) {
  auto answer = std::make_shared<Answer>(quick);
  answer->controls = states_of(*answer->inputs, answer->text, true);
  answer->settled = true;
  if (quick.has_errors()) return answer;
  std::shared_ptr<Evaluation> evaluation = std::exchange(quick.begun, nullptr);
  answer->begun = nullptr;
  CHECK(evaluation, "an answer settles once");
  if (distinct_ranks(evaluation->scenario).size() == 1) {
    evaluation->ledger = make_ledger(evaluation->rank_program(), evaluation->context);
  } else {
    *evaluation = evaluate(std::move(evaluation->scenario));
  }
  derive(*answer, *evaluation);
  answer->evaluation = evaluation;
  answer->ledger = {evaluation, &evaluation->ledger};
  answer->scenario = {evaluation, &evaluation->scenario};
  return answer;
}

AnswerPtr simulate(const Answer& settled) {
  auto answer = std::make_shared<Answer>(settled);
  const Evaluation& evaluation = *settled.evaluation;
  try {
    const auto calibration = load_calibration({}, evaluation.scenario.cluster);
    answer->diagnostics.insert(answer->diagnostics.end(), calibration.diagnostics().begin(),
                               calibration.diagnostics().end());
    if (!calibration) return answer;
    auto step =
        std::make_shared<SimulatedStep>(simulated(evaluation.program, evaluation.scenario.cluster, *calibration));
    answer->live_bytes = live_bytes(evaluation.rank_program(), step->timeline, 0);
    answer->step = std::move(step);
  } catch (const MachineError& error) {
    answer->diagnostics.push_back(make_error("machine", error.what()));
  }
  return answer;
}

AnswerPtr find_remedy(const Answer& simulated, const std::stop_token& stop) {
  auto answer = std::make_shared<Answer>(simulated);
  if (simulated.evaluation->ledger.verdict != Verdict::fits)
    answer->remedy = smallest_change(*simulated.inputs, *simulated.evaluation, stop);
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
