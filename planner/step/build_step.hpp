// Scenario -> step program.
#pragma once

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// The step program of one rank, as a single class.
/// The scenario has passed check_legality(); building it cannot fail.  Its digest is a stable hash (FNV-1a, hexadecimal) over the
/// structure: ops, lanes, groups, sizes fixed by the plan, and the room that the plan makes for routed rows.
StepProgram build_step(const Scenario& scenario, int rank);

/// The same without its digest, for those who read the program and name it to nobody.
StepProgram build_unstamped(const Scenario& scenario, int rank);
/// Adds the digest, of the first class: the others are on the clock with it.
void stamp(const Scenario& scenario, StepProgram& program);

}  // namespace plimsoll
