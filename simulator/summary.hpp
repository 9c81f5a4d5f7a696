// What does a timeline say?  Exposed time by cause, the critical path, the use of each lane, what bounds the step.
#pragma once

#include "simulator/timeline.hpp"

namespace plimsoll {

/// Fills in what follows from the timed ops; step_time is at least the host's end.
/// @param tell_of a class index; negative: the class that ends last
/// @param kernel_gap gaps of the compute lane up to this are part of running, not of waiting
void summarise(Timeline& timeline, int tell_of, SimTime kernel_gap);

}  // namespace plimsoll
