// What stands beside a profiler's trace?  The device's classes of kernels, simulated and measured.
#pragma once

#include "gui/models/table.hpp"
#include "planner/cli/kineto_comparison.hpp"

namespace plimsoll::gui {

TableData profile_table(const KinetoComparison& comparison);
std::string profile_in_words(const KinetoComparison& comparison);

}  // namespace plimsoll::gui
