// Rows of routed experts, by hand: 8 experts over groups of 2 ranks, two routes per token, 100 tokens.
#include "planner/step/layers/routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr const char* mixtral = R"({"model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false, "max_position_embeddings": 512})";
constexpr const char* llama = R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 32,
  "tie_word_embeddings": false, "max_position_embeddings": 512})";

Scenario routed(std::vector<std::string> sets) {
  sets.insert(sets.begin(), {"zero.stage=2", "micro_batch=1", "sequence=100", "moe.implementation=autoep",
                             "expert_parallel=2", "world_size=4"});
  return make_scenario(mixtral, sets);
}

Scenario counted(std::vector<std::vector<std::vector<std::int64_t>>> counts) {
  Scenario scenario = routed({});
  scenario.plan.routing.kind = Routing::Kind::histogram;
  scenario.plan.routing.counts = std::move(counts);
  return scenario;
}

std::int64_t received_by_all(const Scenario& scenario, std::size_t layer) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < scenario.plan.world_size; ++rank) sum += route(scenario, rank)[layer].received;
  return sum;
}

TEST(Routing, BalancedRowsAreSpreadAndTheFirstExpertsTakeTheRemainder) {
  const std::vector<RoutedRows> rows = route(routed({"sequence=99"}), 1);
  ASSERT_EQ(rows.size(), 2u);
  // 198 rows over 8 experts: 25 for the first six, 24 for the last two; each of the two ranks sends as many.
  EXPECT_EQ(rows[0].sent, 198);
  EXPECT_THAT(rows[0].by_expert, ElementsAre(50, 50, 48, 48));
  EXPECT_EQ(rows[0].received, 196);
  EXPECT_EQ(received_by_all(routed({"sequence=99"}), 1), 4 * 198);
}

TEST(Routing, SkewGivesTheFirstExpertThatManyTimesTheMean) {
  const Scenario scenario = routed({"routing.kind=skew", "routing.max_over_mean=3"});
  // Mean 25: the first gets 75, the other seven share 125 (18, 18, 18, 18, 18, 18, 17).
  EXPECT_THAT(route(scenario, 0)[0].by_expert, ElementsAre(150, 36, 36, 36));
  EXPECT_THAT(route(scenario, 1)[0].by_expert, ElementsAre(36, 36, 36, 34));
  EXPECT_EQ(route(scenario, 2)[1].received, route(scenario, 0)[0].received);
  EXPECT_EQ(hottest_rank(scenario), 0);
  EXPECT_EQ(mean_route(scenario)[0].received, 200);
}

TEST(Routing, NoExpertGetsMoreRowsThanThereAre) {
  const Scenario scenario = routed({"routing.kind=skew", "routing.max_over_mean=8"});
  EXPECT_THAT(route(scenario, 0)[0].by_expert, ElementsAre(400, 0, 0, 0));
  EXPECT_EQ(route(scenario, 1)[0].received, 0);
}

TEST(Routing, CollapseGivesTheFirstExpertItsShare) {
  const Scenario scenario = routed({"routing.kind=collapse", "routing.share=0.65"});
  EXPECT_THAT(route(scenario, 0)[0].by_expert, ElementsAre(260, 20, 20, 20));  // 130, then 10 each, from two ranks
  EXPECT_EQ(route(scenario, 1)[0].received, 80);
}

TEST(Routing, AHistogramCountsWhatAllRanksOfTheGroupSendToOnesExperts) {
  // Layer 0: ranks 0 to 3 differ; layer 1 likewise, reversed.
  const std::vector<std::vector<std::int64_t>> ranks{{10, 20, 30, 40, 25, 25, 25, 25},
                                                     {50, 50, 0, 0, 50, 50, 0, 0},
                                                     {200, 0, 0, 0, 0, 0, 0, 0},
                                                     {0, 0, 0, 0, 0, 0, 0, 200}};
  const Scenario scenario = counted({ranks, {ranks.rbegin(), ranks.rend()}});
  EXPECT_THAT(route(scenario, 0)[0].by_expert, ElementsAre(60, 70, 30, 40));
  EXPECT_THAT(route(scenario, 1)[0].by_expert, ElementsAre(75, 75, 25, 25));
  EXPECT_THAT(route(scenario, 2)[0].by_expert, ElementsAre(200, 0, 0, 0));
  EXPECT_THAT(route(scenario, 3)[0].by_expert, ElementsAre(0, 0, 0, 200));
  EXPECT_THAT(route(scenario, 0)[1].by_expert, ElementsAre(200, 0, 0, 0));
  for (const std::size_t layer : {0u, 1u}) EXPECT_EQ(received_by_all(scenario, layer), 800);
}

TEST(Routing, TheHottestRankIsTheFirstThatReceivesMostOverAllLayers) {
  const std::vector<std::int64_t> even(8, 25), to_last{0, 0, 0, 0, 0, 0, 50, 150}, to_first{150, 50, 0, 0, 0, 0, 0, 0};
  const Scenario scenario = counted({{even, even, even, to_last}, {even, to_first, even, to_last}});
  // Rank 0: 200 + 300; rank 1: 200 + 100; rank 2: 100 + 100; rank 3: 300 + 300.
  EXPECT_EQ(hottest_rank(scenario), 3);
  EXPECT_EQ(mean_route(scenario)[0].received, 200);
  EXPECT_EQ(mean_route(scenario)[1].received, 200);
}

TEST(Routing, OneRankOfAHistogramStandsForAllAndOneLayerForAll) {
  const Scenario scenario = counted({{{30, 20, 25, 25, 40, 10, 25, 25}}});
  for (const std::size_t layer : {0u, 1u}) {
    EXPECT_THAT(route(scenario, 2)[layer].by_expert, ElementsAre(60, 40, 50, 50));
    EXPECT_THAT(route(scenario, 3)[layer].by_expert, ElementsAre(80, 20, 50, 50));
  }
}

TEST(Routing, ReplacedMlpsAreMixturesToo) {
  const Scenario scenario =
      make_scenario(llama, {"zero.stage=1", "micro_batch=1", "sequence=100", "moe.implementation=native",
                            "moe.num_experts=4", "moe.top_k=1", "moe.capacity_factor=1.25", "world_size=2"});
  const std::vector<RoutedRows> rows = route(scenario, 0);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(moe_of_layer(scenario, 3)->expert_intermediate, 16);
  EXPECT_THAT(rows[3].by_expert, Each(25));
  EXPECT_EQ(rows[3].capacity, 32);  // ceil(25 * 1.25)
}

TEST(Routing, WithoutDroppingTheFullestExpertOfAnyRankSetsTheCapacity) {
  Scenario scenario = counted({{{25, 25, 25, 25, 25, 25, 25, 25},
                                {10, 40, 25, 25, 25, 25, 25, 25},
                                {0, 50, 0, 50, 0, 50, 0, 50},
                                {25, 25, 25, 25, 25, 25, 25, 25}}});
  scenario.plan.moe.drop_tokens = false;
  EXPECT_EQ(route(scenario, 0)[0].capacity, 40);
  EXPECT_EQ(route(scenario, 3)[1].capacity, 50);
}

TEST(Routing, CapacityIsComputedIn32Bits) {
  EXPECT_EQ(expert_capacity(8192, 8, 1.0, 4), 1024);
  EXPECT_EQ(expert_capacity(8192, 4, 1.25, 4), 2560);
  EXPECT_EQ(expert_capacity(10, 8, 1.0, 4), 4);       // at least min_capacity
  EXPECT_EQ(expert_capacity(3000, 8, 1.2, 4), 451);   // 375 * 1.2 = 450, but the factor is 1.20000005 in 32 bits
  EXPECT_EQ(expert_capacity(3000, 60, 2.2, 4), 110);  // 64-bit arithmetic gives 110.00000000000001, and 111
}

}  // namespace
}  // namespace plimsoll
