// How many floating-point operations does the training of a model take, by whatever means?  Those of one rank's optimizer step.
// Recomputation and padding are not counted, so that over time and peak they are the MFU.
//
// Per token, W being the weights that it passes (an untied embedding is looked up, not multiplied with), A its attention
// (the causal half, q with k and probabilities with v), sums over the layers:
//   forward                2 W + A
//   gradient of inputs     2 W' + 2 A'    W', A': from the lowest layer that trains a weight upwards, with the head;
//                                         none where only what follows the layers is trained
//   gradient of weights    2 Wt           Wt: those that are trained
// All trained: 3 (2 W + A).  An adapter beside W [out, in] adds r (out + in) weights, all trained.
#pragma once

#include "planner/spec/scenario.hpp"

namespace plimsoll {

double model_flops(const Scenario& scenario);

}  // namespace plimsoll
