// Which parameters does a plan train, and which linear layers get adapters?
//   all         every parameter that receives a gradient
//   patterns    those whose name a pattern is found in; * stands for any text
//   LoRA        none of the model's own; beside each target, a linear layer W [out, in], A [r, in] and B [out, r] are trained
// A target is the name of a linear module ("q_proj", or a longer tail of its path), or "all-linear": every one but the head.
// Without targets they are q_proj and v_proj.  Fused experts and routers are no linear modules.
// Source: PEFT 0.21, tuners/tuners_utils.py (check_target_module_exists), tuners/lora/layer.py.
#pragma once

#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

/// True of a plan that trains adapters, or those of the parameters alone that patterns name.
bool trains_in_part(const Plan& plan);

/// True if the plan trains this parameter of the model.
bool is_trained(const Plan& plan, const ParameterDecl& parameter);

/// The type of the adapters beside layers of type `base`.  PEFT's fp32 stays where no engine casts the whole model: plain
/// PyTorch, and DeepSpeed's stage 3 where the layers are sharded as they are made.
DType adapter_dtype(const Plan& plan, DType base);

/// True if this is the weight of a linear layer that gets an adapter.
bool is_adapted(const Plan& plan, const ParameterDecl& weight);

/// True if the plan keeps this weight in 4 bits: all linear layers but the head, frozen.
bool is_quantized(const Plan& plan, const ParameterDecl& weight);

}  // namespace plimsoll
