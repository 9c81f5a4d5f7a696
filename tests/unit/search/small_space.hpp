// Small models and an evaluator for the tests of the search: the real step program with its ledger, and as time the lower
// bound of its lanes.
#pragma once

#include <string>
#include <vector>

#include "planner/search/search.hpp"

namespace plimsoll::testing {

/// A Llama-like model; with `experts` its layers are Mixtral-like mixtures of two experts a token.
ModelSpec small_model(std::int64_t hidden, int layers, std::int64_t experts = 0);

/// One node of `gpus` GPUs of `gibibytes` each.
ClusterSpec small_cluster(int gpus, double gibibytes);

/// With the plan's keys as --set takes them.
Scenario small_scenario(ModelSpec model, ClusterSpec cluster, const std::vector<std::string>& sets);

/// Counts its calls; never stops early.
struct CountingEvaluator {
  std::int64_t* calls;
  Evaluated operator()(const Scenario& scenario, double worth_s) const;
};

/// Evaluates every candidate: the fastest that fits, ties to the first.
struct Exhaustive {
  std::optional<Found> best;
  std::int64_t candidates = 0;
};
Exhaustive evaluate_all(const Space& space, const Evaluator& evaluate);

}  // namespace plimsoll::testing
