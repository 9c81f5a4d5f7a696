// What does the ledger need to know that the step program does not say?  Capacity, allocator, the process's own memory on
// device and host, and how well the figures are known: from the scenario.
#pragma once

#include <string>
#include <vector>

#include "planner/account/ledger.hpp"
#include "planner/spec/scenario.hpp"

namespace plimsoll {

LedgerContext ledger_context(const Scenario& scenario);

struct Assumption {
  std::string what;
  Evidence evidence = Evidence::assumed;
};

/// What the answer rests on beside the program, least known first.
std::vector<Assumption> assumptions_of(const Scenario& scenario, const LedgerContext& context);

}  // namespace plimsoll
