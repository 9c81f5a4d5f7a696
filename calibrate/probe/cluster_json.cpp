// A cluster.json from what was found (calibrate/probe/probe.hpp).  Bandwidths that only a measurement can tell are left to the known
// device's usual server, and the comment beside them says so.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "calibrate/probe/probe.hpp"
#include "planner/spec/devices.hpp"

namespace plimsoll::calibrate {
namespace {

/// A string of JSON; what a driver says may hold anything.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result + "\"";
}

std::string device_section(const ProbedDevice& device, const std::string& key) {
  const Server* known = find_server(key);
  std::string text = fmt::format("  \"device\": {{\n    \"name\": {}, // {}\n    \"memory\": \"{} B\",\n", quoted(key),
                                 device.name, device.memory_bytes);
  text += fmt::format("    \"compute_capability\": {},\n    \"multiprocessors\": {}", device.compute_capability,
                      device.multiprocessors);
  if (!known) {
    // Nothing is known of its peaks: a place to fill in, and legal values meanwhile.
    text += fmt::format(
        ",\n    \"memory_bandwidth\": \"{:.0f} GB/s\", // bus width and memory clock\n"
        "    \"bf16\": \"1 TFLOP/s\", // not known: take the data sheet's dense peak\n    \"fp32\": \"1 TFLOP/s\"",
        std::max(1.0, 1e-9 * device.memory_bytes_per_s));
  }
  return text + "\n  },\n";
}

std::string links(const ProbedDevice& device, int devices, bool known) {
  if (devices < 2) return "";
  if (device.nvlinks > 0 && device.nvlink_bytes_per_s > 0 && !known) {
    return fmt::format(
        "  \"nvlink\": {{ \"bandwidth\": \"{:.0f} GB/s\", \"latency\": \"2 us\" }}, // {} links; signalling rate, "
        "collectives reach less\n",
        1e-9 * device.nvlink_bytes_per_s, device.nvlinks);
  }
  if (device.nvlinks == 0 && !known)
    return "  \"pcie\": { \"bandwidth\": \"20 GB/s\", \"latency\": \"10 us\" }, // assumed: no NVLink was found\n";
  return fmt::format("  // {} active NVLinks, PCIe {} x{}; bandwidths of the device's usual server\n", device.nvlinks,
                     device.pcie_generation, device.pcie_width);
}

}  // namespace

std::string device_key(const std::string& driver_name, std::int64_t memory_bytes) {
  std::string low;
  for (const char c : driver_name) low += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string& name : device_names()) {
    const std::size_t dash = name.find('-');
    const std::string model = name.substr(0, dash);
    const std::size_t at = low.find(model);
    if (at == std::string::npos) continue;
    // "a10" is not "a100", "l4" not "l40s".
    const std::size_t end = at + model.size();
    const bool whole = (at == 0 || std::isalnum(static_cast<unsigned char>(low[at - 1])) == 0) &&
                       (end == low.size() || std::isalnum(static_cast<unsigned char>(low[end])) == 0);
    if (!whole) continue;
    const Server* server = find_server(name);
    // Of a model with two sizes, the nearer.
    if (dash != std::string::npos && server &&
        std::abs(static_cast<double>(server->device.memory.count - memory_bytes)) >
            0.3 * static_cast<double>(memory_bytes))
      continue;
    return name;
  }
  std::string key;
  for (const char c : low) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      key += c;
    else if (!key.empty() && key.back() != '-')
      key += '-';
  }
  return key.empty() ? "unknown" : key;
}

std::string cluster_json(const ProbedHost& host, const std::optional<ProbedDevices>& devices, int nodes) {
  std::string text =
      fmt::format("// Found by plimsoll-calibrate probe: {}, {} cores in {} packages, {} NUMA nodes, {}\n",
                  host.processor, host.cores, host.packages, host.numa_nodes, host.kernel);
  if (devices) text += fmt::format("// {}\n", devices->versions);
  for (const ProbedNic& nic : host.nics)
    text += fmt::format("// NIC {}: {}, NUMA node {}\n", nic.name,
                        nic.bytes_per_s > 0 ? fmt::format("{:.1f} GB/s", 1e-9 * nic.bytes_per_s) : "speed unknown",
                        nic.numa_node);
  text += "{\n  \"name\": \"probed\",\n";
  bool known = false;
  if (devices && !devices->devices.empty()) {
    const ProbedDevice& first = devices->devices.front();
    const std::string key = device_key(first.name, first.memory_bytes);
    known = find_server(key) != nullptr;
    const auto count = static_cast<int>(devices->devices.size());
    text +=
        device_section(first, key) + fmt::format("  \"devices_per_node\": {},\n", count) + links(first, count, known);
  } else {
    text +=
        "  // No GPU was found: this machine's cores stand in for one, so that the chain can be tried.\n"
        "  \"device\": { \"name\": \"host\", \"memory\": \"" +
        std::to_string(host.memory_bytes) +
        " B\", \"multiprocessors\": 1,\n"
        "    \"memory_bandwidth\": \"20 GB/s\", \"bf16\": \"0.05 TFLOP/s\", \"fp32\": \"0.05 TFLOP/s\" }, // assumed\n"
        "  \"devices_per_node\": 2,\n  \"pcie\": { \"bandwidth\": \"5 GB/s\", \"latency\": \"5 us\" }, // assumed\n";
  }
  text += "  // host memory as the kernel counts it now; some virtual machines are given more as they use it\n";
  // A known device brings its usual server's memory bandwidth and link to the host.
  text += fmt::format("  \"nodes\": {},\n  \"host\": {{ \"memory\": \"{} B\", \"cores\": {}{} }},\n", nodes,
                      host.memory_bytes, host.cores,
                      known ? ""
                            : ",\n    \"memory_bandwidth\": \"20 GB/s\", \"link\": { \"bandwidth\": \"20 GB/s\", "
                              "\"latency\": \"5 us\" } // assumed\n ");
  const auto up =
      std::count_if(host.nics.begin(), host.nics.end(), [](const ProbedNic& nic) { return nic.bytes_per_s > 0; });
  if (nodes > 1 && up > 0) {
    text += fmt::format(
        "  \"network\": {{ \"nics_per_node\": {}, \"bandwidth\": \"{:.3g} GB/s\", \"latency\": \"5 us\" }}, // "
        "signalling rate\n",
        up, 1e-9 * host.nics.front().bytes_per_s);
  }
  return text + "  \"evidence\": \"assumed\",\n  \"source\": \"plimsoll-calibrate probe\"\n}\n";
}

}  // namespace plimsoll::calibrate
