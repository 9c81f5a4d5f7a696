// A job of several ranks as threads of the test: runs steps and gives back what they report, gradients and weights by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/spec/scenario.hpp"
#include "runtime/core/execute_step.hpp"
#include "runtime/core/state.hpp"
#include "runtime/host/collectives.hpp"

namespace plimsoll::testing {

/// Whole parameters (or gradients, moments) by name.
using Tensors = std::map<std::string, std::vector<float>>;

/// Tokens of micro-batch i of a rank in a step.
using Feed = std::function<MicroBatch(int rank, std::int64_t step, std::int64_t micro_batch)>;

struct JobOptions {
  int steps = 1;
  Hyperparameters hyperparameters{1e-3, 0, 0.95, 1e-8, 0, 1};        ///< beta1 = 0: the first moment is the gradient
  std::function<float(const ParameterSlot&, std::int64_t)> weights;  ///< default: initial values of seed 1
};

struct JobResult {
  std::vector<StepReport> reports;                         ///< of rank 0, by step
  Tensors weights, gradients;                              ///< after the last step; the gradients are its first moments
  std::vector<SentBytes> sent;                             ///< by rank, over all steps
  std::vector<Bytes> arena, high_water, least, most_live;  ///< by rank
  std::vector<std::string> errors;                         ///< by rank; empty: none
};

/// A scenario from a config.json's text and plan keys, on `world` GPUs.  @throws std::runtime_error if it has errors
Scenario job(const std::string& config, int world, std::vector<std::string> keys);
JobResult run_job(const Scenario& scenario, const Feed& feed, const JobOptions& options = {});

/// What a run of seed 1 starts with.
float initial_value(const ParameterSlot& slot, std::int64_t index);

/// Pseudo-random tokens, each with its successor as label; the same for equal keys.
MicroBatch random_batch(const FeedLayout& layout, std::uint64_t key);
/// The same for a scenario's sizes.
MicroBatch random_batch(const Scenario& scenario, std::uint64_t key);

/// Largest |a - b| over all elements, over the largest |b| of the same tensor; names it.
struct Difference {
  double relative = 0;
  std::string where;
};
Difference largest_difference(const Tensors& a, const Tensors& b);
/// The first tensor that differs in any bit; empty: none.
std::string first_unequal(const Tensors& a, const Tensors& b);

extern const std::string tiny_dense;  ///< two Llama layers, grouped-query, V = 61
extern const std::string tiny_moe;  ///< two Qwen3-MoE layers, 4 experts, 2 a token, norms of heads, both router losses

}  // namespace plimsoll::testing
