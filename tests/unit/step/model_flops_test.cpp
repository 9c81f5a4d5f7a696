// How many operations does training take, whole or in part?  Counted by hand on two layers, and beside the products that the step
// program launches.
#include "planner/step/model_flops.hpp"

#include <gtest/gtest.h>

#include "planner/step/build_step.hpp"
#include "tests/unit/step/scenario.hpp"

namespace plimsoll {
namespace {

// Weights of a layer: q 64 x 64, k and v 32 x 64, o 64 x 64, three of 128 x 64, two norms of 64: 36,992.  With head 96 x 64 and
// the last norm W = 80,192.  Attention of a token: 2 layers x 4 heads x (16 + 16) x 8 positions: A = 2,048.  16 tokens.
constexpr const char* tiny = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96,
  "tie_word_embeddings": false, "max_position_embeddings": 64})";

Scenario scenario(std::vector<std::string> sets) {
  for (const char* set : {"world_size=1", "micro_batch=2", "sequence=8", "engine=ddp"}) sets.emplace_back(set);
  return make_scenario(tiny, sets, "1xh200");
}

TEST(ModelFlops, AreThreeForwardsWhereAllIsTrained) {
  EXPECT_EQ(model_flops(scenario({})), 16 * 3 * (2 * 80'192 + 2'048));
  EXPECT_EQ(model_flops(scenario({"gradient_accumulation=4", "recompute=full"})), 4 * 16 * 3 * (2 * 80'192 + 2'048));
}

// Adapters of rank 4 beside q [64, 64] and v [32, 64]: 4 x (128 + 96) x 2 layers = 1,792 weights, the only ones with a gradient.
TEST(ModelFlops, OfAdaptersLeaveOutTheGradientsOfFrozenWeights) {
  const double passed = 80'192 + 1'792;
  EXPECT_EQ(model_flops(scenario({R"(trainable={"lora": {"rank": 4, "targets": ["q_proj", "v_proj"]}})"})),
            16 * (2 * passed + 2'048 + 2 * passed + 2 * 2'048 + 2 * 1'792));
}

TEST(ModelFlops, BelowTheLowestTrainedLayerAreThoseOfTheForward) {
  EXPECT_EQ(model_flops(scenario({R"(trainable=["lm_head"])"})), 16 * (2 * 80'192 + 2'048 + 2 * 96 * 64));
  // Layer 1 and what follows pass gradients on, layer 0 does not.
  EXPECT_EQ(model_flops(scenario({R"(trainable=["layers.1.mlp.down_proj"])"})),
            16 * (2 * 80'192 + 2'048 + 2 * (80'192 - 36'992) + 2 * 1'024 + 2 * 128 * 64));
}

// Norms are counted as weights and are no products; of the lowest layer some inputs need no gradient.
TEST(ModelFlops, AreThoseOfTheProgramsProducts) {
  for (const char* part : {"trainable=all", R"(trainable={"lora": {"rank": 4}})", R"(trainable=["lm_head"])"}) {
    const Scenario asked = scenario({part});
    const StepProgram program = build_step(asked, 0);
    const RankProgram& rank = program.classes.front().program;
    double launched = 0;
    for (OpId id = rank.steady_first; id < rank.steady_end; ++id) {
      const auto* compute = std::get_if<Compute>(&rank.ops[id].action);
      if (compute != nullptr) launched += rank.kernels[compute->kernel].flops().count;
    }
    EXPECT_NEAR(program.model_flops_per_step_per_rank / launched, 1, 0.06) << part;
  }
}

}  // namespace
}  // namespace plimsoll
