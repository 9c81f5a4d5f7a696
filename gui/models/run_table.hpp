// What stands beside the log of a run?  The figures of a step, predicted and run, and the steps one by one.
#pragma once

#include "gui/models/table.hpp"
#include "gui/session/measured_record.hpp"

namespace plimsoll::gui {

TableData run_table(const RunComparison& run);
TableData run_steps_table(const RunComparison& run);
std::string run_in_words(const RunComparison& run);

}  // namespace plimsoll::gui
