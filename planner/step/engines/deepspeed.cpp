// Which of DeepSpeed's engines runs?  The ZeRO stage decides (planner/step/engines/deepspeed.hpp).
#include "planner/step/engines/deepspeed.hpp"

#include "planner/step/engines/engines.hpp"

namespace plimsoll {

void build_deepspeed(const Scenario& scenario, int rank, RankProgram& program) {
  if (scenario.plan.zero.stage == 3) {
    build_deepspeed_zero3(scenario, rank, program);
  } else {
    build_deepspeed_replicated(scenario, rank, program);
  }
}

}  // namespace plimsoll
