// No bound on time is above the simulated step of the same plan, at the rates that its calibration allows.
#include "planner/cli/fastest_rates.hpp"

#include <gtest/gtest.h>

#include <random>

#include "planner/cli/evaluate.hpp"
#include "planner/spec/legality.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"
#include "planner/spec/read_model.hpp"
#include "planner/spec/read_plan.hpp"
#include "planner/spec/write_plan.hpp"
#include "simulator/timeline.hpp"

namespace plimsoll {
namespace {

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

std::vector<std::string> random_sets(std::mt19937& random, bool mixture) {
  std::vector<std::string> sets{"sequence=" + pick<std::string>(random, {"256", "1024"}),
                                "micro_batch=" + pick<std::string>(random, {"1", "4"}),
                                "gradient_accumulation=" + pick<std::string>(random, {"1", "2", "3"}),
                                "recompute=" + pick<std::string>(random, {"none", "full"})};
  const std::string engine = pick<std::string>(random, {"deepspeed", "deepspeed", "deepspeed", "fsdp2", "ddp"});
  sets.push_back("engine=" + engine);
  if (engine == "fsdp2") sets.push_back("fsdp.reshard_after_forward=" + pick<std::string>(random, {"true", "false"}));
  if (engine != "deepspeed") return sets;
  const std::string stage = pick<std::string>(random, {"0", "1", "2", "3", "3"});
  sets.push_back("zero.stage=" + stage);
  sets.push_back("zero.overlap_comm=" + pick<std::string>(random, {"true", "false"}));
  sets.push_back("zero.reduce_bucket_size=" + pick<std::string>(random, {"200000", "500000000"}));
  if (stage == "3") {
    sets.push_back("zero.stage3_prefetch_bucket_size=" + pick<std::string>(random, {"0", "300000", "50000000"}));
    sets.push_back("zero.stage3_param_persistence_threshold=" + pick<std::string>(random, {"0", "100000"}));
    sets.push_back("zero.stage3_max_live_parameters=" + pick<std::string>(random, {"0", "5000000", "1000000000"}));
    sets.push_back("zero.stage3_max_reuse_distance=" + pick<std::string>(random, {"0", "5000000", "1000000000"}));
  }
  if (mixture) {
    sets.push_back("moe.implementation=autoep");
    sets.push_back("expert_parallel=" + pick<std::string>(random, {"1", "2", "4"}));
  }
  return sets;
}

TEST(FastestRates, bound_no_plan_above_its_simulated_step) {
  std::mt19937 random(20261130);
  int compared = 0;
  double closest = 0;
  for (int i = 0; i < 150; ++i) {
    const bool mixture = random() % 2 == 0;
    ModelSpec model = *load_model(mixture ? "sparrow-moe" : "sparrow-dense");
    // Links ten thousand times slower, at times: then it is communication that bounds, not the host; with thousands of ranks
    // it is the latency of each collective.
    ClusterSpec cluster = *load_cluster(pick<std::string>(random, {"2xh200", "4xh100", "16xh100", "4096xh100"}));
    Calibration calibration = *load_calibration("", cluster);
    if (random() % 2 == 0) {
      for (CollectivePrice& price : calibration.collectives) {
        for (CollectivePrice::Piece& piece : price.pieces) piece.bytes_per_s /= 1e4;
        for (auto& [bytes, seconds] : price.points) seconds *= 1e4;
      }
    }
    PlanContext context;
    context.overrides = random_sets(random, mixture);
    context.cluster_world = cluster.world();
    context.model = &model;
    PlanReading reading = read_plan_file(nullptr, context);
    if (has_errors(reading.diagnostics)) continue;
    const Scenario scenario{std::move(model), std::move(cluster), std::move(reading.plan)};
    if (!is_legal({scenario.plan, &scenario.model, &scenario.cluster})) continue;
    const PlanBounds bounds(scenario.model, scenario.cluster, fastest_rates(calibration), scenario.plan);
    const double bound = bounds.step_seconds(scenario.plan.micro_batch, scenario.plan.gradient_accumulation);
    const Timeline timeline = simulate_step(build(scenario).program, scenario.cluster, calibration);
    EXPECT_TRUE(timeline.unfinished.empty()) << write_plan_json(scenario.plan);
    EXPECT_LE(bound, to_seconds(timeline.step_time) * (1 + 1e-9)) << write_plan_json(scenario.plan);
    closest = std::max(closest, bound / to_seconds(timeline.step_time));
    ++compared;
  }
  EXPECT_GT(compared, 60);
  EXPECT_GT(closest, 0.8);  // it says something, too
}

}  // namespace
}  // namespace plimsoll
