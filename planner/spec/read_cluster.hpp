// What does a cluster.json say?  Comments are allowed; what it leaves out comes from the usual server of its device
// (planner/spec/devices.hpp).  Sizes, rates and times carry their unit.  Keys and their values: configs/README.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "planner/base/diagnostic.hpp"
#include "planner/spec/cluster.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll {

/// @param name of the cluster, unless the file states one
/// @param nodes replaces the number of nodes; nothing: as the file says
/// Errors: cluster.unit, .type, .range, .choice, .missing, .unknown, .device, .links, .nodes.
Result<ClusterSpec> read_cluster(const Document& document, std::string name, std::optional<int> nodes = {});

/// What `--cluster` names: a file, the name of a file in configs/clusters, or a preset NxDEVICE.
/// @param nodes of `--nodes`
/// @throws MachineError if the file is missing or unreadable
Result<ClusterSpec> load_cluster(std::string_view file_or_preset, std::optional<int> nodes = {});

}  // namespace plimsoll
