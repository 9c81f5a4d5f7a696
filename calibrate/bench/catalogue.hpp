// Which points are worth measuring, and in which order?  A grid that the fits need, and the shapes that a step program
// really uses; the most valuable first, so that a short budget still gives a useful calibration.
#pragma once

#include <vector>

#include "calibrate/samples/sample.hpp"

namespace plimsoll {
struct StepProgram;
}

namespace plimsoll::calibrate {

struct Case {
  Point point;
  int value = 0;        ///< 0: first
  bool shared = false;  ///< all ranks take part
};

/// The backend's grid.
/// @param world ranks that measure; @param tier of the links between them, "nvlink" or "pcie"
std::vector<Case> cuda_grid(int world, const std::string& tier);
std::vector<Case> host_grid(int world);

/// Products, grouped products, attention and collectives of a program's steady step, as often as they differ.
/// Collectives only of groups that fit into `world` ranks.
std::vector<Case> program_cases(const StepProgram& program, int world, const std::string& tier);

/// Both together: by value, each point once; rounds of a point evenly among the others of its value.
std::vector<Case> in_order(std::vector<Case> cases);

}  // namespace plimsoll::calibrate
