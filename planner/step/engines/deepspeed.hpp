// DeepSpeed's optimizers, one a function; the plan decides which (planner/step/engines/deepspeed.cpp).
#pragma once

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// Stage 0: FP16_UnfusedOptimizer, in bf16 too; in fp32 the optimizer itself.
void build_deepspeed_unfused(const Scenario& scenario, int rank, RankProgram& program);
/// Stages 1 and 2: DeepSpeedZeroOptimizer.
void build_deepspeed_partitioned(const Scenario& scenario, int rank, RankProgram& program);
/// Stages 1 and 2 with the optimizer's state and step on the host.
void build_deepspeed_offloaded(const Scenario& scenario, int rank, RankProgram& program);
/// Stage 1 in bf16 with fp32 accumulation: BF16_Optimizer.
void build_deepspeed_bf16(const Scenario& scenario, int rank, RankProgram& program);
/// Stage 3: parameters, too, are sharded and gathered when they are needed.
void build_deepspeed_zero3(const Scenario& scenario, int rank, RankProgram& program);

}  // namespace plimsoll
