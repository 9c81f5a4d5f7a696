// What is the answer for one scenario?  Its step program and its ledger, for the rank that was asked for.
#pragma once

#include "planner/account/ledger.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/scenario_context.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

struct Evaluation {
  Scenario scenario;
  int rank = 0;
  StepProgram program;
  LedgerContext context;
  Ledger ledger;

  const RankProgram& rank_program() const { return program.classes.front().program; }
};

/// The program alone: the ledger is left empty.
Evaluation build(Scenario scenario, RankChoice choice = {});

/// @param scenario checked: it has passed check_legality()
/// @param bistable replay the alternative histories too; a search, which compares many plans, need not
Evaluation evaluate(Scenario scenario, RankChoice choice = {}, bool bistable = true);

/// The verdict of a scenario for its hottest rank, as the ledger gives it, and no more: for searches.
struct Fit {
  Verdict verdict = Verdict::oom;
  Bytes margin;  ///< the ledger's; where closed forms or the live tensors alone are beyond the device: at most this
};
Fit fit_of(const Scenario& scenario);

}  // namespace plimsoll
