// fp32 against PyTorch's autograd: losses, gradients, and a hundred steps of AdamW with clipping, dense and mixture of
// experts.  Reference values: tests/data/runtime, with the script that made them, which also defines weights and tokens.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/runtime/world.hpp"

namespace plimsoll::testing {
namespace {

using Json = nlohmann::json;

const Json& reference() {
  static const Json values = Json::parse(std::ifstream(PLIMSOLL_SOURCE_DIR "/tests/data/runtime/reference.json"));
  return values;
}

float reference_weight(const ParameterSlot& slot, std::int64_t index) {
  std::uint32_t key = 0x811c9dc5;
  for (const char letter : std::string_view(slot.name)) key = (key ^ static_cast<unsigned char>(letter)) * 0x01000193;
  const std::uint32_t hash = key + static_cast<std::uint32_t>(index) * 2654435761U;
  const auto value = static_cast<float>((static_cast<double>(hash % 1000) - 500) / 500 * 0.2);
  return slot.initial_std == 0 ? 1 + value / 10 : value;
}

MicroBatch reference_batch(std::int64_t step) {
  MicroBatch batch;
  for (std::int64_t i = 0; i < 24; ++i) {
    batch.ids.push_back((i * 17 + step * 29 + (i * i) % 13) % 61);
    batch.labels.push_back((batch.ids.back() * 7 + 3) % 61);
  }
  return batch;
}

class Torch : public ::testing::TestWithParam<const char*> {
 protected:
  const Json& expected() const { return reference()[GetParam()]; }
  Scenario scenario(double clip) const {
    const std::string& model = std::string_view(GetParam()) == "moe" ? tiny_moe : tiny_dense;
    return job(model, 1,
               {"precision=fp32", "micro_batch=2", "sequence=12", "gradient_clipping=" + std::to_string(clip)});
  }
  JobOptions options() const {
    JobOptions result;
    result.weights = reference_weight;
    return result;
  }
};

// Both sum fp32 products of 12 to 61 terms, in other orders: a few units in the last place of the largest term.
TEST_P(Torch, FindsTheSameLossAndGradients) {
  const JobResult mine = run_job(
      scenario(0), [](int, std::int64_t s, std::int64_t) { return reference_batch(s); }, options());
  ASSERT_EQ(mine.errors.front(), "");
  EXPECT_NEAR(mine.reports.front().loss, expected()["loss"], 2e-6);
  EXPECT_NEAR(mine.reports.front().balance_loss, expected()["balance_loss"], 1e-6);
  EXPECT_NEAR(mine.reports.front().z_loss, expected()["z_loss"], 1e-6);
  ASSERT_EQ(mine.gradients.size(), expected()["gradients"].size());
  for (const auto& [name, gradient] : mine.gradients) {
    const Json& theirs = expected()["gradients"][name];
    const auto& some = theirs["every_11th"];
    const double norm = theirs["norm"];
    double squares = 0;
    for (const float g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm) << name;
    ASSERT_EQ(some.size(), (gradient.size() + 10) / 11) << name;
    for (std::size_t i = 0; i < some.size(); ++i)
      EXPECT_NEAR(gradient[11 * i], some[i].get<double>(), 1e-5 * norm) << name << "[" << 11 * i << "]";
  }
}

TEST_P(Torch, TakesTheSameHundredStepsWithinOnePercent) {
  JobOptions training = options();
  training.steps = 100;
  training.hyperparameters = {expected()["learning_rate"], 0.9, 0.95, 1e-8, 0.1, 1};
  const JobResult mine = run_job(
      scenario(1), [](int, std::int64_t s, std::int64_t) { return reference_batch(s % 5); }, training);
  ASSERT_EQ(mine.errors.front(), "");
  for (std::size_t step = 0; step < 100; ++step) {
    const double loss = expected()["losses"][step], norm = expected()["norms"][step];
    EXPECT_NEAR(mine.reports[step].loss, loss, 0.01 * loss) << "step " << step;
    if (step < 3) {
      EXPECT_NEAR(mine.reports[step].gradient_norm, norm, 1e-3 * norm) << "step " << step;
    }
  }
  EXPECT_LT(mine.reports.back().loss, 0.6 * mine.reports.front().loss);
}

INSTANTIATE_TEST_SUITE_P(Models, Torch, ::testing::Values("dense", "moe"));

}  // namespace
}  // namespace plimsoll::testing
