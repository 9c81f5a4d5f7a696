// The timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: a process per rank class, a thread per
// lane, flows along the edges between lanes, and a counter of the bytes alive.
#pragma once

#include <string>

#include "simulator/timeline.hpp"

namespace plimsoll {

/// Chrome JSON (an object with "traceEvents"); times in microseconds.
std::string chrome_trace(const StepProgram& program, const Timeline& timeline);

/// Bytes alive on the device at a moment of the step.
struct LiveBytes {
  SimTime at = 0;
  Bytes bytes;
};

/// The curve of one class: a buffer counts from the start of the first op after its Alloc on its lane.
std::vector<LiveBytes> live_bytes(const RankProgram& program, const Timeline& timeline, std::uint16_t class_index);

}  // namespace plimsoll
