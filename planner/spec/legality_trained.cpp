// Which parts of a model can be trained alone?  LoRA, patterns of names and 8-bit moments, by engine.
#include <fmt/core.h>

#include <algorithm>

#include "planner/spec/legality_rules.hpp"
#include "planner/spec/trained.hpp"

namespace plimsoll {
namespace {

constexpr Severity error = Severity::error;

bool engines_own_experts(const RuleInput& in) {
  const MoeImplementation implementation = in.plan.moe.implementation;
  return moe_layers(in) > 0 &&
         (implementation == MoeImplementation::native || implementation == MoeImplementation::autoep);
}

/// Experts in a loop are linear modules of their own, which the model's file does not list one by one.
bool names_looped_expert(const RuleInput& in) {
  if (in.plan.moe.implementation != MoeImplementation::loop || moe_layers(in) == 0 || !in.plan.lora) return false;
  const auto& targets = in.plan.lora->targets;
  return std::any_of(targets.begin(), targets.end(), [](const std::string& target) {
    return target == "gate_proj" || target == "up_proj" || target == "down_proj" || target == "all-linear";
  });
}

constexpr Rule rules[] = {
    {"plan.unsupported", error, "plimsoll", "any", "its fused layers train every parameter",
     [](const RuleInput& in) { return in.plan.engine == Engine::plimsoll && trains_in_part(in.plan); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/trainable", "engine plimsoll trains all parameters; a part of them is not built yet",
           "trainable \"all\", or engine ddp, fsdp2 or deepspeed");
     }},
    {"plan.unsupported", error, "any", "any", "nothing computes it yet",
     [](const RuleInput& in) { return in.plan.compile && trains_in_part(in.plan); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/trainable",
           fmt::format("{} with compiled layers is not built yet",
                       in.plan.lora ? "LoRA" : "training a part of a model"),
           "compile false");
     }},
    {"plan.unsupported", error, "any", "any", "nothing computes it yet",
     [](const RuleInput& in) { return in.plan.lora && engines_own_experts(in); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/trainable", "LoRA beside DeepSpeed's own experts is not built yet",
           "moe.implementation grouped or loop");
     }},
    {"plan.unsupported", error, "any", "any", "nothing computes it yet",
     [](const RuleInput& in) { return engines_own_experts(in) && !in.plan.trainable_patterns.empty(); },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/trainable", "training a part of a model with DeepSpeed's own experts is not built yet",
           "trainable \"all\", or moe.implementation grouped or loop");
     }},
    {"plan.trainable.none", error, "any", "any", "PEFT: ValueError; an optimizer without parameters",
     [](const RuleInput& in) {
       if (in.model == nullptr || !trains_in_part(in.plan) || names_looped_expert(in)) return false;
       const auto& parameters = in.model->parameters;
       return std::none_of(parameters.begin(), parameters.end(), [&](const ParameterDecl& parameter) {
         return in.plan.lora ? is_adapted(in.plan, parameter) : is_trained(in.plan, parameter);
       });
     },
     [](const RuleInput& in, Diagnostic& d) {
       if (in.plan.lora)
         say(in, d, "/trainable",
             "no linear layer of this model has one of these names, so no adapter would be trained",
             "names as q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, or \"all-linear\"");
       else
         say(in, d, "/trainable", "no parameter of this model has a name with one of these patterns in it",
             R"(patterns as "lm_head", "layers.0.", "*self_attn*bias")");
     }},
    {"plan.unsupported", error, "fsdp2, deepspeed", "any", "4-bit weights are not cut into shards",
     [](const RuleInput& in) {
       if (!in.plan.lora || !in.plan.lora->base_nf4) return false;
       const bool sharded =
           in.plan.engine == Engine::fsdp2 || (in.plan.engine == Engine::deepspeed && in.plan.zero.stage == 3);
       return sharded || in.plan.construction == Construction::cpu;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/trainable/lora/base",
           "a base in 4 bits is answered where it is replicated and built on the GPU only",
           "engine ddp, or deepspeed at stages 0 to 2, construction gpu; or base \"16bit\"");
     }},
    {"plan.unsupported", error, "any", "any", "nothing computes it yet",
     [](const RuleInput& in) {
       if (in.plan.optimizer.moments != DType::int8) return false;
       return in.plan.engine == Engine::plimsoll || in.plan.offload.optimizer != OffloadDevice::none;
     },
     [](const RuleInput& in, Diagnostic& d) {
       say(in, d, "/optimizer/moments", "moments in 8 bits are answered on the GPU under ddp, fsdp2 and deepspeed only",
           "moments fp32");
     }},
};

}  // namespace

std::span<const Rule> trained_rules() { return rules; }

}  // namespace plimsoll
