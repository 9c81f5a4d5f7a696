// What does a person look at to trust a calibration?  A table of errors by class, the outliers by name, and a plot of measured
// against fitted times.
#pragma once

#include <string>
#include <vector>

#include "calibrate/fit/residuals.hpp"

namespace plimsoll::calibrate {

/// One row a class (the entries of a kind together): points, mean and worst error, all and of those above 100 us.
/// @param held_out errors of points that the fit did not see; else of the fit itself
struct ClassErrors {
  std::string kind;
  Errors all, long_ones;
};
std::vector<ClassErrors> class_errors(const std::vector<Entry>& entries, bool held_out);

/// SVG: measured against predicted time, logarithmic, a colour a kind, with the lines of +-15 %.
std::string plot_svg(const std::vector<Entry>& entries, bool held_out, const std::string& title);

}  // namespace plimsoll::calibrate
