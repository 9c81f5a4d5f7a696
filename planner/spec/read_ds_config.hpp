// What does DeepSpeed 0.19.8 make of a ds_config.json?  Comments, second names, deprecated keys, "auto" as Hugging Face's
// Trainer resolves it with its own defaults, and the batch equation
//
//   train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * world_size.
//
// What the file cannot say (world size, sequence, recompute, ...) comes from overrides in the plan's vocabulary.
#pragma once

#include "planner/spec/read_plan.hpp"

namespace plimsoll {

PlanReading read_ds_config_file(const std::shared_ptr<const SourceFile>& file, const PlanContext& context);

/// The same, as a value or the reasons why there is none.
Result<Plan> read_ds_config(const std::shared_ptr<const SourceFile>& file, const PlanContext& context = {});

}  // namespace plimsoll
