// What does the plan run on?  GPUs in nodes, and the links between them as a graph: NVLink or PCIe inside a node, a NIC per
// GPU or per node to its rail or leaf switch, and a spine with its oversubscription.  Routes come from the graph
// (planner/spec/topology.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/base/quantity.hpp"

namespace plimsoll {

/// How a number is known.
enum class Evidence : std::uint8_t { measured, fitted, interpolated, extrapolated, assumed };
const char* name_of(Evidence evidence);

/// Kinds of links, from near to far.
enum class Tier : std::uint8_t { nvlink, pcie, nic, spine, host };
const char* name_of(Tier tier);

struct DeviceSpec {
  std::string name;            ///< "h200"
  Bytes memory;                ///< what the driver reports as total
  int compute_capability = 0;  ///< 90 for sm_90
  int multiprocessors = 0;
  double bf16_flops_per_s = 0;  ///< dense peak, as published; of fp16 where there are no bf16 units (before sm_80)
  double fp32_flops_per_s = 0;
  BytesPerSecond memory_bandwidth;  ///< HBM, as published
  Evidence evidence = Evidence::assumed;
  std::string source;  ///< of the figures
};

/// One kind of link.
struct LinkSpec {
  Tier tier = Tier::nvlink;
  BytesPerSecond bandwidth;  ///< what arrives: one direction, per GPU (nvlink, pcie, host) or per NIC (nic)
  Seconds latency;           ///< of one hop of a large message
};

struct ClusterSpec {
  std::string name;  ///< "8xh100" or the file's name
  DeviceSpec device;
  int devices_per_node = 1;
  int nodes = 1;
  int spare_devices = 0;  ///< GPUs of the last node that do not belong to it: 12 GPUs are a node of 8 and half of one
  LinkSpec in_node;       ///< nvlink, or pcie where there is none
  LinkSpec host_link;     ///< pcie between GPU and host memory
  LinkSpec nic;           ///< meaningful when nodes > 1
  int nics_per_node = 0;  ///< spread evenly over the GPUs, in order; 0: nothing leaves the node
  bool rail_optimized = true;           ///< NIC i of every node on one rail switch; else all NICs of a node on one leaf
  double spine_oversubscription = 1.0;  ///< 2: the spine carries half of what the leaves could send
  int nodes_per_leaf = 32;              ///< nodes under one rail or leaf switch before the spine is crossed
  Bytes host_memory;                    ///< per node
  BytesPerSecond host_memory_bandwidth;
  int host_cores = 0;
  std::string calibration;  ///< name of the calibration preset that belongs to it; may be empty
  Evidence evidence = Evidence::assumed;
  std::string source;
  std::map<std::string, Place> places;

  int world() const { return devices_per_node * nodes - spare_devices; }
};

}  // namespace plimsoll
