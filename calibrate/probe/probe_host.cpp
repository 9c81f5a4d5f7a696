// Host memory, cores, NUMA nodes and NICs (calibrate/probe/probe.hpp), through hwloc and sysfs.
#include <fmt/format.h>
#include <hwloc.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "calibrate/probe/probe.hpp"
#include "planner/base/machine_error.hpp"

namespace plimsoll::calibrate {
namespace {

namespace fs = std::filesystem;

/// First line of a small file of /sys or /proc; "" where it cannot be read.
std::string line_of_file(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

long number_of_file(const fs::path& path, long otherwise) {
  try {
    return std::stol(line_of_file(path));
  } catch (const std::exception&) {
    return otherwise;
  }
}

/// InfiniBand and RoCE ports, then Ethernet interfaces with a device behind them.
std::vector<ProbedNic> nics() {
  std::vector<ProbedNic> found;
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", error)) {
    ProbedNic nic;
    nic.name = device.path().filename().string();
    // "400 Gb/sec (4X NDR)"
    nic.bytes_per_s = static_cast<double>(number_of_file(device.path() / "ports/1/rate", 0)) * 1e9 / 8;
    nic.numa_node = static_cast<int>(number_of_file(device.path() / "device/numa_node", -1));
    found.push_back(nic);
  }
  if (!found.empty()) return found;
  for (const auto& device : fs::directory_iterator("/sys/class/net", error)) {
    if (!fs::exists(device.path() / "device", error)) continue;  // bridges, loopback
    ProbedNic nic;
    nic.name = device.path().filename().string();
    nic.bytes_per_s = static_cast<double>(std::max(0L, number_of_file(device.path() / "speed", 0))) * 1e6 / 8;
    nic.numa_node = static_cast<int>(number_of_file(device.path() / "device/numa_node", -1));
    found.push_back(nic);
  }
  return found;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

}  // namespace

ProbedHost probe_host() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0 || hwloc_topology_load(topology) != 0)
    throw MachineError("hwloc cannot read this machine's topology");
  ProbedHost host;
  host.processor = processor();
  host.cores = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
  host.packages = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE));
  host.numa_nodes = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
  host.memory_bytes = static_cast<std::int64_t>(hwloc_get_root_obj(topology)->total_memory);
  hwloc_topology_destroy(topology);
  // Where /sys is not mounted, as in a bare container, hwloc sees no memory.
  if (host.memory_bytes == 0) host.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  host.nics = nics();
  utsname name{};
  if (uname(&name) == 0)
    host.kernel = fmt::format("{} {}", static_cast<const char*>(name.sysname), static_cast<const char*>(name.release));
  return host;
}

}  // namespace plimsoll::calibrate
