// How long does a collective of one group take alone, as its bytes grow?  By the calibration's curve of as many ranks over the
// same farthest tier; else by the nearest such curve, whose latency goes with the steps of a ring (half of it; all-to-all: none)
// and whose bandwidth with what a member sends of each byte; else by the links' published bandwidth and a hop's latency a step.
// The simulator prices with it, and the search bounds with it what no program was laid out for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/spec/calibration.hpp"
#include "planner/spec/topology.hpp"

namespace plimsoll {

/// What a member sends of each byte of the full size (planner/spec/collective.hpp); 1 for a broadcast.
double sent_per_byte(CollectiveKind kind, int ranks);

/// A straight line: seconds = latency_s + bytes * s_per_byte.
struct LeastSeconds {
  double latency_s = 0, s_per_byte = 0;
};

struct CollectiveCurve {
  TierShare shares;
  Tier farthest = Tier::nvlink;                ///< that the group crosses
  std::vector<CollectivePrice::Piece> pieces;  ///< empty where the group's own curve is known
  const CollectivePrice* own = nullptr;        ///< it, of the calibration given
  Evidence evidence = Evidence::assumed;

  /// @param bytes full size S of nccl-tests
  double seconds(double bytes) const;
  /// Nowhere above seconds().
  LeastSeconds least() const;
};

/// Nothing where the group has one member or its members cannot reach each other.
/// @param prices of a calibration; must outlive the curve
std::optional<CollectiveCurve> collective_curve(std::span<const CollectivePrice> prices, const ClusterSpec& cluster,
                                                CollectiveKind kind, const GroupShape& group);

/// Published bandwidth alone, all of it and no latency.
LeastSeconds least_by_published_links(const ClusterSpec& cluster, CollectiveKind kind, const GroupShape& group);

}  // namespace plimsoll
