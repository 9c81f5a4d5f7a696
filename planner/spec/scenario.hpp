// What is asked, as a whole: one model on one cluster with one plan, read and checked against each other.
#pragma once

#include "planner/spec/cluster.hpp"
#include "planner/spec/model.hpp"
#include "planner/spec/plan.hpp"

namespace plimsoll {

struct Scenario {
  ModelSpec model;
  ClusterSpec cluster;
  Plan plan;
};

}  // namespace plimsoll
