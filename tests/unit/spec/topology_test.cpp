// Routes through the graph of a cluster, and the shares of large groups against them and against sums made by hand.
#include "planner/spec/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "planner/spec/devices.hpp"

namespace plimsoll {
namespace {

using Kind = CollectiveKind;

ClusterSpec cluster_of(const char* preset) { return *preset_cluster(preset); }

std::vector<std::string> stops(const ClusterSpec& cluster, int from, int to) {
  std::vector<std::string> names;
  const auto route = find_route(cluster, from, to);
  for (const Link& link : *route) names.push_back(link.to);
  return names;
}

Tier farthest(const ClusterSpec& cluster, int from, int to) {
  Tier tier = Tier::nvlink;
  const auto route = find_route(cluster, from, to);
  for (const Link& link : *route) tier = std::max(tier, link.tier);
  return tier;
}

TEST(WireBytes, FollowTheDefinitionsOfNcclTests) {
  const Bytes size(800);
  EXPECT_EQ(wire_bytes(Kind::all_gather, size, 8), Bytes(700));
  EXPECT_EQ(wire_bytes(Kind::reduce_scatter, size, 8), Bytes(700));
  EXPECT_EQ(wire_bytes(Kind::all_reduce, size, 8), Bytes(1400));
  EXPECT_EQ(wire_bytes(Kind::all_to_all, size, 8), Bytes(700));
  EXPECT_EQ(wire_bytes(Kind::broadcast, size, 8), size);
  EXPECT_EQ(wire_bytes(Kind::all_reduce, size, 1), Bytes(0));
  EXPECT_EQ(wire_bytes(Kind::all_reduce, Bytes(4), 8), Bytes(7));
}

TEST(Route, InsideANodeGoesThroughTheSwitch) {
  const ClusterSpec cluster = cluster_of("8xh100");
  EXPECT_THAT(stops(cluster, 2, 5), ::testing::ElementsAre("nvswitch of node 0", "gpu 5"));
  const auto route = *find_route(cluster, 2, 5);
  EXPECT_EQ(route[0].tier, Tier::nvlink);
  EXPECT_DOUBLE_EQ(route[0].latency.count + route[1].latency.count, cluster.in_node.latency.count);
  EXPECT_TRUE(find_route(cluster, 3, 3)->empty());
}

TEST(Route, WithoutNvlinkGoesThroughTheHost) {
  EXPECT_THAT(stops(cluster_of("8x4090"), 0, 7), ::testing::ElementsAre("host of node 0", "gpu 7"));
}

TEST(Route, OfOneRailCrossesItsLeafOnly) {
  EXPECT_THAT(stops(cluster_of("16xh100"), 3, 11),
              ::testing::ElementsAre("nic 3 of node 0", "leaf 3 of pod 0", "nic 3 of node 1", "gpu 11"));
}

TEST(Route, ToAnotherRailChangesRailsOverNvlink) {
  const auto names = stops(cluster_of("16xh100"), 3, 12);
  EXPECT_EQ(names.size(), 6u);
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("spine")));
  EXPECT_THAT(names, ::testing::Contains(::testing::HasSubstr("nvswitch")));
}

TEST(Route, BetweenPodsCrossesTheSpine) {
  ClusterSpec cluster = cluster_of("64xh100");
  cluster.nodes_per_leaf = 4;
  cluster.spine_oversubscription = 2;
  EXPECT_THAT(stops(cluster, 0, 32), ::testing::ElementsAre("nic 0 of node 0", "leaf 0 of pod 0", "spine",
                                                            "leaf 0 of pod 1", "nic 0 of node 4", "gpu 32"));
  // Four NICs of a rail in a pod, half of their bandwidth up to the spine.
  EXPECT_DOUBLE_EQ((*find_route(cluster, 0, 32))[2].bandwidth.count, 4 * cluster.nic.bandwidth.count / 2);
}

TEST(Route, IsAnErrorWithoutANetworkAndNamesTheRanks) {
  ClusterSpec cluster = cluster_of("16xh100");
  cluster.nics_per_node = 0;
  const auto route = find_route(cluster, 3, 12);
  ASSERT_FALSE(route);
  EXPECT_EQ(route.diagnostics()[0].code, "cluster.unreachable");
  EXPECT_THAT(route.diagnostics()[0].message, ::testing::HasSubstr("rank 3 (node 0) cannot reach rank 12 (node 1)"));
  const auto share = tier_share(cluster, {16, 1}, Kind::all_gather);
  ASSERT_FALSE(share);
  EXPECT_THAT(share.diagnostics()[0].message, ::testing::HasSubstr("rank 7 (node 0) cannot reach rank 8 (node 1)"));
  EXPECT_TRUE(tier_share(cluster, {8, 1}, Kind::all_gather));
  EXPECT_EQ(find_route(cluster, 0, 16).diagnostics()[0].code, "cluster.world");
  EXPECT_EQ(tier_share(cluster, {32, 1}, Kind::all_gather).diagnostics()[0].code, "cluster.world");
}

TEST(GroupShape, OfARankHoldsTheRank) {
  EXPECT_EQ(group_of_rank(8, 1, 13).base, 8);
  EXPECT_EQ(group_of_rank(4, 8, 13).base, 5);   // 5, 13, 21, 29
  EXPECT_EQ(group_of_rank(4, 8, 45).base, 37);  // the second block of 32
}

TEST(TierShare, OfAGroupInOneNodeIsAllNvlink) {
  const TierShare share = *tier_share(cluster_of("64xh100"), {8, 1, 8}, Kind::all_reduce);
  EXPECT_EQ(share.of(Tier::nvlink), 1);
  EXPECT_EQ(share.busiest_of(Tier::nvlink), 1);
  EXPECT_EQ(share.load(Tier::nic), 0);
  EXPECT_EQ(tier_share(cluster_of("8x4090"), {8, 1}, Kind::all_gather)->of(Tier::pcie), 1);
}

TEST(TierShare, OfOneMemberIsNothing) {
  const TierShare share = *tier_share(cluster_of("8xh100"), {1, 1, 3}, Kind::all_gather);
  EXPECT_EQ(share.of(Tier::nvlink), 0);
}

TEST(TierShare, OfARingOverNodesLeavesEachNodeOnce) {
  // 64 members, 8 nodes: 8 of 64 hops leave a node; each of a node's 8 GPUs carries an eighth of its node's hop.
  const TierShare share = *tier_share(cluster_of("64xh100"), {64, 1}, Kind::reduce_scatter);
  EXPECT_DOUBLE_EQ(share.of(Tier::nvlink), 7.0 / 8);
  EXPECT_DOUBLE_EQ(share.of(Tier::nic), 1.0 / 8);
  EXPECT_DOUBLE_EQ(share.load(Tier::nic), 1.0 / 8);
  EXPECT_EQ(share.of(Tier::spine), 0);
}

TEST(TierShare, OfARingAcrossRailsStaysOnTheNic) {
  // One GPU of each node, as expert data parallel groups with ep = 8: every hop crosses the network.
  const TierShare share = *tier_share(cluster_of("64xh100"), {8, 8, 3}, Kind::all_gather);
  EXPECT_EQ(share.of(Tier::nic), 1);
  EXPECT_EQ(share.of(Tier::nvlink), 0);
}

TEST(TierShare, OfARingOverPodsCrossesTheSpineOncePerPod) {
  ClusterSpec cluster = cluster_of("64xh100");
  cluster.nodes_per_leaf = 4;
  // Eight nodes in two pods: of the 8 hops between nodes 2 cross the spine.
  const TierShare share = *tier_share(cluster, {64, 1}, Kind::all_gather);
  EXPECT_DOUBLE_EQ(share.of(Tier::nvlink), 56.0 / 64);
  EXPECT_DOUBLE_EQ(share.of(Tier::nic), 6.0 / 64);
  EXPECT_DOUBLE_EQ(share.of(Tier::spine), 2.0 / 64);
  EXPECT_DOUBLE_EQ(share.busiest_of(Tier::spine), 1.0 / 8);
  EXPECT_DOUBLE_EQ(share.load(Tier::nic), 1.0 / 8);
}

TEST(TierShare, OfUnevenNodesIsTheSmallestNodesForTheNic) {
  // Ranks 7 to 12 of nodes of 8: one member in node 0, five in node 1.  Six hops, two of them between nodes.
  const TierShare share = *tier_share(cluster_of("16xh100"), {6, 1, 7}, Kind::all_gather);
  EXPECT_DOUBLE_EQ(share.of(Tier::nic), 2.0 / 6);
  EXPECT_DOUBLE_EQ(share.load(Tier::nic), 1);
  EXPECT_DOUBLE_EQ(share.busiest_of(Tier::nvlink), 4.0 / 5);
}

TEST(TierShare, OfExpertParallelInsideTheNodeIsNvlink) {
  const TierShare share = *tier_share(cluster_of("64xh100"), {8, 1}, Kind::all_to_all);
  EXPECT_DOUBLE_EQ(share.of(Tier::nvlink), 1);
}

TEST(TierShare, OfExpertParallelAcrossNodesSendsToEachPeerAlike) {
  // 16 experts' ranks on two nodes: 7 of 15 peers in the node, 8 beyond.
  const TierShare share = *tier_share(cluster_of("64xh100"), {16, 1}, Kind::all_to_all);
  EXPECT_DOUBLE_EQ(share.of(Tier::nvlink), 7.0 / 15);
  EXPECT_DOUBLE_EQ(share.of(Tier::nic), 8.0 / 15);
  ClusterSpec pods = cluster_of("64xh100");
  pods.nodes_per_leaf = 4;
  // All 64: 7 in the node, 24 in the pod's other nodes, 32 beyond the spine.
  const TierShare far = *tier_share(pods, {64, 1}, Kind::all_to_all);
  EXPECT_DOUBLE_EQ(far.of(Tier::nvlink), 7.0 / 63);
  EXPECT_DOUBLE_EQ(far.of(Tier::nic), 24.0 / 63);
  EXPECT_DOUBLE_EQ(far.of(Tier::spine), 32.0 / 63);
  EXPECT_DOUBLE_EQ(far.load(Tier::nic), 56.0 / 63);
}

TEST(TierShare, OfABroadcastIsAChain) {
  // 16 members: 15 hops, one of them between the two nodes.
  const TierShare share = *tier_share(cluster_of("16xh100"), {16, 1}, Kind::broadcast);
  EXPECT_DOUBLE_EQ(share.of(Tier::nvlink), 14.0 / 15);
  EXPECT_DOUBLE_EQ(share.of(Tier::nic), 1.0 / 15);
  const TierShare pair = *tier_share(cluster_of("16xh100"), {2, 8}, Kind::broadcast);
  EXPECT_DOUBLE_EQ(pair.of(Tier::nic), 1);
}

TEST(TierShare, SumsToOneAndAgreesWithTheRoutes) {
  ClusterSpec rails = cluster_of("48xh100");
  rails.nodes_per_leaf = 2;
  ClusterSpec leaves = cluster_of("48x4090");
  leaves.nodes_per_leaf = 2;
  for (const ClusterSpec& cluster : {rails, leaves}) {
    for (const GroupShape& group :
         {GroupShape{48, 1}, {6, 8, 5}, {16, 3}, {7, 5, 2}, {12, 4, 1}, {2, 40, 7}, {9, 1, 4}}) {
      TierShare pairwise, ring;
      for (int i = 0; i < group.size; ++i) {
        const auto rank = [&](int member) { return group.base + member % group.size * group.stride; };
        ring.mean[static_cast<std::size_t>(farthest(cluster, rank(i), rank(i + 1)))] += 1.0 / group.size;
        for (int j = 0; j < group.size; ++j) {
          if (i == j) continue;
          pairwise.mean[static_cast<std::size_t>(farthest(cluster, rank(i), rank(j)))] +=
              1.0 / (group.size * (group.size - 1.0));
        }
      }
      const TierShare shares = *tier_share(cluster, group, Kind::all_to_all);
      const TierShare ring_shares = *tier_share(cluster, group, Kind::all_reduce);
      double sum = 0;
      for (std::size_t tier = 0; tier < shares.mean.size(); ++tier) {
        EXPECT_NEAR(shares.mean[tier], pairwise.mean[tier], 1e-12);
        EXPECT_NEAR(ring_shares.mean[tier], ring.mean[tier], 1e-12);
        sum += ring_shares.mean[tier];
      }
      EXPECT_NEAR(sum, 1, 1e-12);
    }
  }
}

TEST(TierShare, AgreesWithACountOfAllPairs) {
  ClusterSpec cluster = cluster_of("8xh100");
  const auto in_node = static_cast<std::size_t>(Tier::nvlink);
  for (const auto& shape : {std::pair(1, 3), {2, 1}, {4, 2}, {8, 3}, {6, 4}}) {
    const int devices = shape.first;
    const int per_leaf = shape.second;
    cluster.devices_per_node = devices;
    cluster.nics_per_node = devices;
    cluster.nodes_per_leaf = per_leaf;
    cluster.nodes = 4000 / devices;
    for (const int size : {2, 3, 8, 16, 37, 96}) {
      for (const int stride : {1, 2, 3, 4, 6, 8, 12, 16, 24}) {
        const GroupShape group{size, stride, (size + stride) % 11};
        const auto tier = [&](int i, int j) {
          const int a = (group.base + i * stride) / devices;
          const int b = (group.base + j * stride) / devices;
          return a == b ? in_node : static_cast<std::size_t>(a / per_leaf == b / per_leaf ? Tier::nic : Tier::spine);
        };
        TierShare pairs, ring, chain;
        for (int i = 0; i < size; ++i) {
          std::array<double, tier_count> sent{};
          for (int j = 0; j < size; ++j) sent[tier(i, j)] += i == j ? 0 : 1.0 / (size - 1);
          for (std::size_t t = 0; t < sent.size(); ++t) {
            pairs.mean[t] += sent[t] / size;
            pairs.busiest[t] = std::max(pairs.busiest[t], sent[t]);
          }
          ring.mean[tier(i, (i + 1) % size)] += 1.0 / size;
          if (i + 1 < size) chain.mean[tier(i, i + 1)] += 1.0 / (size - 1);
        }
        const TierShare a2a = *tier_share(cluster, group, Kind::all_to_all);
        const TierShare all_gather = *tier_share(cluster, group, Kind::all_gather);
        const TierShare broadcast = *tier_share(cluster, group, Kind::broadcast);
        for (std::size_t t = 0; t < tier_count; ++t) {
          EXPECT_NEAR(a2a.mean[t], pairs.mean[t], 1e-12) << devices << " " << size << " " << stride;
          EXPECT_NEAR(a2a.busiest[t], pairs.busiest[t], 1e-12) << devices << " " << size << " " << stride;
          EXPECT_NEAR(all_gather.mean[t], ring.mean[t], 1e-12) << devices << " " << size << " " << stride;
          EXPECT_NEAR(broadcast.mean[t], chain.mean[t], 1e-12) << devices << " " << size << " " << stride;
        }
      }
    }
  }
}

TEST(TierShare, OfAHundredThousandGpusIsQuick) {
  const ClusterSpec cluster = cluster_of("100000xh100");
  const TierShare share = *tier_share(cluster, {100000, 1}, Kind::all_reduce);
  EXPECT_NEAR(share.of(Tier::nvlink), 7.0 / 8, 1e-9);
  EXPECT_NEAR(share.of(Tier::spine), 391.0 / 100000, 1e-9);  // 12,500 nodes in pods of 32
}

// What copy engines serve of the reference runtime: groups of one node under NVLink, sums of two only, few numbers all-reduced.
TEST(ReferenceCarrier, IsTheCopyEnginesWithinANodeUnderNvlink) {
  const ClusterSpec node = cluster_of("8xh100"), nodes = cluster_of("16xh100"), pcie = cluster_of("8x4090");
  constexpr Bytes large{1 << 20}, small{1 << 10};
  const auto of = [&](const ClusterSpec& cluster, int size, int stride, Kind kind, Bytes bytes) {
    return reference_carrier(cluster, group_of_rank(size, stride, 0), kind, bytes);
  };
  EXPECT_EQ(of(node, 2, 1, Kind::all_gather, large), Carrier::copy_engines);
  EXPECT_EQ(of(node, 8, 1, Kind::all_gather, large), Carrier::copy_engines);
  EXPECT_EQ(of(node, 2, 4, Kind::reduce_scatter, large), Carrier::copy_engines);
  EXPECT_EQ(of(node, 4, 1, Kind::reduce_scatter, large), Carrier::kernels);
  EXPECT_EQ(of(node, 8, 1, Kind::all_reduce, small), Carrier::copy_engines);
  EXPECT_EQ(of(node, 2, 1, Kind::all_reduce, large), Carrier::kernels);
  EXPECT_EQ(of(node, 2, 1, Kind::all_to_all, small), Carrier::kernels);
  EXPECT_EQ(of(node, 1, 1, Kind::all_gather, large), Carrier::kernels);
  EXPECT_EQ(of(nodes, 16, 1, Kind::all_gather, large), Carrier::kernels);
  EXPECT_EQ(of(nodes, 2, 8, Kind::all_gather, large), Carrier::kernels) << "a GPU of each node";
  EXPECT_EQ(of(nodes, 8, 1, Kind::all_gather, large), Carrier::copy_engines);
  EXPECT_EQ(of(pcie, 2, 1, Kind::all_gather, large), Carrier::kernels);
}

TEST(BandwidthPerGpu, DividesWhatTheNodeShares) {
  ClusterSpec cluster = cluster_of("16x4090");
  cluster.spine_oversubscription = 2;
  EXPECT_DOUBLE_EQ(bandwidth_per_gpu(cluster, Tier::nic).count, cluster.nic.bandwidth.count / 8);
  EXPECT_DOUBLE_EQ(bandwidth_per_gpu(cluster, Tier::spine).count, cluster.nic.bandwidth.count / 16);
  EXPECT_EQ(bandwidth_per_gpu(cluster, Tier::pcie), cluster.in_node.bandwidth);
  EXPECT_EQ(bandwidth_per_gpu(cluster, Tier::host), cluster.host_link.bandwidth);
  EXPECT_EQ(hop_latency(cluster, Tier::spine), cluster.nic.latency);
}

}  // namespace
}  // namespace plimsoll
