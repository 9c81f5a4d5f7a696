// Over which links does a collective send its bytes?  The cluster as a graph (GPUs, NVSwitches or PCIe hosts, NICs, rail or
// leaf switches, spine) with routes between ranks; and, for process groups of any size, the share of a member's bytes that
// goes over each tier, by arithmetic on node numbers.
//
// A byte belongs to the farthest tier that it crosses: nvlink or pcie inside a node, nic between nodes under the same
// switches, spine beyond.  So the shares of a member sum to 1, and what a NIC carries is the sum of nic and spine (load()).
//
// Rings (all-gather, reduce-scatter, all-reduce, broadcast as a chain): members follow each other in rank order, which
// visits each node once.  NCCL lays several rings over the members of a node, so that each of them is equally often the one
// that sends out of the node: with m members in a node each sends 1/m of its bytes out.  All-to-all: an equal part to each
// of the n-1 others, n-m of which are in other nodes.
// On rails, NIC i of every node hangs on switch i: a ring leaves and enters on the same rail, and all-to-all traffic to
// another rail first moves over NVLink to the GPU on that rail (NCCL's PXN), a relay which is not counted here.
// Source: NCCL 2.28 (graph search, enqueue); nccl-tests for what counts as sent.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"
#include "planner/spec/cluster.hpp"
#include "planner/spec/collective.hpp"

namespace plimsoll {

/// One link on a route.
struct Link {
  std::string from, to;      ///< "gpu 3", "nvswitch of node 0", "nic 3 of node 0", "leaf 3 of pod 0", "spine"
  Tier tier = Tier::nvlink;  ///< between GPU and NIC: pcie
  BytesPerSecond bandwidth;  ///< one direction; leaf to spine: of all its nodes together
  Seconds latency;           ///< a route's links of one tier sum to that of the tier's hop
};

/// The links from one rank's GPU to another's, nearest tiers first choice; empty for a rank to itself.
/// Errors: cluster.unreachable, cluster.world (no such rank), both naming the ranks.
Result<std::vector<Link>> find_route(const ClusterSpec& cluster, int from, int to);

/// Ranks base, base + stride, base + 2 stride, ...: `size` of them.
struct GroupShape {
  int size = 1;
  int stride = 1;
  int base = 0;
};

/// The group of that size and stride to which a rank belongs, where such groups tile the ranks.
GroupShape group_of_rank(int size, int stride, int rank);

inline constexpr int tier_count = 5;

/// Share of the bytes a member sends, by the farthest tier they cross; indexed by Tier.
struct TierShare {
  std::array<double, tier_count> mean{};     ///< over the members; sums to 1, or is all 0 for a group of one
  std::array<double, tier_count> busiest{};  ///< of the member that sends most over that tier
  double leaving = 0;                        ///< out of the node (nic and spine), of the member that sends most there
  double of(Tier tier) const { return mean[static_cast<std::size_t>(tier)]; }
  double busiest_of(Tier tier) const { return busiest[static_cast<std::size_t>(tier)]; }
  /// Share of its bytes that the busiest member sends through a link of that tier: nic includes what goes on to the spine.
  double load(Tier tier) const { return tier == Tier::nic ? leaving : busiest_of(tier); }
};

/// Cost: a few steps, whatever the size of the group, where the stride divides a node's GPUs or is a multiple of them; else
/// one step per node that the group touches.
/// Errors: cluster.unreachable, cluster.world, naming the ranks.
Result<TierShare> tier_share(const ClusterSpec& cluster, const GroupShape& group, CollectiveKind kind);

/// All-reduces of at most so much come over whole, where copy engines serve them; more goes by NCCL's ring, which moves 2/n of that.
/// So little that its bytes do not count: from 7 peers at 390 GB/s 1.2 us, of 23 (price_rules.hpp); a count for each of 256
/// experts in 63 layers.
inline constexpr Bytes most_copied_sum{std::int64_t{64} << 10};

/// How the reference runtime moves a collective.  Copy engines serve groups within one node whose GPUs NVLink connects: all-gathers;
/// reduce-scatters of two members, one part each; all-reduces of a few numbers, which come over whole.
/// @param full_size as nccl-tests defines it
Carrier reference_carrier(const ClusterSpec& cluster, const GroupShape& group, CollectiveKind kind, Bytes full_size);

/// What one GPU can send over a tier while all GPUs of its node do: its part of the node's NICs; of the spine also divided
/// by the oversubscription; of nvlink, pcie and host the link's own bandwidth.
BytesPerSecond bandwidth_per_gpu(const ClusterSpec& cluster, Tier tier);

/// Latency of one hop over a tier.
Seconds hop_latency(const ClusterSpec& cluster, Tier tier);

}  // namespace plimsoll
