// What does a plan take at least, seen from the same plan for a model of fewer layers?  Most layers of a model are alike, and
// what is live while they run grows by the same bytes with each: laying out a few of them tells most of what all take.
//
// A model of L layers is, from its first q layers on, periodic with p (kinds of layers, recomputed or not).  With a = q + p
// layers (at least q + 2; under FSDP2 q + 5, as it works on its neighbours too) and with a + p the highest sum of live tensors
// in a phase of the steady step is P(a) and P(a + p).  In a phase that runs layer by layer, each program point's sum is
// affine in the layers before and after it, so P, the highest of these, is convex:
//   P(L) >= P(a) + floor((L - a) / p) (P(a + p) - P(a))
// Estimates, no bounds, extrapolate in the same way what a step of the plan with its own buckets and gathers takes, in time and
// in memory, from a and a + p layers, closely from a and a + 4 p: buckets that several layers share fill at other places in a
// longer model.
//
// The bound of memory holds where nothing saturates: of buckets and of gathered weights the least that the engine can do with
// is taken, and the optimizer's phase, which works in groups of limited size, is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/spec/scenario.hpp"
#include "planner/step/program.hpp"

namespace plimsoll {

/// The plan for two shorter models.
struct Shortened {
  Scenario few, more;                    ///< with a and a + p x apart layers; least buckets and gathers
  std::int64_t apart = 1;                ///< periods between the two
  std::int64_t left_out = 0;             ///< whole periods of the model beyond `few`
  std::vector<std::int64_t> stands_for;  ///< by layer of `few`: itself and the layers left out that are like it
  bool constructs_whole = false;         ///< construction too takes memory in proportion to the layers
};

/// None where the model has hardly more layers than that, where layers differ without a period, or where the plan states
/// something layer by layer.
/// @param apart fewer where the model has not as many
std::optional<Shortened> shorten(const Scenario& scenario, std::int64_t apart = 1);

/// The whole plan's live tensors at the peaks of its steps and of its construction.
struct PeakLive {
  Bytes in_steps, in_construction;
  Bytes of_job() const { return std::max(in_steps, in_construction); }
};
/// At least, in a steady step.
PeakLive least_live(const RankProgram& few, const RankProgram& more, std::int64_t left_out, bool constructs_whole);
/// About, in any step: by adding to each phase's peak what a period of layers adds, as often as it was left out.
/// @param times how often that is
PeakLive expected_live(const RankProgram& few, const RankProgram& more, double times);

}  // namespace plimsoll
