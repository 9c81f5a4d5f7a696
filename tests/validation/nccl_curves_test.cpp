// Does the form of the calibration's collectives, t = min over pieces of latency + S / bandwidth, carry over from measured
// sizes to others?  Published nccl-tests logs (tests/data/nccl_curves.json): every second size is fitted, the others predicted.
//
// The fit: bandwidth rises with size, so that time over size is concave, and its concave hull is the least such form above
// the points.  Each edge of the hull is a piece: its slope 1 / bandwidth, its intercept the latency.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/spec/document.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll {
namespace {

struct Point {
  double bytes = 0, seconds = 0;
};

struct Curve {
  std::string name;
  std::vector<Point> points;  ///< by size
};

double number(const Node& node) {
  return node.kind() == Node::Kind::integer ? static_cast<double>(node.as_int()) : node.as_double();
}

std::vector<Curve> published() {
  const auto document = parse_document(load_source(std::string(PLIMSOLL_SOURCE_DIR) + "/tests/data/nccl_curves.json"));
  std::vector<Curve> curves;
  if (!document) return curves;
  for (const Node* entry : document->root().find("curves")->items()) {
    Curve& curve = curves.emplace_back();
    curve.name = fmt::format("{} on {} GPUs, {}", entry->find("collective")->as_string(), number(*entry->find("gpus")),
                             entry->find("source")->as_string());
    for (const Node* point : entry->find("points")->items())
      curve.points.push_back({number(*point->items()[0]), number(*point->items()[1]) * 1e-6});
  }
  return curves;
}

std::vector<CollectivePrice::Piece> fitted(const std::vector<Point>& points) {
  std::vector<Point> hull;
  for (const Point& p : points) {
    const auto below = [&] {
      const Point &a = hull[hull.size() - 2], &b = hull.back();
      return (b.seconds - a.seconds) * (p.bytes - b.bytes) < (p.seconds - b.seconds) * (b.bytes - a.bytes);
    };
    while (hull.size() >= 2 && below()) hull.pop_back();
    hull.push_back(p);
  }
  std::vector<CollectivePrice::Piece> pieces;
  for (std::size_t i = 1; i < hull.size(); ++i) {
    const Point &a = hull[i - 1], &b = hull[i];
    const double slope = std::max((b.seconds - a.seconds) / (b.bytes - a.bytes), 1e-18);
    pieces.push_back({a.seconds - slope * a.bytes, 1 / slope});
  }
  return pieces;
}

TEST(NcclCurves, HalfOfTheSizesPredictTheOtherHalfWithinTenPercentInTheMean) {
  double sum = 0;
  int count = 0;
  const std::vector<Curve> curves = published();
  EXPECT_EQ(curves.size(), 18U);
  for (const Curve& curve : curves) {
    std::vector<Point> known, asked;
    for (std::size_t i = 0; i < curve.points.size(); ++i)
      (i % 2 == 0 || i + 1 == curve.points.size() ? known : asked).push_back(curve.points[i]);
    const auto pieces = fitted(known);
    double of_curve = 0;
    for (const Point& point : asked) of_curve += std::abs(collective_seconds(pieces, point.bytes) / point.seconds - 1);
    sum += of_curve;
    count += static_cast<int>(asked.size());
    // A single curve may jump where its algorithm changes: half as much again is allowed to one.
    EXPECT_LT(of_curve / static_cast<double>(asked.size()), 0.15) << curve.name;
  }
  EXPECT_EQ(count, 145);
  EXPECT_LT(sum / count, 0.10);
  RecordProperty("mean_error_percent", fmt::format("{:.1f}", 100 * sum / count));
}

}  // namespace
}  // namespace plimsoll
