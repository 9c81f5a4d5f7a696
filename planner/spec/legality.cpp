// Which configurations run at all?  The table is put together from its parts; every rule is judged, so that all errors come
// at once.
#include "planner/spec/legality.hpp"

#include <algorithm>
#include <numeric>

#include "planner/spec/legality_rules.hpp"
#include "planner/spec/scenario.hpp"

namespace plimsoll {
namespace {

std::vector<Rule> joined(std::initializer_list<std::span<const Rule>> parts) {
  std::vector<Rule> rules;
  for (const auto& part : parts) rules.insert(rules.end(), part.begin(), part.end());
  return rules;
}

Diagnostics judge(std::span<const Rule> rules, const RuleInput& input) {
  Diagnostics diagnostics;
  for (const Rule& rule : rules) {
    if (!rule.breaks(input)) continue;
    Diagnostic diagnostic;
    diagnostic.severity = rule.severity;
    diagnostic.code = rule.code;
    rule.explain(input, diagnostic);
    diagnostics.push_back(std::move(diagnostic));
  }
  return diagnostics;
}

}  // namespace

std::vector<std::int64_t> expert_counts(const RuleInput& input) {
  std::vector<std::int64_t> counts;
  if (input.plan.moe.implementation == MoeImplementation::native) {
    counts = input.plan.moe.num_experts;
  } else if (input.model != nullptr) {
    for (const LayerSpec& layer : input.model->layers)
      if (layer.moe) counts.push_back(layer.moe->experts);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

bool has_experts(const RuleInput& input) {
  static const ModelSpec none;
  return has_experts(input.model != nullptr ? *input.model : none, input.plan);
}

std::int64_t moe_layers(const RuleInput& input) {
  if (input.model == nullptr) return 0;
  const bool native = input.plan.moe.implementation == MoeImplementation::native;
  return std::count_if(input.model->layers.begin(), input.model->layers.end(),
                       [&](const LayerSpec& layer) { return native ? layer.mlp.has_value() : layer.moe.has_value(); });
}

std::int64_t routed_per_token(const RuleInput& input) {
  if (input.plan.moe.implementation == MoeImplementation::native) return input.plan.moe.top_k;
  if (input.model != nullptr)
    for (const LayerSpec& layer : input.model->layers)
      if (layer.moe) return layer.moe->top_k;
  return 0;
}

void say(const RuleInput& input, Diagnostic& diagnostic, const char* pointer, std::string message, std::string help) {
  diagnostic.place = place_of(input.plan, pointer);
  diagnostic.message = std::move(message);
  diagnostic.help = std::move(help);
}

std::string key(const RuleInput& input, const char* pointer) { return shown_pointer(input.plan, pointer); }

std::span<const Rule> legality_rules() {
  static const std::vector<Rule> rules =
      joined({world_rules(), engine_rules(), deepspeed_rules(), expert_rules(), trained_rules()});
  return rules;
}

std::span<const Rule> trap_rules() {
  static const std::vector<Rule> rules = joined({plan_traps(), model_traps()});
  return rules;
}

bool is_legal(const RuleInput& input) {
  const auto rules = legality_rules();
  return std::none_of(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.breaks(input); });
}

Diagnostics check_legality(const RuleInput& input) { return judge(legality_rules(), input); }
Diagnostics find_traps(const RuleInput& input) { return judge(trap_rules(), input); }

}  // namespace plimsoll
