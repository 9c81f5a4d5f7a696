// Ranks as threads (tests/unit/runtime/world.hpp).
#include "tests/unit/runtime/world.hpp"

#include <cmath>
#include <mutex>
#include <random>
#include <thread>

#include "planner/base/machine_error.hpp"
#include "planner/step/build_step.hpp"
#include "runtime/host/host_backend.hpp"
#include "runtime/host/thread_transport.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll::testing {

const std::string tiny_dense = R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 61,
  "rms_norm_eps": 1e-5, "rope_theta": 100.0, "initializer_range": 0.2, "tie_word_embeddings": false})";
const std::string tiny_moe = R"({"model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
  "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 61, "norm_topk_prob": true,
  "output_router_logits": true, "router_aux_loss_coef": 0.1, "router_z_loss_coef": 0.05, "rms_norm_eps": 1e-5,
  "rope_theta": 100.0, "initializer_range": 0.2, "decoder_sparse_step": 1, "mlp_only_layers": [],
  "tie_word_embeddings": false})";

Scenario job(const std::string& config, int world, std::vector<std::string> keys) {
  keys.emplace_back("engine=plimsoll");
  keys.emplace_back("world_size=" + std::to_string(world));
  return make_scenario(config, keys, "8xa100-80");  // small product workspaces
}

float initial_value(const ParameterSlot& slot, std::int64_t index) {
  float value = 0;
  initial_values(1, slot.name, slot.initial_std, index, {&value, 1});
  return value;
}

MicroBatch random_batch(const FeedLayout& layout, std::uint64_t key) {
  std::mt19937_64 random(key);
  MicroBatch batch;
  for (std::int64_t i = 0; i < layout.tokens; ++i) {
    const auto token = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(layout.vocab));
    batch.ids.push_back(token);
    batch.labels.push_back((token * 7 + 3) % layout.vocab);
  }
  return batch;
}

MicroBatch random_batch(const Scenario& scenario, std::uint64_t key) {
  return random_batch({scenario.plan.tokens(), scenario.plan.sequence, scenario.model.vocab}, key);
}

namespace {

void collect(Execution& execution, StateKind kind, Tensors& into) {
  for_each_piece(execution.rank(), [&](const ShardPiece& piece) {
    const std::vector<float> shard = read_shard(execution, piece.group, kind);
    std::vector<float>& whole = into[piece.slot.name];
    whole.resize(static_cast<std::size_t>(piece.slot.whole_numel));
    std::copy_n(shard.begin() + piece.in_shard, piece.numel, whole.begin() + piece.first);
  });
}

}  // namespace

JobResult run_job(const Scenario& scenario, const Feed& feed, const JobOptions& options) {
  const int world = scenario.plan.world_size;
  ThreadWorld threads(world, std::chrono::seconds(20));
  JobResult result;
  const auto ranks = static_cast<std::size_t>(world);
  result.sent.resize(ranks);
  result.errors.resize(ranks);
  for (auto* sizes : {&result.arena, &result.high_water, &result.least, &result.most_live}) sizes->resize(ranks);
  std::mutex mutex;
  const auto run_rank = [&](int rank) {
    const StepProgram program = build_step(scenario, rank);
    const auto transport = threads.connect(rank);
    HostBackend backend(program, *transport, true);
    try {
      Execution execution(program, program.classes.front().program, plan_arena(program.classes.front().program),
                          backend);
      if (options.weights) {
        set_weights(execution, [&](const ParameterSlot& slot, std::int64_t first, std::span<float> values) {
          for (float& value : values) value = options.weights(slot, first++);
        });
      } else {
        initialise(execution, 1);
      }
      Hyperparameters hyperparameters = options.hyperparameters;
      for (int step = 0; step < options.steps; ++step) {
        const StepReport report = execution.step(hyperparameters, [&](std::int64_t i) { return feed(rank, step, i); });
        if (!report.skipped) ++hyperparameters.update;
        if (rank == 0) result.reports.push_back(report);
      }
      const std::lock_guard lock(mutex);
      const auto at = static_cast<std::size_t>(rank);
      collect(execution, StateKind::weights, result.weights);
      collect(execution, StateKind::first_moment, result.gradients);
      result.sent[at] = backend.sent();
      result.arena[at] = execution.arena().size;
      result.least[at] = execution.arena().least;
      result.high_water[at] = execution.high_water();
      result.most_live[at] = execution.most_live();
    } catch (const MachineError& error) {
      transport->abandon();
      result.errors[static_cast<std::size_t>(rank)] = error.what();
    }
  };
  std::vector<std::thread> all;
  for (int rank = 0; rank < world; ++rank) all.emplace_back(run_rank, rank);
  for (std::thread& thread : all) thread.join();
  return result;
}

Difference largest_difference(const Tensors& a, const Tensors& b) {
  Difference worst;
  for (const auto& [name, values] : b) {
    const std::vector<float>& others = a.at(name);
    double scale = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      scale = std::max(scale, std::abs(static_cast<double>(values[i])));
      const double d = std::abs(static_cast<double>(values[i]) - static_cast<double>(others.at(i)));
      difference = std::isnan(d) ? d : std::max(difference, d);
    }
    if (!(difference / scale <= worst.relative)) worst = {difference / scale, name};
  }
  return worst;
}

std::string first_unequal(const Tensors& a, const Tensors& b) {
  for (const auto& [name, values] : b) {
    if (a.at(name) != values) return name;
  }
  return a.size() == b.size() ? "" : "other names";
}

}  // namespace plimsoll::testing
