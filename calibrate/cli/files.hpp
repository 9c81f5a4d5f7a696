// Files that several commands read and write.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/fit/residuals.hpp"
#include "calibrate/samples/sample.hpp"
#include "planner/spec/calibration.hpp"

namespace plimsoll::calibrate {

/// All of them, with what is wrong printed on standard error; nothing if one cannot be used.  @throws MachineError
std::optional<std::vector<SampleFile>> load_samples(const std::vector<std::string>& paths);

/// A calibration file or preset, with what is wrong printed; nothing if there are errors.  @throws MachineError
std::optional<Calibration> load_calibration_file(const std::string& file_or_preset);

/// True, and said on standard error, if one of the outputs (empty: none) is one of the inputs, which writing would destroy.
bool would_overwrite(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

/// @throws MachineError if it cannot be written
void write_text(const std::string& path, const std::string& text);

/// The tables of a fit or comparison, as a person reads them.  @param rules with each entry's rule and outliers
std::string errors_text(const std::vector<Entry>& entries, bool held_out, bool rules);
/// The same as Markdown tables.
std::string errors_markdown(const std::vector<Entry>& entries, bool held_out);
std::string errors_json(const std::vector<Entry>& entries, bool held_out);

}  // namespace plimsoll::calibrate
