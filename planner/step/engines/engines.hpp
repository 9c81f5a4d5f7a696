// Whose step is it?  One function per engine traces a rank's whole job: construction, first step, steady step, saving.
#pragma once

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

void build_ddp(const Scenario& scenario, int rank, RankProgram& program);
void build_fsdp2(const Scenario& scenario, int rank, RankProgram& program);
void build_deepspeed(const Scenario& scenario, int rank, RankProgram& program);
void build_plimsoll(const Scenario& scenario, int rank, RankProgram& program);

}  // namespace plimsoll
