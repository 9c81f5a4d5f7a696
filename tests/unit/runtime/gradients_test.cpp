// One rank, fp32: are loss and gradients those of the mathematics?  Finite differences of the loss, and what every interpreter
// must agree on: memory.
#include <gmock/gmock.h>

#include "tests/unit/runtime/world.hpp"

namespace plimsoll::testing {
namespace {

const std::vector<std::string> small_batch{"precision=fp32", "micro_batch=2", "sequence=12", "gradient_clipping=0"};

std::vector<std::string> with(std::vector<std::string> keys, const std::vector<std::string>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

double total_loss(const StepReport& report) { return report.loss + report.balance_loss + report.z_loss; }

/// Compares the gradient with (L(w + e) - L(w - e)) / 2 e for some elements of every parameter.
void expect_finite_differences(const Scenario& scenario) {
  const Feed feed = [&](int, std::int64_t, std::int64_t i) {
    return random_batch(scenario, static_cast<std::uint64_t>(i));
  };
  const JobResult job = run_job(scenario, feed);
  ASSERT_EQ(job.errors.front(), "");
  int probes = 0, kinks = 0;
  for (const auto& [name, gradient] : job.gradients) {
    float steepest = 0;
    for (const float value : gradient) steepest = std::max(steepest, std::abs(value));
    for (std::size_t probe = 0; probe < 2; ++probe) {
      // The steepest element, and one elsewhere.
      const std::size_t index =
          probe == 0 ? static_cast<std::size_t>(std::find_if(gradient.begin(), gradient.end(),
                                                             [&](float g) { return std::abs(g) == steepest; }) -
                                                gradient.begin())
                     : gradient.size() / 3;
      const auto loss_at = [&](float shift) {
        JobOptions options;
        options.weights = [&](const ParameterSlot& slot, std::int64_t i) {
          const bool moved = slot.name == name && i == static_cast<std::int64_t>(index);
          return initial_value(slot, i) + (moved ? shift : 0.0F);
        };
        return total_loss(run_job(scenario, feed, options).reports.front());
      };
      // fp32 losses of about 4 carry 5e-7; over 2 e = 0.004 that is 1e-4, and the third derivative adds e^2.
      const auto slope = [&](float shift) {
        return (loss_at(shift) - loss_at(-shift)) / (2 * static_cast<double>(shift));
      };
      const double wide = slope(4e-3F), narrow = slope(2e-3F);
      const double tolerance = 1e-3 + 0.02 * std::abs(static_cast<double>(gradient[index]));
      ++probes;
      // A token that changes its expert makes the loss jump: the slope then depends on the step.
      if (std::abs(wide - narrow) > tolerance) {
        ++kinks;
        continue;
      }
      EXPECT_NEAR(narrow, gradient[index], tolerance) << name << "[" << index << "]";
    }
  }
  EXPECT_LE(kinks * 4, probes);
}

TEST(Gradients, OfADenseModelAreItsFiniteDifferences) { expect_finite_differences(job(tiny_dense, 1, small_batch)); }

TEST(Gradients, OfTiedEmbeddingsAreTheirFiniteDifferences) {
  std::string tied = tiny_dense;
  tied.replace(tied.find("false"), 5, "true");
  expect_finite_differences(job(tied, 1, with(small_batch, {"gradient_accumulation=2", "zero.stage=1"})));
}

TEST(Gradients, OfAMixtureOfExpertsAreItsFiniteDifferences) {
  expect_finite_differences(job(tiny_moe, 1, small_batch));
}

TEST(Gradients, OfASharedMixtureThatDropsAreItsFiniteDifferences) {
  expect_finite_differences(job(
      tiny_moe, 2, with(small_batch, {"moe={\"drop_tokens\": true, \"capacity_factor\": 0.8}", "expert_parallel=2"})));
}

TEST(Gradients, DoNotDependOnRecomputationChunksOrAccumulation) {
  const Scenario plain = job(tiny_moe, 1, small_batch);
  const Feed feed = [&](int, std::int64_t, std::int64_t) { return random_batch(plain, 7); };
  const JobResult expected = run_job(plain, feed);
  for (const char* key : {"recompute=full", "recompute={\"every\": 2}", "loss={\"chunked\": 7}",
                          "gradient_accumulation=4", "zero.stage=0", "zero.stage=1", "zero.stage=2"}) {
    const JobResult other = run_job(job(tiny_moe, 1, with(small_batch, {key})), feed);
    ASSERT_EQ(other.errors.front(), "");
    // Chunks sum a product in another order; all else repeats the same arithmetic, and four equal micro-batches of a
    // quarter each are exact.
    const Difference difference = largest_difference(other.gradients, expected.gradients);
    EXPECT_LE(difference.relative, std::string_view(key).starts_with("loss") ? 2e-6 : 0)
        << key << " " << difference.where;
    EXPECT_NEAR(other.reports.front().loss, expected.reports.front().loss, 1e-6) << key;
  }
}

TEST(Memory, TheArenaIsWhatTheLedgerCounts) {
  for (const std::string& model : {tiny_dense, tiny_moe}) {
    for (const char* key : {"recompute=none", "recompute=full", "zero.stage=0", "zero.stage=2"}) {
      const Scenario scenario = job(model, 1, with(small_batch, {key}));
      JobOptions options;
      options.steps = 2;
      const JobResult result = run_job(
          scenario,
          [&](int, std::int64_t s, std::int64_t) { return random_batch(scenario, static_cast<std::uint64_t>(s)); },
          options);
      ASSERT_EQ(result.errors.front(), "");
      EXPECT_EQ(result.high_water.front(), result.arena.front());
      EXPECT_EQ(result.most_live.front(), result.least.front());
    }
  }
}

}  // namespace
}  // namespace plimsoll::testing
