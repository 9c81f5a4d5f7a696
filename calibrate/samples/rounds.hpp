// What is the time of a point that differs from moment to moment?  A value is the median of its repetitions; where whole moments
// differ, as a processor's do, the point is measured in several rounds with other points between them (the size `round`, from 1
// on, each a sample of its own), and its time is the median of theirs.
#pragma once

#include <vector>

#include "calibrate/samples/sample.hpp"

namespace plimsoll::calibrate {

/// Median, and the interval that holds it with 95 % by order statistics (n/2 +- 0.98 sqrt(n)); all values below seven.
struct MedianInterval {
  double median = 0, low = 0, high = 0;
};
MedianInterval median_interval(std::vector<double> values);

/// Of fewer values even the extremes hold the median with less than 98 %.
inline constexpr std::size_t fewest_values = 7;

/// The rounds of each point as one sample without the size `round`, where the first of them stood: the median of their times, its
/// interval, and as the figure `between_rounds` by how much one round differs from that median, in the mean of absolutes.
std::vector<Sample> rounds_together(std::vector<Sample> samples);

}  // namespace plimsoll::calibrate
