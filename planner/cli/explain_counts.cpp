// The terms behind the numbers that follow from the model and the plan alone: counts of parameters, files of a checkpoint,
// whose bytes are told (planner/cli/explain_makers.hpp).
#include <fmt/format.h>

#include <algorithm>

#include "planner/base/format.hpp"
#include "planner/cli/explain_makers.hpp"
#include "planner/cli/in_words.hpp"
#include "planner/step/checkpoint_files.hpp"
#include "planner/step/layers/module.hpp"
#include "planner/step/layers/routing.hpp"

namespace plimsoll {
namespace {

/// A parameter of the model, or one that the engine made in its place.
struct Counted {
  ParameterDecl decl;
  std::int64_t numel = 0;
  std::int64_t active = 0;  ///< of them, those that one token passes
};

using CountedParameters = std::vector<Counted>;

CountedParameters counted_parameters(const Scenario& scenario) {
  CountedParameters counted;
  const auto add = [&](const ParameterDecl& decl, std::int64_t numel) {
    const auto moe = decl.expert ? moe_of_layer(scenario, static_cast<std::size_t>(decl.layer)) : std::nullopt;
    counted.push_back({decl, numel, moe ? numel * moe->top_k / moe->experts : numel});
  };
  if (scenario.plan.moe.num_experts.empty()) {
    for (const ParameterDecl& decl : scenario.model.parameters) add(decl, decl.numel);
    return counted;
  }
  Scenario whole = scenario;  // without expert parallelism a rank holds every expert
  whole.plan.expert_parallel = 1;
  const auto modules = build_modules(whole);
  for (const Parameter& parameter : modules->parameters_in_order) add(*parameter.decl, parameter.numel());
  return counted;
}

/// "model.layers.3.mlp..." of every layer is one term.
std::string name_over_layers(const ParameterDecl& decl) {
  std::string name = decl.name;
  const std::string layer = fmt::format(".{}.", decl.layer);
  if (const auto at = name.find(layer); decl.layer >= 0 && at != std::string::npos)
    name.replace(at, layer.size(), ".*.");
  return name;
}

/// @param share how many of a parameter's elements count
template <class Share>
NumberMaker sum_of_parameters(const Scenario& scenario, const char* what, std::int64_t value, Share share) {
  return [&scenario, what, value, share](ExplainedNumber& number) {
    number.unit = "parameters";
    number.formula = what;
    number.value = value;
    std::map<std::string, Term> found;
    for (const Counted& counted : counted_parameters(scenario)) {
      const std::int64_t elements = share(counted);
      if (elements == 0) continue;
      const ParameterDecl& decl = counted.decl;
      const std::string name = name_over_layers(decl);
      const auto [at, is_new] = found.try_emplace(name);
      Term& term = at->second;
      if (is_new) term = {name, {}, decl.expert ? "expert" : "dense", 0, 0, decl.layer, decl.layer};
      ++term.count;
      term.value += elements;
      term.last_layer = std::max(term.last_layer, decl.layer);
    }
    for (auto& [name, term] : found) number.terms.push_back(std::move(term));
    sort_largest_first(number.terms);
  };
}

}  // namespace

void add_parameters(NumberMakers& makers, const Evaluation& evaluation) {
  const Scenario& scenario = evaluation.scenario;
  const ParameterCounts counts = parameters_of(scenario);
  const auto add = [&](const char* name, std::int64_t value, const char* what, auto share) {
    makers[fmt::format("parameters.{}", name)] = sum_of_parameters(scenario, what, value, share);
  };
  add("total", counts.total, "every parameter of the model", [](const Counted& c) { return c.numel; });
  add("dense", counts.dense, "every parameter but the routed experts'",
      [](const Counted& c) { return c.decl.expert ? 0 : c.numel; });
  add("expert", counts.expert, "the routed experts' parameters",
      [](const Counted& c) { return c.decl.expert ? c.numel : 0; });
  add("active", counts.active, "what one token passes: of the routed experts top_k of all",
      [](const Counted& c) { return c.active; });
  const bool tied = scenario.model.tied_embeddings;
  add("active_without_embedding", counts.active_without_embedding,
      "what one token passes, but for the embedding unless it is the head too",
      [tied](const Counted& c) { return c.decl.role == Role::embedding && !tied ? 0 : c.active; });
  add("active_without_embedding_and_head", counts.active_without_embedding_and_head,
      "what one token passes, but for embedding and head", [](const Counted& c) {
        const Role role = c.decl.role;
        return role == Role::embedding || role == Role::head || role == Role::head_bias ? 0 : c.active;
      });
}

void add_checkpoint(NumberMakers& makers, const Evaluation& evaluation) {
  const std::vector<CheckpointFile> files = checkpoint_files(evaluation.scenario);
  makers["checkpoint.total_bytes"] = [files](ExplainedNumber& number) {
    number.formula = "the files that saving writes, of all ranks";
    for (const CheckpointFile& file : files) {
      number.value += file.bytes.count;
      number.terms.push_back(term_of(file.name, file.bytes));
    }
  };
  for (const CheckpointFile& file : files) {
    makers[fmt::format("checkpoint.files.{}.bytes", file.name)] = [file](ExplainedNumber& number) {
      number.value = file.bytes.count;
      number.formula = "elements of the tensors that it holds, and what is written around them";
      if (file.tensors.count > 0) number.terms.push_back(term_of("elements of tensors", file.tensors));
      number.terms.push_back(term_of("names, records, entries of the archive", file.bytes - file.tensors));
    };
  }
}

void add_rank(NumberMakers& makers, const Evaluation& evaluation) {
  makers["rank"] = [&](ExplainedNumber& number) {
    number.value = evaluation.rank;
    number.unit = fmt::format("of {}", counted(evaluation.scenario.plan.world_size, "rank"));
    number.formula = "whose bytes these are: by default the rank with the highest device peak, else that of --rank";
    number.terms = {term_of("this rank", Bytes(evaluation.rank))};
  };
}

}  // namespace plimsoll
