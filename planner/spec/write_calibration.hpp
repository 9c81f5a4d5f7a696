// How is a calibration written down?  The file that read_calibration() reads (configs/README.md), with the same values.
#pragma once

#include <string>

#include "planner/spec/calibration.hpp"

namespace plimsoll {

/// The text of a calibration file.  Numbers keep 6 significant digits.
std::string calibration_text(const Calibration& calibration);

}  // namespace plimsoll
