// Short descriptions for people (planner/cli/in_words.hpp).
#include "planner/cli/in_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "planner/base/format.hpp"
#include "planner/step/layers/module.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

std::string engine_in_words(const Plan& plan) {
  switch (plan.engine) {
    case Engine::deepspeed: return fmt::format("deepspeed {} ZeRO-{}", plan.engine_version, plan.zero.stage);
    case Engine::plimsoll: return fmt::format("plimsoll ZeRO-{}", plan.zero.stage);
    case Engine::fsdp2:
      return fmt::format("fsdp2 {}{}", plan.engine_version,
                         plan.fsdp.reshard_after_forward ? "" : " without resharding");
    case Engine::ddp: return fmt::format("ddp {}", plan.engine_version);
  }
  return {};
}

}  // namespace

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
    case Severity::note: return "note";
  }
  return "";
}

Colour colour_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return Colour::green;
    case Verdict::tight: return Colour::yellow;
    case Verdict::oom: return Colour::red;
  }
  return Colour::none;
}

std::string scenario_in_words(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  std::string text = fmt::format("{} on {} x {}, {}", scenario.model.name, plan.world_size,
                                 scenario.cluster.device.name, engine_in_words(plan));
  if (has_experts(scenario.model, plan))
    text += fmt::format(", {} experts{}", name_of(plan.moe.implementation), plan.moe.leaf ? " as leaves" : "");
  if (plan.expert_parallel > 1) text += fmt::format(", ep {}", plan.expert_parallel);
  text += fmt::format(", micro-batch {} x {} tokens", plan.micro_batch, plan.sequence);
  if (plan.gradient_accumulation > 1) text += fmt::format(" x {} accumulated", plan.gradient_accumulation);
  text += fmt::format(", {}", name_of(plan.precision));
  if (plan.recompute.every == 1) text += ", full recompute";
  if (plan.recompute.every > 1) text += fmt::format(", every {} layers recomputed", plan.recompute.every);
  if (plan.offload.optimizer != OffloadDevice::none)
    text += fmt::format(", optimizer on {}", name_of(plan.offload.optimizer));
  if (plan.offload.parameters != OffloadDevice::none)
    text += fmt::format(", parameters on {}", name_of(plan.offload.parameters));
  if (plan.compile) text += ", compiled";
  return text;
}

std::string peak_op_in_words(const Evaluation& evaluation) {
  const RankProgram& program = evaluation.rank_program();
  const OpId id = evaluation.ledger.replay.peak_op;
  if (id >= program.ops.size()) return {};
  const Op& op = program.ops[id];
  const auto* alloc = std::get_if<Alloc>(&op.action);
  std::string text = alloc != nullptr ? program.buffers[alloc->buffer].name : op.role;
  if (op.layer >= 0) text += fmt::format(", layer {}", op.layer);
  return text;
}

std::vector<std::string> notes_on(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (plan.expert_parallel == 1 || plan.engine == Engine::ddp) return {};
  const int edp = plan.expert_data_parallel();
  if (edp == 1)
    return {fmt::format(
        "Experts: ep {} is all of data parallel {}, so edp = 1: ZeRO shards no expert state, each rank holds "
        "whole optimizer states of its experts.",
        plan.expert_parallel, plan.world_size)};
  return {fmt::format(
      "Experts: each rank holds 1/{} of them; their states are sharded over edp = {}, the dense ones over dp = {}.",
      plan.expert_parallel, edp, plan.world_size)};
}

ParameterCounts parameters_of(const Scenario& scenario) {
  const ParameterCounts of_model = count_parameters(scenario.model);
  if (scenario.plan.moe.num_experts.empty()) return of_model;
  Scenario whole = scenario;  // without expert parallelism a rank holds every expert
  whole.plan.expert_parallel = 1;
  ParameterCounts counts;
  double active_experts = 0;
  const auto modules = build_modules(whole);
  for (const Parameter& parameter : modules->parameters_in_order) {
    const bool expert = parameter.decl->expert;
    (expert ? counts.expert : counts.dense) += parameter.numel();
    if (!expert) continue;
    const auto moe = moe_of_layer(whole, static_cast<std::size_t>(parameter.decl->layer));
    if (moe) active_experts += static_cast<double>(parameter.numel() * moe->top_k) / static_cast<double>(moe->experts);
  }
  counts.total = counts.dense + counts.expert;
  counts.active = counts.dense + std::llround(active_experts);
  counts.active_without_embedding = counts.active - (of_model.active - of_model.active_without_embedding);
  counts.active_without_embedding_and_head =
      counts.active - (of_model.active - of_model.active_without_embedding_and_head);
  return counts;
}

std::string gibibytes(Bytes bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes.count) / (1 << 30)); }

std::string share_in_words(Bytes part, Bytes whole) {
  return whole.count > 0 ? fmt::format("{:.1f} %", 100 * (part / whole)) : std::string();
}

std::string of_in_words(Bytes part, Bytes whole) {
  constexpr Bytes least{std::int64_t{1} << 27}, most{std::int64_t{10} << 40};  // of what two digits of GiB tell well
  if (whole < least || part > most) return fmt::format("{} of {}", format(part), format(whole));
  return fmt::format("{} of {} GiB", gibibytes(part), gibibytes(whole));
}

std::string lack_in_words(const Ledger& ledger) {
  if (ledger.verdict != Verdict::oom) return {};
  std::vector<std::string> parts;
  if (ledger.gpu_verdict == Verdict::oom) parts.push_back(format(Bytes(0) - ledger.margin) + " on the GPU");
  if (ledger.host_verdict == Verdict::oom)
    parts.push_back(format(ledger.host_per_node - ledger.host_capacity) + " on the node");
  return fmt::format("It lacks {}; it breaks in {}: {}", fmt::join(parts, " and "), ledger.breaks_phase,
                     ledger.breaks_tensor);
}

std::string room_in_words(const Ledger& ledger) {
  return fmt::format("{} on the device, margin {} GiB ({})", of_in_words(ledger.job_device_peak.value, ledger.capacity),
                     gibibytes(ledger.margin), share_in_words(ledger.margin, ledger.capacity));
}

std::string break_in_words(const Ledger& ledger) {
  if (ledger.verdict == Verdict::fits) return {};
  return fmt::format("{} in {}: {}",
                     ledger.breaks_on_host ? "The host's memory is short" : "The device's memory is short",
                     ledger.breaks_phase, ledger.breaks_tensor);
}

std::string count_in_words(const Diagnostics& diagnostics) {
  const auto count = [&](Severity severity) {
    return std::count_if(diagnostics.begin(), diagnostics.end(),
                         [&](const Diagnostic& d) { return d.severity == severity; });
  };
  std::string text;
  for (const Severity severity : {Severity::error, Severity::warning}) {
    const auto number = count(severity);
    if (number == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", counted(number, name_of(severity)));
  }
  return text;
}

std::string refusal_in_words(const Diagnostics& diagnostics) {
  const Diagnostic* first = nullptr;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.severity != Severity::error) continue;
    if (!diagnostic.help.empty()) return diagnostic.message + "; " + diagnostic.help;
    if (first == nullptr) first = &diagnostic;
  }
  return first == nullptr ? std::string() : first->message;
}

}  // namespace plimsoll
