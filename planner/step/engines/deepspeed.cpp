// Which of DeepSpeed's optimizers runs?  Stage, types and offload decide.
// Source: DeepSpeed 0.19.8, runtime/engine.py (_do_optimizer_sanity_check, _configure_zero_optimizer).
#include "planner/step/engines/deepspeed.hpp"

#include "planner/step/engines/engines.hpp"

namespace plimsoll {

void build_deepspeed(const Scenario& scenario, int rank, RankProgram& program) {
  const Plan& plan = scenario.plan;
  const bool fp32_accumulation = plan.precision == Precision::bf16 && plan.gradient_dtype == DType::fp32;
  if (plan.zero.stage == 3) {
    build_deepspeed_zero3(scenario, rank, program);
  } else if (plan.zero.stage == 0) {
    build_deepspeed_unfused(scenario, rank, program);
  } else if (plan.offload.optimizer != OffloadDevice::none) {
    build_deepspeed_offloaded(scenario, rank, program);  // below stage 3, nvme too means host memory
  } else if (plan.zero.stage == 1 && fp32_accumulation) {
    build_deepspeed_bf16(scenario, rank, program);
  } else {
    build_deepspeed_partitioned(scenario, rank, program);
  }
}

}  // namespace plimsoll
