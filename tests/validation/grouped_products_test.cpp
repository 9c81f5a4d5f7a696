// Grouped products of PyTorch's on H200 (tests/data/grouped_products.json) beside the calibration's rule: widths that no tile
// divides, few and many groups, balanced and skewed rows, all three layouts.  The rule is fitted to one half of what was
// measured; the other half is predicted.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "planner/spec/price_rules.hpp"
#include "planner/spec/read_calibration.hpp"
#include "planner/spec/read_cluster.hpp"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

struct Product {
  std::string layout;
  GroupRows rows;
  std::int64_t n = 0, k = 0;
  double measured_s = 0;
};

std::vector<Product> products(const char* half) {
  std::ifstream file(std::string(PLIMSOLL_SOURCE_DIR) + "/tests/data/grouped_products.json");
  std::vector<Product> result;
  const Json table = Json::parse(file);
  for (const Json& row : table.at(half)) {
    Product product{row.at(0), GroupRows{}, row.at(3), row.at(4), 1e-6 * row.at(5).get<double>()};
    if (row.at(2).is_array())
      product.rows.rows = row.at(2).get<std::vector<std::int64_t>>();
    else
      product.rows.rows.assign(row.at(1).get<std::size_t>(), row.at(2).get<std::int64_t>());
    result.push_back(std::move(product));
  }
  return result;
}

/// log(predicted / measured)
double error_of(const Product& p, const GroupedGemmPrice& price) {
  const auto groups = static_cast<std::int64_t>(p.rows.rows.size());
  const auto rows = std::accumulate(p.rows.rows.begin(), p.rows.rows.end(), std::int64_t{0});
  const GroupedTiles tiles =
      p.layout == "weight_gradient" ? tiles_of_grouped_gradient(p.rows, p.n, p.k) : tiles_of_grouped(p.rows, p.n, p.k);
  const double bytes = 2 * static_cast<double>(rows * p.n + rows * p.k + groups * p.n * p.k);
  const double seconds = tiled_grouped_seconds(price, 132, groups, tiles, bytes) - price.prepare_s;
  return std::log(seconds / p.measured_s);
}

struct Errors {
  int n = 0;
  double sum = 0, bias = 0, worst = 0;
  void add(double error) {
    ++n;
    sum += std::abs(error);
    bias += error;
    worst = std::max(worst, std::abs(error));
  }
};

GroupedGemmPrice measured_price() { return load_calibration("h200", *load_cluster("1xh200"))->grouped_gemm; }

TEST(GroupedProducts, TheHalfThatTheRuleWasNotFittedTo) {
  const GroupedGemmPrice price = measured_price();
  std::map<std::string, Errors> by_layout;
  Errors all, odd_widths;
  for (const Product& product : products("held_out")) {
    const double error = error_of(product, price);
    all.add(error);
    by_layout[product.layout].add(error);
    if (product.n % 256 != 0 || product.k % 256 != 0) odd_widths.add(error);
  }
  // Reached on 2026-11-30, rounded up.
  EXPECT_EQ(all.n, 600);
  EXPECT_LE(all.sum / all.n, 0.040);
  EXPECT_LE(std::abs(all.bias / all.n), 0.010);
  EXPECT_LE(all.worst, 0.35);
  EXPECT_GT(odd_widths.n, 250);
  EXPECT_LE(odd_widths.sum / odd_widths.n, 0.045);
  for (const auto& [layout, errors] : by_layout) {
    EXPECT_LE(errors.sum / errors.n, 0.045) << layout;
    EXPECT_LE(std::abs(errors.bias / errors.n), 0.015) << layout;
  }
}

TEST(GroupedProducts, BothHalvesAreMetAlike) {
  const GroupedGemmPrice price = measured_price();
  Errors fitted, held_out;
  for (const Product& product : products("fitted")) fitted.add(error_of(product, price));
  for (const Product& product : products("held_out")) held_out.add(error_of(product, price));
  EXPECT_NEAR(fitted.sum / fitted.n, held_out.sum / held_out.n, 0.01);
}

}  // namespace
}  // namespace plimsoll
