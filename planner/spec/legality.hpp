// Which configurations run at all, and which run into something that nobody expects?  Rules that span the plan, the model
// and the cluster, as a table; each row names the engine and versions it holds for and where it is known from.
//
// Errors: the engine refuses it, or nothing here computes it yet (code plan.unsupported).  Warnings and notes: it runs, but
// not as its author may think (codes trap.…, measured unless said otherwise).
#pragma once

#include <span>
#include <string>

#include "planner/base/diagnostic.hpp"
#include "planner/spec/cluster.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

struct RuleInput {
  const Plan& plan;
  const ModelSpec* model = nullptr;      ///< null: rules that need one are not judged
  const ClusterSpec* cluster = nullptr;  ///< null: likewise
};

struct Rule {
  const char* code;
  Severity severity;
  const char* engines;   ///< "deepspeed", "fsdp2, ddp", "any"
  const char* versions;  ///< of that engine
  const char* evidence;  ///< measured, or where it stands in the source
  bool (*breaks)(const RuleInput&);
  /// Fills place, message, notes and help; only called when `breaks`.
  void (*explain)(const RuleInput&, Diagnostic&);
};

std::span<const Rule> legality_rules();  ///< all of severity error
std::span<const Rule> trap_rules();      ///< warnings and notes

/// True if no rule refuses the plan; makes no text, for the search.
bool is_legal(const RuleInput& input);

/// What the legality rules say: errors.
Diagnostics check_legality(const RuleInput& input);

/// What the traps say: warnings and notes.
Diagnostics find_traps(const RuleInput& input);

}  // namespace plimsoll
