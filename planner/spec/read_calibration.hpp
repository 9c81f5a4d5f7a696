// What does a calibration file say?  Comments are allowed; keys and units: configs/README.md.  Every entry states how it is
// known; a file that leaves a rule out leaves the roofline of the published figures in its place.
#pragma once

#include <string_view>

#include "planner/base/diagnostic.hpp"
#include "planner/spec/calibration.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {

/// Errors: calibration.format, .type, .range, .choice, .missing, .unknown, .twice, .monotone (points that do not rise in size);
/// warnings: .curve, .monotone (a larger size that takes clearly less time).
Result<Calibration> read_calibration(const Document& document, std::string name);

/// What `--calibration` names: a file or a preset of configs/calibrations; empty: that of the cluster, else the published
/// figures of its device, marked as assumed.  Warnings: calibration.device (of another device than the cluster, where that has
/// one), .unknown, .hole.
/// @throws MachineError if the file is missing or unreadable
Result<Calibration> load_calibration(std::string_view file_or_preset, const ClusterSpec& cluster);

/// Roofline prices from a device's published figures: 80 % of the matrix peak, 85 % of the memory bandwidth, the host costs
/// and interference measured on another machine.  Evidence: assumed.
/// Errors: those of the preset of that machine.  @throws MachineError if it is missing
Result<Calibration> published_prices(const ClusterSpec& cluster);

}  // namespace plimsoll
