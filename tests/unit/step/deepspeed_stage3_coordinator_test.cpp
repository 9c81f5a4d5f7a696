// Gathers, prefetch and release at ZeRO stage 3, on chains of modules small enough to count by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/step/stage3_chain.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Stage3Gather, ALoneParameterIsItsOwnPaddedBuffer) {
  Stage3Chain chain({5});
  chain.start();
  chain.parameters().gather({0});
  chain.parameters().wait(0);
  chain.parameters().release(0);
  EXPECT_THAT(chain.gathered(), ElementsAre(6)) << "two parts of ceil(5 / 2)";
  EXPECT_THAT(chain.events(), ElementsAre("+p0 6", "-p0 6"));
}

TEST(Stage3Gather, SeveralAreCopiedOutAtTheFirstWaitAndTheFlatBufferLivesUntilTheLast) {
  Stage3Chain chain({5, 8});
  chain.start();
  chain.parameters().gather({0, 1});
  chain.parameters().wait(1);
  EXPECT_THAT(chain.gathered(), ElementsAre(14));
  EXPECT_THAT(chain.events(), ElementsAre("+gathered parameters 14", "+p0 5", "+p1 8"));
  EXPECT_TRUE(chain.whole(0));
  const OpId first = chain.trace().next_op();
  chain.parameters().wait(0);
  EXPECT_THAT(chain.events(first), ElementsAre("-gathered parameters 14"));
}

TEST(Stage3Gather, SequentialGathersNeedNoFlatBuffer) {
  Stage3Chain chain({5, 8});
  chain.plan().zero.stage3_allgather_sequential = true;
  chain.start();
  chain.parameters().gather({0, 1});
  EXPECT_THAT(chain.events(), ElementsAre("+p0 6", "+p1 8"));
  EXPECT_THAT(chain.gathered(), ElementsAre(6, 8));
}

TEST(Stage3Gather, AnAllReduceFillsOneBufferWhoseViewsAreTheParameters) {
  Stage3Chain chain({5, 8});
  chain.plan().zero.stage3_use_all_reduce_for_fetch_params = true;
  chain.start();
  chain.parameters().gather({0, 1});
  chain.parameters().wait(0);
  chain.parameters().wait(1);
  chain.parameters().release(0);
  EXPECT_THAT(chain.events(), ElementsAre("+gathered parameters 14"));
  chain.parameters().release(1);
  EXPECT_EQ(chain.events().back(), "-gathered parameters 14");
}

TEST(Stage3Gather, AGroupOfOneRankMovesNothing) {
  Plan plan = Stage3Chain::two_ranks();
  plan.world_size = 1;
  Stage3Chain chain({5}, plan);
  chain.start();
  chain.parameters().gather({0});
  chain.parameters().wait(0);
  EXPECT_TRUE(chain.whole(0));
  EXPECT_THAT(chain.gathered(), IsEmpty());
  EXPECT_THAT(chain.events(), IsEmpty());
}

TEST(Stage3Gather, FromTheHostALoneShardLivesUntilTheWaitSeveralUntilTheyAreFlat) {
  Stage3Chain chain({4, 8, 6});
  chain.start(true);
  chain.parameters().gather({0});
  EXPECT_THAT(chain.events(), ElementsAre("+p0 4", "+shard copied to the device 2"));
  const OpId waited = chain.trace().next_op();
  chain.parameters().wait(0);
  EXPECT_THAT(chain.events(waited), ElementsAre("-shard copied to the device 2"));
  const OpId several = chain.trace().next_op();
  chain.parameters().gather({1, 2});
  EXPECT_THAT(chain.events(several),
              ElementsAre("+gathered parameters 14", "+shard copied to the device 4", "+shard copied to the device 3",
                          "-shard copied to the device 4", "-shard copied to the device 3"));
}

TEST(Stage3Gather, SmallParametersPersistInOrderWithinTheModelsLimit) {
  Stage3Chain chain({10, 4, 11, 6, 3});
  chain.plan().zero.stage3_param_persistence_threshold = 10;
  chain.plan().zero.stage3_model_persistence_threshold = 17;
  chain.start();
  std::vector<bool> persistent;
  for (const zero3::ShardedParameter& parameter : chain.parameters().all()) persistent.push_back(parameter.persistent);
  EXPECT_THAT(persistent, ElementsAre(true, true, false, false, true)) << "10 + 4 + 3; 6 would make 20";
}

TEST(Stage3Coordinator, TheFirstForwardGathersEachAloneAndDropsItAtOnce) {
  Stage3Chain chain({4, 6});
  chain.plan().zero.stage3_param_persistence_threshold = 5;
  chain.plan().zero.stage3_prefetch_bucket_size = 100;
  chain.plan().zero.stage3_max_reuse_distance = 100;
  chain.start();
  chain.step();
  EXPECT_THAT(chain.gathered(), ElementsAre(4, 6, 6, 4));
  EXPECT_FALSE(chain.whole(0)) << "even a persistent one";
}

TEST(Stage3Coordinator, PersistentParametersStayFromTheSecondForwardOn) {
  Stage3Chain chain({4, 6});
  chain.plan().zero.stage3_param_persistence_threshold = 5;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.step();
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 6, 6));
  EXPECT_TRUE(chain.whole(0));
  chain.coordinator().release_all();
  EXPECT_FALSE(chain.whole(0)) << "until the optimizer's step";
}

TEST(Stage3Coordinator, PrefetchOvershootsItsBucketByUpToOneParameter) {
  Stage3Chain chain({2, 4, 4, 4});
  chain.plan().zero.stage3_prefetch_bucket_size = 5;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.coordinator().begin_forward();
  chain.coordinator().enter(chain.module(0));
  EXPECT_THAT(chain.gathered(second), ElementsAre(2, 8)) << "4 < 5, so a second 4 is added";
  EXPECT_EQ(chain.coordinator().available(), 10) << "counted when the gather is issued";
}

TEST(Stage3Coordinator, PrefetchStopsAtTheLiveLimitButNeededParametersAreFetched) {
  Stage3Chain chain({4, 4, 4});
  chain.plan().zero.stage3_prefetch_bucket_size = 100;
  chain.plan().zero.stage3_max_live_parameters = 6;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.coordinator().begin_forward();
  chain.coordinator().enter(chain.module(0));
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 4)) << "room for 2 elements lets one more parameter in";
  chain.coordinator().enter(chain.module(1));
  chain.coordinator().enter(chain.module(2));
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 4, 4));
  EXPECT_EQ(chain.coordinator().available(), 12);
}

TEST(Stage3Coordinator, ModulesWithoutParametersPrefetchToo) {
  Stage3Chain chain({4, 0, 4, 4});
  chain.plan().zero.stage3_prefetch_bucket_size = 1;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.coordinator().begin_forward();
  chain.visit(0);
  chain.visit(1);
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 4, 4));
}

TEST(Stage3Coordinator, ParametersUsedAgainWithinTheReuseDistanceAreKept) {
  Stage3Chain chain({4, 4, 4});
  chain.plan().zero.stage3_max_reuse_distance = 5;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.step();
  // Visits: 0 1 2 2 1 0.  Module 2 is used again after 0 elements, module 1 after 8, module 0 after 16.
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 4, 4, 4, 4));
}

TEST(Stage3Coordinator, AParameterThatThePrefetcherPassedOverIsKeptForThatUse) {
  Stage3Chain chain({4, 4, 4});
  chain.plan().zero.stage3_prefetch_bucket_size = 100;
  chain.start();
  chain.step();
  const OpId second = chain.trace().next_op();
  chain.step();
  // The prefetch of the first visit meets every later use while the parameters are whole or on their way, so none is
  // dropped before it; but a use at the very next visit does not count as later.
  EXPECT_THAT(chain.gathered(second), ElementsAre(4, 8, 4));
}

TEST(Stage3Coordinator, WhatIsStillInFlightIsDroppedByTheNextForward) {
  Stage3Chain chain({4, 6});
  chain.plan().zero.stage3_prefetch_bucket_size = 100;
  chain.start();
  chain.step();
  chain.coordinator().begin_forward();
  chain.visit(0);
  EXPECT_EQ(chain.parameters()[1].presence, zero3::Presence::in_flight);
  chain.coordinator().begin_forward();
  EXPECT_EQ(chain.parameters()[1].presence, zero3::Presence::sharded);
  EXPECT_EQ(chain.coordinator().available(), 0);
}

TEST(Stage3Coordinator, TheHostRunsAtMostTwoWaitsAhead) {
  Stage3Chain chain({2, 2, 2, 2});
  chain.start();
  chain.step();
  int host_waits = 0;
  for (const Op& op : chain.program().ops) host_waits += op.lane == Lane::host && op.after_count > 0;
  EXPECT_EQ(host_waits, 5) << "eight waits, from the fourth on";
}

/// A leaf block of 4 elements with children of 5 and 6, beside an ordinary module of 3 with a child of 7.
struct WithLeaf {
  Stage3Chain chain{{3, 4, 5, 6, 7}};
  WithLeaf() {
    Module& ordinary = chain.module(0);
    Module& block = chain.module(1);
    ordinary.children = {&chain.module(4)};
    block.children = {&chain.module(2), &chain.module(3)};
    chain.model().children = {&ordinary, &block};
    block.zero3_leaf = true;
  }
  void visits(std::initializer_list<std::size_t> modules) {
    chain.coordinator().begin_forward();
    for (const std::size_t i : modules) chain.visit(i);
  }
};

TEST(Stage3Leaf, IsFetchedWholeInOneVisit) {
  WithLeaf leaf;
  leaf.chain.start();
  leaf.visits({0, 1, 1, 0});
  EXPECT_THAT(leaf.chain.gathered(), ElementsAre(4, 16, 16, 4)) << "4 + 6 + 6: each padded to two parts";
}

TEST(Stage3Leaf, AheadOfAnOrdinaryModuleCountsOnlyItsOwnParameters) {
  WithLeaf leaf;
  // From the forward of module 0 to its backward the walk passes the block twice: 2 x 4 elements of its own, 2 x 15 in all.
  leaf.chain.plan().zero.stage3_max_reuse_distance = 9;
  leaf.chain.start();
  leaf.visits({0, 1, 1, 0});
  const OpId second = leaf.chain.trace().next_op();
  leaf.visits({0, 1, 1, 0});
  EXPECT_THAT(leaf.chain.gathered(second), ElementsAre(4, 16)) << "module 0 is kept, and so is the block";
}

TEST(Stage3Leaf, WhenItIsLeftEveryModuleCountsAllBelowIt) {
  WithLeaf leaf;
  leaf.chain.plan().zero.stage3_max_reuse_distance = 5;
  leaf.chain.start();
  leaf.visits({1, 0, 1});
  leaf.visits({1});
  EXPECT_FALSE(leaf.chain.whole(1)) << "module 0 lies between: 3 elements of its own, but 10 with its child";
}

TEST(Stage3Leaf, GranularityMarksTheOutermostSmallModules) {
  Stage3Chain chain({8, 2, 2, 100});
  Module& block = chain.module(1);
  block.children = {&chain.module(2)};
  chain.model().children = {&chain.module(0), &block, &chain.module(3)};
  // The block: 4 elements in 2 layers; the model: 112 elements in 5 layers.
  zero3::mark_leaves_by_granularity(chain.model(), 1);
  EXPECT_FALSE(block.zero3_leaf);
  zero3::mark_leaves_by_granularity(chain.model(), 2);
  EXPECT_TRUE(block.zero3_leaf);
  EXPECT_FALSE(chain.module(2).zero3_leaf);
  EXPECT_FALSE(chain.module(0).zero3_leaf) << "a module without children is one anyway";
  zero3::mark_leaves_by_granularity(chain.model(), 22);
  EXPECT_TRUE(chain.model().zero3_leaf);
}

}  // namespace
}  // namespace plimsoll
