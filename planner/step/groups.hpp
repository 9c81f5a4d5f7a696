// Which ranks communicate with each other?  The groups of a job under fixed ids, so that every engine and every interpreter
// means the same ranks by the same GroupId.
//
// W ranks, expert parallelism ep, R replicas of a hybrid-sharded model:
//   dp         all W ranks
//   ep         ep consecutive ranks: one whole set of experts
//   edp        W / ep ranks, ep apart: they hold the same experts
//   shard      W / R consecutive ranks: one whole set of shards
//   replicate  R ranks, W / R apart: they hold the same shard
#pragma once

#include <vector>

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

namespace group_id {
inline constexpr GroupId data_parallel = 0;
inline constexpr GroupId expert_parallel = 1;
inline constexpr GroupId expert_data_parallel = 2;
inline constexpr GroupId shard = 3;
inline constexpr GroupId replicate = 4;
}  // namespace group_id

/// The groups of the scenario, by id; a mesh that is not used has groups of one rank.
std::vector<Group> groups_of(const Scenario& scenario);

}  // namespace plimsoll
