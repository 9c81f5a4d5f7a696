// The curve of a group's collectives (planner/spec/collective_curve.hpp).
#include "planner/spec/collective_curve.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "planner/spec/price_rules.hpp"

namespace plimsoll {
namespace {

constexpr std::array farthest_first{Tier::spine, Tier::nic, Tier::pcie, Tier::nvlink};

/// Steps of a ring.
double steps(CollectiveKind kind, int ranks) {
  return kind == CollectiveKind::all_reduce ? 2.0 * (ranks - 1) : ranks - 1.0;
}

Tier farthest_of(const TierShare& shares) {
  for (const Tier tier : farthest_first)
    if (shares.of(tier) > 0) return tier;
  return Tier::nvlink;
}

/// Of a byte of the full size, over the link that it keeps busiest.
double seconds_per_byte(const ClusterSpec& cluster, const TierShare& shares, CollectiveKind kind, int ranks) {
  double slowest = 0;
  for (const Tier tier : farthest_first) {
    const double bandwidth = bandwidth_per_gpu(cluster, tier).count;
    if (bandwidth > 0) slowest = std::max(slowest, sent_per_byte(kind, ranks) * shares.load(tier) / bandwidth);
  }
  return slowest;
}

const CollectivePrice* nearest_price(std::span<const CollectivePrice> prices, CollectiveKind kind, Tier tier,
                                     int ranks) {
  const CollectivePrice* nearest = nullptr;
  for (const CollectivePrice& price : prices) {
    if (price.kind != kind || price.tier != tier) continue;
    if (nearest == nullptr || std::abs(price.ranks - ranks) < std::abs(nearest->ranks - ranks)) nearest = &price;
  }
  return nearest;
}

/// From the ranks that were measured to others.
std::vector<CollectivePrice::Piece> scaled(const CollectivePrice& price, int ranks) {
  const double longer = steps(price.kind, ranks) / steps(price.kind, price.ranks);
  const double wider = sent_per_byte(price.kind, ranks) / sent_per_byte(price.kind, price.ranks);
  std::vector<CollectivePrice::Piece> pieces = price.pieces;
  for (auto& piece : pieces) {
    piece.latency_s *= price.kind == CollectiveKind::all_to_all ? 1 : 0.5 + 0.5 * longer;
    piece.bytes_per_s /= wider;
  }
  return pieces;
}

}  // namespace

double sent_per_byte(CollectiveKind kind, int ranks) {
  const double part = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case CollectiveKind::all_reduce: return 2 * part;
    case CollectiveKind::broadcast: return 1;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all: return part;
  }
  return part;
}

double CollectiveCurve::seconds(double bytes) const {
  return own != nullptr ? collective_seconds(*own, bytes) : collective_seconds(pieces, bytes);
}

LeastSeconds CollectiveCurve::least() const {
  constexpr double unlimited = std::numeric_limits<double>::infinity();
  const auto& rising = own != nullptr ? own->pieces : pieces;
  LeastSeconds least{unlimited, unlimited};
  for (const CollectivePrice::Piece& piece : rising) {
    least.latency_s = std::min(least.latency_s, piece.latency_s);
    least.s_per_byte = std::min(least.s_per_byte, 1 / piece.bytes_per_s);
  }
  if (rising.empty()) least = {};
  if (own == nullptr || own->points.empty()) return least;
  // Between points the seconds of a byte rise or fall all the way; below the first they fall, and beyond the last they fall
  // towards those of the pieces through it.
  const auto& [last_bytes, last_s] = own->points.back();
  const double through_last = last_s / collective_seconds(own->pieces, last_bytes);
  least = {0, least.s_per_byte * (through_last > 0 ? through_last : 1)};
  for (const auto& [bytes, seconds] : own->points) least.s_per_byte = std::min(least.s_per_byte, seconds / bytes);
  return least;
}

std::optional<CollectiveCurve> collective_curve(std::span<const CollectivePrice> prices, const ClusterSpec& cluster,
                                                CollectiveKind kind, const GroupShape& group) {
  if (group.size <= 1) return std::nullopt;
  const auto shares = tier_share(cluster, group, kind);
  if (!shares) return std::nullopt;
  CollectiveCurve curve;
  curve.shares = *shares;
  curve.farthest = farthest_of(*shares);
  if (const CollectivePrice* nearest = nearest_price(prices, kind, curve.farthest, group.size)) {
    if (nearest->ranks == group.size) {
      curve.own = nearest;
      curve.evidence = nearest->provenance.evidence;
    } else {
      curve.pieces = scaled(*nearest, group.size);
      curve.evidence = Evidence::extrapolated;
    }
    return curve;
  }
  constexpr double launch_s = 8e-6;
  const double slowest = seconds_per_byte(cluster, *shares, kind, group.size) / share_of_links_without_curve;
  curve.pieces.push_back({launch_s + steps(kind, group.size) * hop_latency(cluster, curve.farthest).count,
                          slowest > 0 ? 1 / slowest : std::numeric_limits<double>::infinity()});
  return curve;
}

LeastSeconds least_by_published_links(const ClusterSpec& cluster, CollectiveKind kind, const GroupShape& group) {
  if (group.size <= 1) return {};
  const auto shares = tier_share(cluster, group, kind);
  return shares ? LeastSeconds{0, seconds_per_byte(cluster, *shares, kind, group.size)} : LeastSeconds{};
}

}  // namespace plimsoll
