// The graph of a cluster, and the arithmetic of shares that stands in for it where groups are large.
#include "planner/spec/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <map>
#include <optional>
#include <utility>

namespace plimsoll {
namespace {

struct VertexName {
  std::string name;
};
struct EdgeLink {
  Tier tier = Tier::nvlink;
  BytesPerSecond bandwidth;
  Seconds latency;
  int weight = 1;
};
using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, VertexName, EdgeLink>;
using Vertex = boost::graph_traits<Graph>::vertex_descriptor;

// Near tiers first: no detour over near links is dearer than one link of the next tier.
int weight_of(Tier tier) {
  switch (tier) {
    case Tier::nvlink:
    case Tier::host: return 1;
    case Tier::pcie: return 2;
    case Tier::nic: return 16;
    case Tier::spine: return 64;
  }
  return 1;
}

// The part of the cluster that some of its nodes use.
class PartialGraph {
 public:
  explicit PartialGraph(const ClusterSpec& cluster) : cluster_(cluster) {}

  void add_node(int node);
  std::vector<Link> shortest(int from, int to);

 private:
  Vertex vertex(const std::string& name) {
    const auto [place, added] = vertices_.try_emplace(name, 0);
    if (added) place->second = boost::add_vertex(VertexName{name}, graph_);
    return place->second;
  }
  void connect(const std::string& a, const std::string& b, Tier tier, BytesPerSecond bandwidth, Seconds latency) {
    boost::add_edge(vertex(a), vertex(b), EdgeLink{tier, bandwidth, latency, weight_of(tier)}, graph_);
  }
  static std::string gpu(int rank) { return fmt::format("gpu {}", rank); }
  void add_nic(int node, int nic);

  const ClusterSpec& cluster_;
  Graph graph_;
  std::map<std::string, Vertex> vertices_;
};

void PartialGraph::add_node(int node) {
  const int devices = cluster_.devices_per_node;
  const bool switched = cluster_.in_node.tier == Tier::nvlink;
  const std::string fabric = fmt::format("{} of node {}", switched ? "nvswitch" : "host", node);
  for (int device = 0; device < devices; ++device) {
    const std::string name = gpu(node * devices + device);
    vertex(name);
    if (cluster_.in_node.bandwidth.count > 0) {
      connect(name, fabric, cluster_.in_node.tier, cluster_.in_node.bandwidth, cluster_.in_node.latency / 2.0);
    }
  }
  for (int nic = 0; nic < cluster_.nics_per_node; ++nic) add_nic(node, nic);
}

// A NIC with the GPUs that it serves (several NICs may serve one GPU), up to the spine.
void PartialGraph::add_nic(int node, int nic) {
  const int devices = cluster_.devices_per_node;
  const int nics = cluster_.nics_per_node;
  const int pod = node / cluster_.nodes_per_leaf;
  const std::string name = fmt::format("nic {} of node {}", nic, node);
  const std::string leaf =
      cluster_.rail_optimized ? fmt::format("leaf {} of pod {}", nic, pod) : fmt::format("leaf of pod {}", pod);
  for (int device = 0; device < devices; ++device) {
    const bool serves = nics <= devices ? device * nics / devices == nic : nic * devices / nics == device;
    if (serves) connect(gpu(node * devices + device), name, Tier::pcie, cluster_.host_link.bandwidth, Seconds(0));
  }
  const bool new_leaf = vertices_.find(leaf) == vertices_.end();
  connect(name, leaf, Tier::nic, cluster_.nic.bandwidth, cluster_.nic.latency / 2.0);
  if (new_leaf) {
    const double nics_per_leaf = cluster_.nodes_per_leaf * (cluster_.rail_optimized ? 1.0 : nics);
    const BytesPerSecond uplinks = cluster_.nic.bandwidth * (nics_per_leaf / cluster_.spine_oversubscription);
    connect(leaf, "spine", Tier::spine, uplinks, Seconds(0));
  }
}

// Empty if there is no way.
std::vector<Link> PartialGraph::shortest(int from, int to) {
  const Vertex start = vertex(gpu(from));
  std::vector<Vertex> previous(boost::num_vertices(graph_));
  boost::dijkstra_shortest_paths(graph_, start,
                                 boost::weight_map(boost::get(&EdgeLink::weight, graph_))
                                     .predecessor_map(boost::make_iterator_property_map(
                                         previous.begin(), boost::get(boost::vertex_index, graph_))));
  std::vector<Link> route;
  for (Vertex at = vertex(gpu(to)); at != start; at = previous[at]) {
    if (previous[at] == at) return {};
    const EdgeLink& link = graph_[boost::edge(previous[at], at, graph_).first];
    route.push_back({graph_[previous[at]].name, graph_[at].name, link.tier, link.bandwidth, link.latency});
  }
  std::reverse(route.begin(), route.end());
  return route;
}

// The place in the cluster's file that decides whether ranks can reach each other.
Place place_of(const ClusterSpec& cluster, std::initializer_list<const char*> pointers) {
  for (const char* pointer : pointers) {
    const auto found = cluster.places.find(pointer);
    if (found != cluster.places.end()) return found->second;
  }
  return {};
}

Diagnostic unreachable(const ClusterSpec& cluster, int from, int to) {
  const int devices = cluster.devices_per_node;
  Diagnostic diagnostic;
  diagnostic.code = "cluster.unreachable";
  if (from / devices == to / devices) {
    diagnostic.place = place_of(cluster, {"/nvlink", "/pcie", "/devices_per_node"});
    diagnostic.message =
        fmt::format("rank {} cannot reach rank {}: no link joins the GPUs of node {}", from, to, from / devices);
    diagnostic.help = R"(state "nvlink" or "pcie" with its bandwidth in the cluster's file)";
  } else {
    diagnostic.place = place_of(cluster, {"/network/nics_per_node", "/network", "/nodes"});
    diagnostic.message = fmt::format("rank {} (node {}) cannot reach rank {} (node {}): the nodes have no network",
                                     from, from / devices, to, to / devices);
    diagnostic.help = R"(state "network" with "nics_per_node" and "bandwidth" in the cluster's file)";
  }
  return diagnostic;
}

Diagnostic no_such_rank(const ClusterSpec& cluster, std::int64_t rank) {
  Diagnostic diagnostic;
  diagnostic.code = "cluster.world";
  diagnostic.place = place_of(cluster, {"/nodes", "/devices_per_node", "/device"});
  diagnostic.message = fmt::format("rank {} has no GPU: {} has {}", rank, cluster.name, cluster.world());
  return diagnostic;
}

// Sums the shares of a group's members, node by node in rank order.  Nodes with equally many members in a row are one step,
// and so are pods, so that the cost does not grow with the group: strides divide a node's GPUs or are a multiple of them, as
// a rule.
class ShareSum {
 public:
  ShareSum(const ClusterSpec& cluster, const GroupShape& group, CollectiveKind kind)
      : in_node_(static_cast<std::size_t>(cluster.in_node.tier)),
        kind_(kind),
        base_(group.base),
        stride_(group.stride),
        size_(group.size),
        node_ranks_(cluster.devices_per_node),
        pod_ranks_(node_ranks_ * cluster.nodes_per_leaf) {}

  TierShare sum() {
    one_node_ = end_of_block(0, node_ranks_) == size_;
    one_pod_ = end_of_block(0, pod_ranks_) == size_;
    for (std::int64_t member = 0; member < size_;) {
      const Run pods = run_from(member, 0, size_, pod_ranks_);
      add_pod(member, pods.members, static_cast<double>(pods.count));
      member += pods.members * pods.count;
    }
    return share_;
  }

 private:
  struct Run {
    std::int64_t members;  // of one node or pod
    std::int64_t count;    // how many of them in a row
  };

  // The first member behind the node (pod) of `block` ranks in which this one stands: i with base + i stride >= its end.
  std::int64_t end_of_block(std::int64_t member, std::int64_t block) const {
    const std::int64_t end = ((base_ + member * stride_) / block + 1) * block;
    return std::min(size_, ceil_div(end - base_, stride_));
  }

  // The nodes (pods) like that of `member` in a row, among members [begin, end).  The first may be cut off and the last has
  // another successor, so they stand alone.
  Run run_from(std::int64_t member, std::int64_t begin, std::int64_t end, std::int64_t block) const {
    const std::int64_t members = end_of_block(member, block) - member;
    const bool regular = block % stride_ == 0 || stride_ % block == 0;
    if (!regular || member == begin) return {members, 1};
    return {members, std::max<std::int64_t>(1, (end - member - 1) / members)};
  }

  // Members [begin, begin + members) are those of one pod; `pods` such pods are summed.
  void add_pod(std::int64_t begin, std::int64_t members, double pods) {
    const std::int64_t end = begin + members;
    for (std::int64_t member = begin; member < end;) {
      const Run nodes = run_from(member, begin, end, node_ranks_);
      const auto here = static_cast<double>(nodes.members);
      const auto times = pods * static_cast<double>(nodes.count);
      member += nodes.members * nodes.count;
      if (kind_ == CollectiveKind::all_to_all) {
        add_pairs(here, static_cast<double>(members), times);
      } else {
        add_chain(here, member == end, member == size_, times);
      }
    }
  }

  // Each of the `here` members of a node sends an equal part to every other member.
  void add_pairs(double here, double in_pod, double times) {
    const auto others = static_cast<double>(size_ - 1);
    const auto all = static_cast<double>(size_);
    add(times * here / all, (here - 1) / others, (in_pod - here) / others, (all - in_pod) / others);
  }

  // The `here` members of a node form a piece of a ring, or of a chain, whose last member sends nothing.
  void add_chain(double here, bool last_of_pod, bool last_of_all, double times) {
    const bool chain = kind_ == CollectiveKind::broadcast;
    const bool ends = chain && last_of_all;
    const double senders = ends ? here - 1 : here;
    if (senders == 0) return;
    const double leaving = one_node_ || ends ? 0.0 : 1 / here;
    const bool far = last_of_pod && !one_pod_;
    const auto edges = static_cast<double>(chain ? size_ - 1 : size_);
    add(times * senders / edges, 1 - leaving, far ? 0 : leaving, far ? leaving : 0);
  }

  // `weight` is the part of all bytes that these members send; the others say over which tier they send them.
  void add(double weight, double inside, double nic, double spine) {
    const auto add_tier = [&](std::size_t tier, double part) {
      share_.mean[tier] += weight * part;
      share_.busiest[tier] = std::max(share_.busiest[tier], part);
    };
    add_tier(in_node_, inside);
    add_tier(static_cast<std::size_t>(Tier::nic), nic);
    add_tier(static_cast<std::size_t>(Tier::spine), spine);
    share_.leaving = std::max(share_.leaving, nic + spine);
  }

  std::size_t in_node_;
  CollectiveKind kind_;
  std::int64_t base_, stride_, size_, node_ranks_, pod_ranks_;
  bool one_node_ = true, one_pod_ = true;
  TierShare share_;
};

// Two members that follow each other and cannot reach each other, if there are any.
std::optional<std::pair<int, int>> unreachable_members(const ClusterSpec& cluster, const GroupShape& group) {
  const int devices = cluster.devices_per_node;
  const bool inside = cluster.in_node.bandwidth.count > 0;
  const bool outside = cluster.nics_per_node > 0;
  if (inside && outside) return std::nullopt;
  for (int member = 1; member < group.size; ++member) {
    const int rank = group.base + member * group.stride;
    const int previous = rank - group.stride;
    if (rank / devices == previous / devices ? !inside : !outside) return std::pair(previous, rank);
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<Link>> find_route(const ClusterSpec& cluster, int from, int to) {
  for (const int rank : {from, to}) {
    if (rank < 0 || rank >= cluster.world()) return no_such_rank(cluster, rank);
  }
  if (from == to) return std::vector<Link>{};
  PartialGraph graph(cluster);
  const int node = from / cluster.devices_per_node;
  const int other = to / cluster.devices_per_node;
  graph.add_node(node);
  if (other != node) graph.add_node(other);
  std::vector<Link> route = graph.shortest(from, to);
  if (route.empty()) return unreachable(cluster, from, to);
  return route;
}

GroupShape group_of_rank(int size, int stride, int rank) {
  const int block = size * stride;
  return {size, stride, rank / block * block + rank % stride};
}

Result<TierShare> tier_share(const ClusterSpec& cluster, const GroupShape& group, CollectiveKind kind) {
  const std::int64_t last = group.base + std::int64_t{group.size - 1} * group.stride;
  if (last >= cluster.world()) return no_such_rank(cluster, last);
  if (group.size <= 1) return TierShare{};
  if (const auto pair = unreachable_members(cluster, group)) return unreachable(cluster, pair->first, pair->second);
  return ShareSum(cluster, group, kind).sum();
}

Carrier reference_carrier(const ClusterSpec& cluster, const GroupShape& group, CollectiveKind kind, Bytes full_size) {
  if (group.size <= 1) return Carrier::kernels;
  const auto shares = tier_share(cluster, group, kind);
  if (!shares || shares->of(Tier::nvlink) < 1) return Carrier::kernels;
  const bool served = kind == CollectiveKind::all_gather ||
                      (kind == CollectiveKind::reduce_scatter && group.size == 2) ||
                      (kind == CollectiveKind::all_reduce && full_size <= most_copied_sum);
  return served ? Carrier::copy_engines : Carrier::kernels;
}

BytesPerSecond bandwidth_per_gpu(const ClusterSpec& cluster, Tier tier) {
  const double nics_per_gpu = static_cast<double>(cluster.nics_per_node) / cluster.devices_per_node;
  switch (tier) {
    case Tier::nvlink:
    case Tier::pcie: return cluster.in_node.bandwidth;
    case Tier::nic: return cluster.nic.bandwidth * nics_per_gpu;
    case Tier::spine: return cluster.nic.bandwidth * (nics_per_gpu / cluster.spine_oversubscription);
    case Tier::host: return cluster.host_link.bandwidth;
  }
  return {};
}

Seconds hop_latency(const ClusterSpec& cluster, Tier tier) {
  switch (tier) {
    case Tier::nvlink:
    case Tier::pcie: return cluster.in_node.latency;
    case Tier::nic:
    case Tier::spine: return cluster.nic.latency;
    case Tier::host: return cluster.host_link.latency;
  }
  return {};
}

}  // namespace plimsoll
