// How much do two things slow each other down that run at once?
#pragma once

#include <memory>

#include "calibrate/bench/cuda/nccl.hpp"

namespace plimsoll::calibrate::cuda {

/// Runs the labels `first` and `second` of a point beside each other on two streams.  Its time is that of one `first` while
/// the other runs (label resident = second: throughout, already holding its SMs); figures: alone_first_s, alone_second_s, slowdown_first, slowdown_second.
/// @param nccl null in a single process
std::unique_ptr<Work> prepare_pair(const Point& point, Nccl* nccl, Ranks& ranks);

}  // namespace plimsoll::calibrate::cuda
