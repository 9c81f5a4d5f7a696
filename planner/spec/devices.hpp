// Which GPUs are known by name, and what does the server look like in which they usually stand?  Figures are published or
// reported ones unless marked as measured; each entry names its sources (planner/spec/devices.cpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"
#include "planner/spec/cluster.hpp"

namespace plimsoll {

/// A server of eight GPUs of one kind.
struct Server {
  DeviceSpec device;
  LinkSpec in_node;  ///< nvlink through switches, or pcie
  LinkSpec host_link;
  LinkSpec nic;
  int nics = 8;
  bool rail_optimized = true;
  Bytes host_memory;
  BytesPerSecond host_memory_bandwidth;
  int host_cores = 0;
  std::string calibration;  ///< name of the calibration that was measured on it; may be empty
  std::string source;       ///< of all but the device's own figures
};

inline constexpr int devices_per_server = 8;

/// All of them, newest first.
const std::vector<Server>& servers();
/// Null if there is none of that name.
const Server* find_server(std::string_view device);
std::vector<std::string> device_names();
/// The devices that are most probably meant: those that begin so ("a100"), else the one with whose name it begins
/// ("h100-pcie"), else the one spelt most alike.
std::vector<std::string> devices_like(std::string_view name);

/// Nodes of `devices_per_node` GPUs; NICs, host memory and cores in proportion to the server's eight.
ClusterSpec make_cluster(const Server& server, int devices_per_node, int nodes);

/// `gpus` GPUs in nodes of eight, or in one of fewer.
/// @param gpus >= 1
ClusterSpec make_cluster(const Server& server, int gpus);

/// "NxDEVICE", e.g. "16xh100".  Errors: cluster.preset.
Result<ClusterSpec> preset_cluster(std::string_view name);

}  // namespace plimsoll
