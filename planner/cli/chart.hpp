// What does a sweep look like?  An SVG of one bar a row: allocated, reserved and device memory against the card's capacity.
#pragma once

#include <string>
#include <vector>

#include "planner/cli/json_output.hpp"

namespace plimsoll {

/// @throws MachineError if the file cannot be written
void write_chart(const std::string& path, const std::vector<std::string>& keys, const std::vector<SweepRow>& rows);

}  // namespace plimsoll
