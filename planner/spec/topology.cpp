// The graph of a cluster, and the arithmetic of shares that stands in for it where groups are large.
#include "planner/spec/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <map>

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
    diagnostic.help = "state \"nvlink\" or \"pcie\" with its bandwidth in the cluster's file";
  } else {
    diagnostic.place = place_of(cluster, {"/network/nics_per_node", "/network", "/nodes"});
    diagnostic.message = fmt::format("rank {} (node {}) cannot reach rank {} (node {}): the nodes have no network",
                                     from, from / devices, to, to / devices);
    diagnostic.help = "state \"network\" with \"nics_per_node\" and \"bandwidth\" in the cluster's file";
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

// Where the members of a group stand: node after node, in rank order.
class MemberWalk {
 public:
  MemberWalk(const ClusterSpec& cluster, const GroupShape& group) : cluster_(cluster), group_(group) {}

  // Members with a rank below `rank`: i with base + i stride < rank.
  std::int64_t below(std::int64_t rank) const {
    if (rank <= group_.base) return 0;
    return std::min<std::int64_t>(group_.size, ceil_div(rank - group_.base, group_.stride));
  }
  std::int64_t node_of(std::int64_t member) const {
    return (group_.base + member * group_.stride) / cluster_.devices_per_node;
  }
  std::int64_t pod_of(std::int64_t node) const { return node / cluster_.nodes_per_leaf; }
  std::int64_t members_to_end_of_node(std::int64_t node) const { return below((node + 1) * cluster_.devices_per_node); }
  std::int64_t members_in_pod(std::int64_t pod) const {
    const std::int64_t ranks = std::int64_t{cluster_.nodes_per_leaf} * cluster_.devices_per_node;
    return below((pod + 1) * ranks) - below(pod * ranks);
  }

 private:
  const ClusterSpec& cluster_;
  const GroupShape& group_;
};

// Sums what the members of one node send.
class ShareSum {
 public:
  explicit ShareSum(Tier in_node) : in_node_(in_node) {}
  // `inside + nic + spine` is 1 for each of the node's members that sends, `weight` the node's part of all that is sent.
  void add(double weight, double inside, double nic, double spine) {
    add(in_node_, weight, inside);
    add(Tier::nic, weight, nic);
    add(Tier::spine, weight, spine);
    share_.leaving = std::max(share_.leaving, nic + spine);
  }
  const TierShare& share() const { return share_; }

 private:
  void add(Tier tier, double weight, double part) {
    const auto index = static_cast<std::size_t>(tier);
    share_.mean[index] += weight * part;
    share_.busiest[index] = std::max(share_.busiest[index], part);
  }
  Tier in_node_;
  TierShare share_;
};

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
  const std::int64_t n = group.size;
  if (n <= 1) return TierShare{};

  const MemberWalk walk(cluster, group);
  const std::int64_t first_node = walk.node_of(0);
  const bool one_node = first_node == walk.node_of(n - 1);
  if (!one_node && cluster.nics_per_node == 0) {
    const std::int64_t out = walk.members_to_end_of_node(first_node);
    return unreachable(cluster, static_cast<int>(group.base + (out - 1) * group.stride),
                       static_cast<int>(group.base + out * group.stride));
  }
  ShareSum sum(cluster.in_node.tier);
  for (std::int64_t member = 0; member < n;) {
    const std::int64_t node = walk.node_of(member);
    const std::int64_t end = walk.members_to_end_of_node(node);
    const auto here = static_cast<double>(end - member);
    if (here > 1 && cluster.in_node.bandwidth.count <= 0) {
      return unreachable(cluster, static_cast<int>(group.base + member * group.stride),
                         static_cast<int>(group.base + (member + 1) * group.stride));
    }
    const auto all = static_cast<double>(n);
    if (kind == CollectiveKind::all_to_all) {
      const auto in_pod = static_cast<double>(walk.members_in_pod(walk.pod_of(node)));
      sum.add(here / all, (here - 1) / (all - 1), (in_pod - here) / (all - 1), (all - in_pod) / (all - 1));
    } else {
      // A chain ends at its last member, which sends nothing; a ring goes on to the first.
      const bool ends_here = kind == CollectiveKind::broadcast && end == n;
      const double senders = ends_here ? here - 1 : here;
      const double leaving = one_node || ends_here ? 0.0 : 1.0 / here;
      const bool far = walk.pod_of(walk.node_of(end % n)) != walk.pod_of(node);
      const double edges = kind == CollectiveKind::broadcast ? all - 1 : all;
      if (senders > 0) sum.add(senders / edges, 1 - leaving, far ? 0 : leaving, far ? leaving : 0);
    }
    member = end;
  }
  return sum.share();
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
