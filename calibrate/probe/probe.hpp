// What is here?  Devices and their links, host memory, cores and NICs, as a cluster.json that every command of Plimsoll takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::calibrate {

/// One GPU.
struct ProbedDevice {
  std::string name;  ///< as the driver calls it
  std::int64_t memory_bytes = 0;
  int compute_capability = 0;  ///< 90
  int multiprocessors = 0;
  double memory_bytes_per_s = 0;  ///< from bus width and memory clock; 0: unknown
  int nvlinks = 0;                ///< active links
  double nvlink_bytes_per_s = 0;  ///< all of them, one direction
  int pcie_generation = 0, pcie_width = 0;
  int numa_node = -1;
  int foreign_processes = 0;
};
struct ProbedDevices {
  std::vector<ProbedDevice> devices;
  std::string versions;  ///< driver, CUDA, cuBLAS, cuDNN, NCCL
};
/// Through CUDA and NVML; nothing in a build without CUDA or where the driver finds no device.
std::optional<ProbedDevices> probe_devices();

struct ProbedNic {
  std::string name;
  double bytes_per_s = 0;  ///< 0: the link is down or says nothing
  int numa_node = -1;
};
struct ProbedHost {
  std::string processor;
  std::int64_t memory_bytes = 0;
  int cores = 0, packages = 0, numa_nodes = 0;
  std::vector<ProbedNic> nics;
  std::string kernel;
};
/// Through hwloc, /proc and /sys.
ProbedHost probe_host();

/// The text of a cluster.json (configs/README.md), with comments that say what was found and what was taken from the
/// known device.
std::string cluster_json(const ProbedHost& host, const std::optional<ProbedDevices>& devices, int nodes);

/// The name under which planner/spec/devices.hpp knows a device: "NVIDIA H200" -> "h200"; else its lower-case words joined.
std::string device_key(const std::string& driver_name, std::int64_t memory_bytes);

}  // namespace plimsoll::calibrate
