// Scenarios for tests, as a user would state them: a model, a cluster, and keys of the plan.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/account/replay.hpp"
#include "planner/base/format.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "planner/spec/scenario.hpp"
#include "planner/step/build_step.hpp"

namespace plimsoll::testing {

inline std::string all_of(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) text += format(diagnostic) + "\n";
  return text;
}

/// @param keys "zero.stage=3", ...
inline Scenario scenario(const std::string& model, const std::string& cluster, const std::vector<std::string>& keys) {
  auto read_model = load_model(model);
  EXPECT_TRUE(read_model) << all_of(read_model.diagnostics());
  auto read_cluster = load_cluster(cluster);
  EXPECT_TRUE(read_cluster) << all_of(read_cluster.diagnostics());
  PlanContext context;
  context.overrides = keys;
  context.cluster_world = read_cluster->world();
  context.model = &*read_model;
  auto plan = read_plan(nullptr, context);
  EXPECT_TRUE(plan) << all_of(plan.diagnostics());
  Scenario result{std::move(*read_model), std::move(*read_cluster), std::move(*plan)};
  const Diagnostics illegal = check_legality({result.plan, &result.model, &result.cluster});
  EXPECT_TRUE(illegal.empty()) << all_of(illegal);
  return result;
}

inline Bytes category(const Replay& replay, Category which) {
  return replay.categories_at_peak[static_cast<std::size_t>(which)];
}

/// Bytes of one category alive when the steady step's phase ends: sums of requested sizes.
inline Bytes alive_at_end(const RankProgram& program, const std::string& phase, Category which) {
  OpId end = 0;
  for (const PhaseSpan& span : program.phases) {
    if (phase == span.name) end = span.end;
  }
  Bytes live;
  for (OpId id = 0; id < end; ++id) {
    const auto size_of = [&](BufferId buffer) {
      const BufferDecl& decl = program.buffers[buffer];
      return decl.category == which && decl.pool != Lane::host ? decl.size : Bytes(0);
    };
    if (const auto* alloc = std::get_if<Alloc>(&program.ops[id].action)) live += size_of(alloc->buffer);
    if (const auto* free = std::get_if<Free>(&program.ops[id].action)) live -= size_of(free->buffer);
  }
  return live;
}

}  // namespace plimsoll::testing
