// The parts of the legality table, by subject.  Internal to planner/spec/legality.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/spec/legality.hpp"

namespace plimsoll {

std::span<const Rule> world_rules();      ///< ranks, batch, sizes
std::span<const Rule> engine_rules();     ///< what each engine takes and what is not built
std::span<const Rule> deepspeed_rules();  ///< stages, offload, types
std::span<const Rule> expert_rules();     ///< experts and routing
std::span<const Rule> trained_rules();    ///< training a part of the model, 8-bit moments
std::span<const Rule> plan_traps();       ///< traps that the plan alone shows
std::span<const Rule> model_traps();      ///< traps that need the model or are about experts

/// Number of experts of each MoE layer, equal ones once; DeepSpeed's own layers if the plan puts them in.
std::vector<std::int64_t> expert_counts(const RuleInput& input);
/// Of the model, where one is given, and the plan.
bool has_experts(const RuleInput& input);
/// Layers with routed experts, whoever makes them.
std::int64_t moe_layers(const RuleInput& input);
/// Experts each token visits.
std::int64_t routed_per_token(const RuleInput& input);

/// Fills a diagnostic at a key of the plan.
void say(const RuleInput& input, Diagnostic& diagnostic, const char* pointer, std::string message,
         std::string help = {});
/// "/micro_batch", or what the user's file calls it.
std::string key(const RuleInput& input, const char* pointer);

}  // namespace plimsoll
