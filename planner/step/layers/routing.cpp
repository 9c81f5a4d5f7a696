// Rows by layer and rank (planner/step/layers/routing.hpp).
#include "planner/step/layers/routing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/spec/held_parameters.hpp"

namespace plimsoll {

namespace {

using Counts = std::vector<std::int64_t>;  // by expert

/// `rows` over experts: the first gets `to_first`, the others share the rest evenly, the earlier ones what remains.
Counts lean_on_first(std::int64_t rows, std::int64_t experts, std::int64_t to_first) {
  Counts counts(static_cast<std::size_t>(experts));
  counts[0] = experts == 1 ? rows : std::clamp<std::int64_t>(to_first, 0, rows);
  const std::int64_t others = experts - 1, rest = rows - counts[0];
  for (std::int64_t e = 0; e < others; ++e) {
    counts[static_cast<std::size_t>(e) + 1] = rest / others + (e < rest % others ? 1 : 0);
  }
  return counts;
}

/// Ranks differ only if a histogram says so; else all are like the first ep ones.
bool ranks_differ(const Routing& routing) {
  return routing.kind == Routing::Kind::histogram && routing.counts[0].size() > 1;
}

/// Rows that `rank` sends to each expert of MoE layer `layer`.
Counts sent_rows(const Scenario& scenario, const MoeSpec& moe, std::size_t layer, int rank) {
  const Routing& routing = scenario.plan.routing;
  const std::int64_t rows = scenario.plan.tokens() * moe.top_k;
  const double mean = static_cast<double>(rows) / static_cast<double>(moe.experts);
  switch (routing.kind) {
    case Routing::Kind::balanced: break;
    case Routing::Kind::skew:
      return lean_on_first(rows, moe.experts, static_cast<std::int64_t>(std::llround(mean * routing.max_over_mean)));
    case Routing::Kind::collapse:
      return lean_on_first(rows, moe.experts,
                           static_cast<std::int64_t>(std::llround(static_cast<double>(rows) * routing.share)));
    case Routing::Kind::histogram: {
      const auto& layers = routing.counts;
      const auto& ranks = layers[layers.size() == 1 ? 0 : layer];
      return ranks[ranks.size() == 1 ? 0 : static_cast<std::size_t>(rank)];
    }
  }
  Counts counts(static_cast<std::size_t>(moe.experts));
  for (std::int64_t e = 0; e < moe.experts; ++e) {
    counts[static_cast<std::size_t>(e)] = rows / moe.experts + (e < rows % moe.experts ? 1 : 0);
  }
  return counts;
}

int distinct_ranks(const Scenario& scenario) {
  return ranks_differ(scenario.plan.routing) ? scenario.plan.world_size : scenario.plan.expert_parallel;
}

/// The reference runtime's rows.  Dropping: C slots for each expert and source, all of which are sent.  Dropless: as routed,
/// with room for capacity_factor times the mean, at least for the plan's own routing, at most for all there can be.
void size_fused_rows(const Scenario& scenario, const MoeSpec& moe, RoutedRows& rows) {
  const Plan& plan = scenario.plan;
  const auto local = static_cast<std::int64_t>(rows.by_expert.size());
  const double factor = plan.moe.capacity_factor;
  if (plan.moe.drop_tokens) {
    rows.capacity =
        expert_capacity(plan.tokens(), moe.experts, factor * static_cast<double>(moe.top_k), plan.moe.min_capacity);
    rows.sent = rows.received = rows.bound = rows.capacity * moe.experts;
    std::fill(rows.by_expert.begin(), rows.by_expert.end(), rows.capacity * plan.expert_parallel);
    return;
  }
  const std::int64_t most = plan.tokens() * plan.expert_parallel * std::min(moe.top_k, local);
  const double wished = std::min(std::ceil(factor * static_cast<double>(rows.sent)), static_cast<double>(most));
  rows.bound = plan.expert_parallel == 1 ? rows.sent : std::max(rows.received, static_cast<std::int64_t>(wished));
}

RoutedRows rows_of(const Scenario& scenario, const MoeSpec& moe, std::size_t layer, int rank) {
  const Plan& plan = scenario.plan;
  const int ep = plan.expert_parallel;
  const std::int64_t local = moe.experts / ep;
  const auto first = static_cast<std::size_t>(local * (rank % ep));
  RoutedRows rows;
  rows.sent = plan.tokens() * moe.top_k;
  rows.counted = plan.routing.kind == Routing::Kind::histogram;
  rows.by_expert.assign(static_cast<std::size_t>(local), 0);
  std::int64_t fullest = 0;
  const bool differ = ranks_differ(plan.routing);
  const int group = rank - rank % ep;
  for (int other = group; other < group + (differ ? ep : 1); ++other) {
    const Counts counts = sent_rows(scenario, moe, layer, other);
    for (std::size_t e = 0; e < rows.by_expert.size(); ++e) rows.by_expert[e] += counts[first + e] * (differ ? 1 : ep);
    fullest = std::max(fullest, *std::max_element(counts.begin(), counts.end()));
  }
  rows.received = std::accumulate(rows.by_expert.begin(), rows.by_expert.end(), std::int64_t{0});
  if (plan.moe.implementation == MoeImplementation::fused) {
    size_fused_rows(scenario, moe, rows);
  } else if (plan.moe.drop_tokens) {
    const double factor = plan.moe.capacity_factor * static_cast<double>(moe.top_k);
    rows.capacity = expert_capacity(plan.tokens(), moe.experts, factor, plan.moe.min_capacity);
  } else {
    rows.capacity = fullest;  // the largest count of any expert on any rank of the group
  }
  return rows;
}

}  // namespace

std::optional<MoeSpec> moe_of_layer(const Scenario& scenario, std::size_t layer) {
  const LayerSpec& spec = scenario.model.layers[layer];
  if (spec.moe) return spec.moe;
  const MoeOptions& options = scenario.plan.moe;
  if (!is_native(scenario.plan) || !spec.mlp) return {};
  const std::int64_t experts = options.num_experts.size() == 1 ? options.num_experts[0] : options.num_experts[layer];
  if (experts == 0) return {};
  return MoeSpec{.experts = experts,
                 .top_k = options.top_k,
                 .expert_intermediate = spec.mlp->intermediate,
                 .expert_bias = spec.mlp->bias};
}

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, double factor, std::int64_t min_capacity) {
  const auto tokens_per_expert = static_cast<float>(static_cast<double>(tokens) / static_cast<double>(experts));
  const float slots = tokens_per_expert * static_cast<float>(factor);
  return std::max(min_capacity, static_cast<std::int64_t>(std::ceil(slots)));
}

std::vector<RoutedRows> route(const Scenario& scenario, int rank) {
  std::vector<RoutedRows> routed;
  for (std::size_t layer = 0; layer < scenario.model.layers.size(); ++layer) {
    if (const auto moe = moe_of_layer(scenario, layer)) routed.push_back(rows_of(scenario, *moe, routed.size(), rank));
  }
  return routed;
}

std::vector<RoutedRows> mean_route(const Scenario& scenario) {
  const int ranks = distinct_ranks(scenario);
  std::vector<RoutedRows> mean = route(scenario, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<RoutedRows> routed = route(scenario, rank);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i].received += routed[i].received;
      for (std::size_t e = 0; e < mean[i].by_expert.size(); ++e) mean[i].by_expert[e] += routed[i].by_expert[e];
    }
  }
  for (RoutedRows& rows : mean) {
    rows.received = ceil_div(rows.received, ranks);
    for (std::int64_t& count : rows.by_expert) count = ceil_div(count, ranks);
  }
  return mean;
}

int hottest_rank(const Scenario& scenario) {
  const int ranks = distinct_ranks(scenario);
  int hottest = 0;
  std::int64_t most = -1;
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t received = 0;
    for (const RoutedRows& rows : route(scenario, rank)) received += rows.received;
    if (received > most) {
      most = received;
      hottest = rank;
    }
  }
  return hottest;
}

}  // namespace plimsoll
