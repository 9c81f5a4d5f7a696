// Trained parameters and adapted layers by name (planner/spec/trained.hpp).
#include "planner/spec/trained.hpp"

#include <algorithm>
#include <string_view>

#include "planner/spec/held_parameters.hpp"

namespace plimsoll {
namespace {

/// True if the pieces between the pattern's stars stand in the name in this order.
bool is_found(std::string_view pattern, std::string_view name) {
  std::size_t from = 0;
  while (true) {
    const std::size_t star = pattern.find('*');
    const std::string_view piece = pattern.substr(0, star);
    const std::size_t at = name.find(piece, from);
    if (at == std::string_view::npos) return false;
    if (star == std::string_view::npos) return true;
    from = at + piece.size();
    pattern.remove_prefix(star + 1);
  }
}

/// "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj"
std::string_view module_of(const ParameterDecl& parameter) {
  const std::string_view name = parameter.name;
  return name.substr(0, name.rfind('.'));
}

bool names_module(std::string_view target, std::string_view module) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

}  // namespace

bool trains_in_part(const Plan& plan) { return plan.lora || !plan.trainable_patterns.empty(); }

bool is_trained(const Plan& plan, const ParameterDecl& parameter) {
  if (!parameter.trainable || plan.lora) return false;
  const auto& patterns = plan.trainable_patterns;
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(),
                                         [&](const std::string& pattern) { return is_found(pattern, parameter.name); });
}

DType adapter_dtype(const Plan& plan, DType base) {
  const bool as_made = plan.construction == Construction::zero_init || plan.construction == Construction::meta;
  const bool kept = plan.engine == Engine::ddp || (plan.engine == Engine::deepspeed && plan.zero.stage == 3 && as_made);
  return kept && plan.lora && plan.lora->fp32 ? DType::fp32 : base;
}

bool is_adapted(const Plan& plan, const ParameterDecl& weight) {
  if (!plan.lora || !is_linear(weight.role)) return false;
  const std::string_view module = module_of(weight);
  if (plan.lora->targets.empty()) return names_module("q_proj", module) || names_module("v_proj", module);
  return std::any_of(plan.lora->targets.begin(), plan.lora->targets.end(), [&](const std::string& target) {
    return target == "all-linear" ? weight.role != Role::head : names_module(target, module);
  });
}

bool is_quantized(const Plan& plan, const ParameterDecl& weight) {
  return plan.lora && plan.lora->base_nf4 && is_linear(weight.role) && weight.role != Role::head;
}

}  // namespace plimsoll
