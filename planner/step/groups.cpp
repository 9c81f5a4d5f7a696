// The groups of a job (planner/step/groups.hpp).
#include "planner/step/groups.hpp"

namespace plimsoll {

std::vector<Group> groups_of(const Scenario& scenario) {
  const int world = scenario.plan.world_size;
  const int ep = scenario.plan.expert_parallel;
  const int replicas = scenario.plan.engine == Engine::fsdp2 ? scenario.plan.fsdp.replicate : 1;
  return {
      {"dp", world, 1},
      {"ep", ep, 1},
      {"edp", world / ep, ep},
      {"shard", world / replicas, 1},
      {"replicate", replicas, world / replicas},
  };
}

}  // namespace plimsoll
