// DeepSpeed's engines by ZeRO stage (planner/step/engines/engines.hpp).
#pragma once

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// Stages 0, 1 and 2: parameters are whole on every rank.
void build_deepspeed_replicated(const Scenario& scenario, int rank, RankProgram& program);
/// Stage 3: parameters, too, are sharded and gathered when they are needed.
void build_deepspeed_zero3(const Scenario& scenario, int rank, RankProgram& program);

}  // namespace plimsoll
