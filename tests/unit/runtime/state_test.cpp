// What do weights start with, and does it depend on who computes them?
#include "runtime/core/state.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/unit/runtime/world.hpp"

namespace plimsoll::testing {
namespace {

std::vector<float> values_of(std::uint64_t seed, std::string_view name, std::int64_t first, std::size_t size) {
  std::vector<float> values(size);
  initial_values(seed, name, 0.02, first, values);
  return values;
}

TEST(InitialValues, AreTheSameHoweverTheyAreCut) {
  const std::vector<float> whole = values_of(7, "w", 0, 1000);
  for (const std::int64_t first : {0, 1, 2, 333, 998, 999}) {
    const auto from = static_cast<std::size_t>(first);
    EXPECT_EQ(values_of(7, "w", first, 1000 - from), std::vector<float>(whole.begin() + first, whole.end())) << first;
    EXPECT_EQ(values_of(7, "w", first, 1), std::vector<float>(1, whole[from])) << first;
  }
}

TEST(InitialValues, DependOnSeedAndName) {
  EXPECT_NE(values_of(7, "w", 0, 4), values_of(8, "w", 0, 4));
  EXPECT_NE(values_of(7, "w", 0, 4), values_of(7, "v", 0, 4));
  std::vector<float> ones(3);
  initial_values(7, "norm", 0, 5, ones);
  EXPECT_EQ(ones, std::vector<float>(3, 1.0F));
}

TEST(InitialValues, AreNormal) {
  constexpr std::size_t n = 1000000;
  const std::vector<float> values = values_of(1, "model.embed_tokens.weight", 0, n);
  std::array<double, 4> moments{};
  double neighbours = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(values[i]) / 0.02;
    for (std::size_t k = 0; k < moments.size(); ++k) moments[k] += std::pow(x, static_cast<double>(k + 1)) / n;
    if (i > 0) neighbours += x * static_cast<double>(values[i - 1]) / 0.02 / n;
  }
  // Four standard errors of each moment's mean: sqrt(1, 2, 15, 96) / 1000.
  EXPECT_NEAR(moments[0], 0, 0.004);
  EXPECT_NEAR(moments[1], 1, 0.0057);
  EXPECT_NEAR(moments[2], 0, 0.0155);
  EXPECT_NEAR(moments[3], 3, 0.0392);
  EXPECT_NEAR(neighbours, 0, 0.004);
}

TEST(SetWeights, FillsShardsAndMastersByIndexAndClearsTheRest) {
  const Scenario scenario = job(tiny_dense, 3, {"micro_batch=1", "sequence=8", "zero.stage=1"});
  JobOptions options;
  options.hyperparameters.learning_rate = 0;
  options.weights = [](const ParameterSlot& slot, std::int64_t i) {
    return static_cast<float>(i % 251) / 256 + static_cast<float>(slot.whole_numel % 7);
  };
  const JobResult result = run_job(
      scenario, [&](int, std::int64_t, std::int64_t) { return random_batch(scenario, 5); }, options);
  for (const auto& [name, values] : result.weights) {
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(i % 251) / 256 + static_cast<float>(values.size() % 7)) << name << i;
  }
}

}  // namespace
}  // namespace plimsoll::testing
