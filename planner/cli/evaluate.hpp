// What is the answer for one scenario?  Its step program and its ledger, for the rank that was asked for.
#pragma once

#include <string>
#include <vector>

#include "planner/account/ledger.hpp"
#include "planner/cli/common_inputs.hpp"
#include "planner/cli/scenario_context.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// A rank that stands for `ranks` of the world, whose lists are like its own.
struct RankSample {
  int rank = 0, ranks = 1;
};

/// One rank for each list that differs enough to tell: the one rule that says which ranks are looked at for the hottest, and
/// which are on the clock together for the slowest.
std::vector<RankSample> distinct_ranks(const Scenario& scenario);

/// Adds the distinct ranks that a program of one rank lacks, as further classes: what simulate_step() is to be given, since
/// a step is as long as its slowest rank's.
void add_other_ranks(const Scenario& scenario, StepProgram& program);

/// The class with the highest device peak; where equal the lowest rank's.
std::size_t hottest_class(const StepProgram& program, const LedgerContext& context);

struct Evaluation {
  Scenario scenario;
  int rank = 0;
  StepProgram program;  ///< the first class is that of `rank`; the others are on the clock with it
  LedgerContext context;
  Ledger ledger;

  const RankProgram& rank_program() const { return program.classes.front().program; }
};

/// The program alone: the ledger is left empty.
Evaluation build(Scenario scenario, RankChoice choice = {});

/// The same for one rank, without the others and without a digest: quick, and without a clock.
Evaluation build_alone(Scenario scenario, int rank);

/// Adds the ranks that build_alone() leaves out, and the digest.
/// @param hottest the one with the highest device peak becomes the rank told of
void complete(Evaluation& alone, bool hottest);

/// @param scenario checked: it has passed check_legality()
/// @param bistable replay the alternative histories too; a search, which compares many plans, need not
Evaluation evaluate(Scenario scenario, RankChoice choice = {}, bool bistable = true);

/// The verdict of a scenario for its hottest rank, as the ledger gives it, and no more: for searches.
struct Fit {
  Verdict verdict = Verdict::oom;
  Bytes margin;  ///< the ledger's; where closed forms or the live tensors alone are beyond the device: at most this
  bool by_tensors = false;  ///< they are, so that what holds more of them does not fit either
};
Fit fit_of(const Scenario& scenario);

}  // namespace plimsoll
