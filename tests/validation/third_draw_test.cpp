// How accurate are predictions of what no earlier table held?  The third draw, its bounds as reached; a change that improves them
// lowers the bounds here, none raises them.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/cli/validation.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

// Seventy cases of a third draw, of what no earlier one had: every n-th layer recomputed, frozen parts, ten more families (biases,
// latent attention, shared experts), odd widths and vocabularies, one key for all queries, FSDP2 and offload on one GPU, DeepSpeed
// without contiguous gradients, with fp32, with limits drawn at random.  Predicted before they were measured.
TEST(Accuracy, OfAThirdDraw) {
  std::vector<MeasuredTable> tables;
  tables.push_back(read_measured_table(load_source(PLIMSOLL_SOURCE_DIR "/tests/data/measured/h200_drawn_third.json")));
  const Validation drawn = validate(std::move(tables));
  EXPECT_TRUE(drawn.unanswered.empty());
  EXPECT_EQ(drawn.rows.size(), 1724U);
  // What the device bounds, 36 ms to 0.9 s; the host bounds the rest, and it was a fast one.
  const std::set<std::string> by_device = {"bf16-qwen2-gas2-clip",
                                           "bf16-d256-mqa",
                                           "amp-qwen3-every2-gas3",
                                           "bf16-wide-vocab",
                                           "bf16-every3-long",
                                           "amp-single-gas4-clip",
                                           "fp16-pure",
                                           "bf16-eager-every2",
                                           "bf16-freeze",
                                           "bf16-dsv2",
                                           "amp-qwen2moe-clip",
                                           "amp-moe-every2-foreach",
                                           "lora-bf16-eager-gas2",
                                           "fsdp2-noreshard-expandable-gas2",
                                           "fsdp2-pure-foreach-clip",
                                           "ds-z0-gas3-noclip",
                                           "ds-z2-noncontiguous",
                                           "ds-z2-fp32acc-gas4",
                                           "ds-z1-fp32",
                                           "ds-z2-freeze-single",
                                           "bf16-large-0",
                                           "bf16-large-1",
                                           "amp-large-foreach-ckpt",
                                           "fsdp2-large",
                                           "ds-z2-large-gas2",
                                           "bf16-moe-large"};
  double allocated = 0, reserved = 0, time = 0;
  int of_allocated = 0, of_reserved = 0, timed = 0;
  for (const Comparison& row : drawn.rows) {
    if (row.figure == "step_time") {
      EXPECT_LE(std::abs(row.error), 0.5) << row.id;
      if (by_device.count(row.id) == 0) continue;
      EXPECT_LE(std::abs(row.error), 0.095) << row.id;
      time += std::abs(row.error);
      ++timed;
    } else if (row.figure == "allocated_peak") {
      // Compiled at stage 3: two tensors of N h stay from the first step on, as in the rows below.
      EXPECT_LE(std::abs(row.error), row.id == "ds-z3-compile-gas2" ? 0.0023 : 0.0009) << row.id;
      allocated += std::abs(row.error);
      ++of_allocated;
    } else if (row.figure == "reserved_peak") {
      EXPECT_LE(std::abs(row.error), 0.0046) << row.id;
      reserved += std::abs(row.error);
      ++of_reserved;
    } else if (row.figure == "device_peak") {
      EXPECT_LE(std::abs(row.error), 0.0037) << row.id;
    }
  }
  EXPECT_EQ(timed, 26);
  EXPECT_LE(time / timed, 0.0295);
  EXPECT_LE(allocated / of_allocated, 0.00012);
  EXPECT_LE(reserved / of_reserved, 0.00017);
}

}  // namespace
}  // namespace plimsoll
