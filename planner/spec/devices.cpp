// The table of GPUs and their usual servers.
//
// Memory is what cudaMemGetInfo reports as total, which is 0.4-0.7 GiB below what nvidia-smi shows; where it was not
// measured it is taken from out-of-memory messages ("has a total capacity of ...", two decimals) in public issues.
// Peaks: dense, from NVIDIA's data sheets.  NVLink: the bus bandwidth that NCCL's ring reaches on a full node, where a
// measurement is public, else NCCL's credit of 20-20.6 GB/s per link (Blackwell 40.1).  PCIe between GPUs: NCCL's credit of
// 12 GB/s times the generation's factor (x16).  NICs: what nccl-tests reaches of the line rate.  Latencies: one hop of
// NCCL's ring under the Simple protocol (its tuning tables): 3.4 us NVLink, 5.7 us PCIe, 14 us network.
// Host links: measured for generation 5 (55 GB/s of 64), and in proportion for the others.
#include "planner/spec/devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "planner/base/format.hpp"
#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

constexpr double gib = 1024.0 * 1024 * 1024;

Bytes from_gib(double size) { return Bytes(static_cast<std::int64_t>(std::llround(size * gib))); }

DeviceSpec device(const char* name, double memory_gib, int compute_capability, int multiprocessors, double bf16_tflops,
                  double fp32_tflops, double memory_gb_per_s, const char* memory_source) {
  DeviceSpec spec;
  spec.name = name;
  spec.memory = from_gib(memory_gib);
  spec.compute_capability = compute_capability;
  spec.multiprocessors = multiprocessors;
  spec.bf16_flops_per_s = bf16_tflops * 1e12;
  spec.fp32_flops_per_s = fp32_tflops * 1e12;
  spec.memory_bandwidth = BytesPerSecond(memory_gb_per_s * 1e9);
  spec.source = fmt::format("NVIDIA data sheet; total memory: {}", memory_source);
  return spec;
}

LinkSpec nvlink(double gb_per_s) { return {Tier::nvlink, BytesPerSecond(gb_per_s * 1e9), Seconds(3.4e-6)}; }
LinkSpec pcie(int generation) {
  return {Tier::pcie, BytesPerSecond(12e9 * std::exp2(generation - 3)), Seconds(5.7e-6)};
}
LinkSpec host_link(int generation) {
  return {Tier::host, BytesPerSecond(55e9 * std::exp2(generation - 5)), Seconds(3e-6)};
}
LinkSpec nic(double gb_per_s) { return {Tier::nic, BytesPerSecond(gb_per_s * 1e9), Seconds(14e-6)}; }

struct Host {
  double memory_gib;
  double memory_gb_per_s;
  int cores;
  int pcie_generation;
};

// DRAM bandwidth = sockets x channels x 8 bytes x transfers per second.
constexpr Host sapphire_rapids = {2048, 614.4, 112, 5};  // 2 x Xeon 8480C, 2 x 8 x DDR5-4800: DGX H100 and H200
constexpr Host emerald_rapids = {2048, 716.8, 112, 5};   // 2 x Xeon 8570, 2 x 8 x DDR5-5600: DGX B200
constexpr Host rome_2tb = {2048, 409.6, 128, 4};         // 2 x EPYC 7742, 2 x 8 x DDR4-3200: DGX A100, 640 GB
constexpr Host rome_1tb = {1024, 409.6, 128, 4};         // the same, 320 GB
constexpr Host rome_small = {512, 409.6, 64, 4};         // a common server for PCIe cards
constexpr Host broadwell = {512, 153.6, 40, 3};          // 2 x Xeon E5-2698 v4, 2 x 4 x DDR4-2400: DGX-1
constexpr Host cascade_lake = {384, 281.6, 48, 3};       // 2 x 24 cores, 2 x 6 x DDR4-2933: AWS g4dn.metal

Server server(DeviceSpec device, LinkSpec in_node, LinkSpec nic, int nics, const Host& host, const char* source) {
  Server server;
  server.device = std::move(device);
  server.in_node = in_node;
  server.host_link = host_link(host.pcie_generation);
  server.nic = nic;
  server.nics = nics;
  server.rail_optimized = nics == devices_per_server;
  server.host_memory = from_gib(host.memory_gib);
  server.host_memory_bandwidth = BytesPerSecond(host.memory_gb_per_s * 1e9);
  server.host_cores = host.cores;
  server.source = source;
  return server;
}

// A 100 Gb/s network card without RDMA carries at most 60 % of its line rate.
LinkSpec ethernet_100g() { return nic(12.5 * 0.6); }

std::vector<Server> data_center_servers() {
  std::vector<Server> all;
  all.push_back(server(device("b200", 178.35, 100, 148, 2250, 75, 7672, "pytorch/ao#4002, as is the bandwidth"),
                       nvlink(677), nic(48), 8, emerald_rapids,
                       "DGX B200; NVLink: 673-682 GB/s all-reduce on 8 (nccl#2140); NIC 400 Gb/s, 46-49 GB/s "
                       "(nccl-tests#267)"));
  Server h200 = server(
      device("h200", 0, 90, 132, 989, 67, 4800, "measured for this project"), nvlink(362), nic(48), 8, sapphire_rapids,
      "DGX H200; NVLink: all-gather 361, reduce-scatter 363 GB/s on 8 without NVLS (ml-engineering); NIC "
      "400 Gb/s, 46-49 GB/s (nccl-tests#267); host link 55 GB/s measured for this project");
  h200.device.memory = Bytes(150'109'880'320);
  h200.device.evidence = Evidence::measured;
  h200.calibration = "h200";
  all.push_back(std::move(h200));
  all.push_back(server(device("h100", 79.10, 90, 132, 989, 67, 3350, "torchtitan#1789 (58.28 GiB are 73.68 %)"),
                       nvlink(367), nic(48), 8, sapphire_rapids,
                       "DGX H100; NVLink: 365-370 GB/s (nccl#1455); NIC 400 Gb/s, 46-49 GB/s (nccl-tests#267)"));
  all.push_back(server(device("h800", 79.10, 90, 132, 989, 67, 3350, "as h100"), nvlink(8 * 20.6), nic(48), 8,
                       sapphire_rapids, "as h100, with 8 NVLink links instead of 18"));
  all.push_back(server(device("h20", 95.22, 90, 78, 148, 44, 4000, "Qwen2.5-Omni#240"), nvlink(367), nic(48), 8,
                       sapphire_rapids, "as h100"));
  all.push_back(
      server(device("a100-80", 79.15, 80, 108, 312, 19.5, 2039, "accelerate#1864"), nvlink(235), nic(24), 8, rome_2tb,
             "DGX A100; NVLink: about 235 GB/s on 8 (ml-engineering); NIC 200 Gb/s, 192 GB/s on 8 (nccl#1576)"));
  all.push_back(server(device("a100-40", 39.50, 80, 108, 312, 19.5, 1555, "CoSeR#10"), nvlink(235), nic(24), 8,
                       rome_1tb, "as a100-80"));
  all.push_back(server(device("a800-80", 79.33, 80, 108, 312, 19.5, 2039, "Mask2DiT#4"), nvlink(8 * 20), nic(24), 8,
                       rome_2tb, "as a100-80, with 8 NVLink links instead of 12"));
  all.push_back(server(device("v100-32", 31.74, 70, 80, 125, 15.7, 900, "ChatGLM-Finetuning#73"), nvlink(6 * 20),
                       nic(12), 4, broadwell, "DGX-1; NIC 100 Gb/s InfiniBand"));
  all.push_back(server(device("v100-16", 15.77, 70, 80, 125, 15.7, 900, "a public out-of-memory message"),
                       nvlink(6 * 20), nic(12), 4, broadwell, "DGX-1; NIC 100 Gb/s InfiniBand"));
  return all;
}

std::vector<Server> pcie_servers() {
  const char* source =
      "a two-socket server with one 100 Gb/s Ethernet card, at most 60 % of it without RDMA (nccl#450)";
  const auto entry = [&](DeviceSpec device, int generation, const Host& host) {
    return server(std::move(device), pcie(generation), ethernet_100g(), 1, host, source);
  };
  std::vector<Server> all;
  all.push_back(entry(device("l40s", 44.53, 89, 142, 362, 91.6, 864, "vllm#7721"), 4, rome_1tb));
  all.push_back(entry(device("a40", 44.53, 86, 84, 149.7, 37.4, 696, "as l40s, whose nvidia-smi figure is the same"), 4,
                      rome_1tb));
  all.push_back(entry(device("a6000", 47.53, 86, 84, 154.8, 38.7, 768, "0.46 GiB below the 49,140 MiB of nvidia-smi"),
                      4, rome_small));
  all.push_back(entry(device("l4", 22.03, 89, 58, 121, 30.3, 300, "0.46 GiB below the 23,034 MiB of modal-client#2797"),
                      4, rome_small));
  all.push_back(entry(device("4090", 23.52, 89, 128, 165.2, 82.6, 1008, "torchchat#1341"), 4, rome_small));
  all.push_back(entry(device("3090", 23.70, 86, 82, 71, 35.6, 936, "DirectVoxGO#57"), 4, rome_small));
  all.push_back(entry(device("a10", 21.99, 86, 72, 125, 31.2, 600, "CogVLM#236"), 4, rome_small));
  all.push_back(entry(device("t4", 14.75, 75, 40, 65, 8.1, 320, "Open-Sora#697"), 3, cascade_lake));
  return all;
}

/// A device's name as the table has it, of what people write: "A100-80GB", "RTX4090", "nvidia-h100-sxm5".
std::string plain_name(std::string_view written) {
  std::string name;
  for (const char c : written) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view prefix : {"nvidia-", "geforce-", "rtx-", "rtx"})
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  if (const std::size_t form = name.find("-sxm"); form != std::string::npos) {
    const std::size_t end = name.find('-', form + 1);
    name.erase(form, std::min(end, name.size()) - form);
  }
  const std::size_t digits = name.find_last_of("0123456789");
  const std::string_view unit = std::string_view(name).substr(digits == std::string::npos ? 0 : digits + 1);
  if (unit == "g" || unit == "gb") name.erase(digits + 1);
  return name;
}

}  // namespace

const std::vector<Server>& servers() {
  static const std::vector<Server> all = [] {
    std::vector<Server> table = data_center_servers();
    for (Server& server : pcie_servers()) table.push_back(std::move(server));
    return table;
  }();
  return all;
}

const Server* find_server(std::string_view device) {
  const std::string name = plain_name(device);
  const auto found = std::find_if(servers().begin(), servers().end(),
                                  [&](const Server& server) { return server.device.name == name; });
  return found == servers().end() ? nullptr : &*found;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Server& server : servers()) names.push_back(server.device.name);
  return names;
}

std::vector<std::string> devices_like(std::string_view name) {
  const std::string device = plain_name(name);
  std::vector<std::string> begun_so;
  std::optional<std::string> begins_with;
  for (const std::string& known : device_names()) {
    if (known.starts_with(device)) begun_so.push_back(known);
    if (device.starts_with(known) && (!begins_with || known.size() > begins_with->size())) begins_with = known;
  }
  if (!device.empty() && !begun_so.empty()) return begun_so;
  const auto one = begins_with ? begins_with : nearest(device, device_names());
  return one ? std::vector<std::string>{*one} : std::vector<std::string>{};
}

ClusterSpec make_cluster(const Server& server, int devices_per_node, int nodes) {
  ClusterSpec cluster;
  cluster.name = fmt::format("{}x{}", devices_per_node * nodes, server.device.name);
  cluster.device = server.device;
  cluster.devices_per_node = devices_per_node;
  cluster.nodes = nodes;
  cluster.in_node = server.in_node;
  cluster.host_link = server.host_link;
  cluster.nic = server.nic;
  cluster.rail_optimized = server.rail_optimized;
  cluster.calibration = server.calibration;
  cluster.source = server.source;
  const auto share = [devices_per_node](std::int64_t of_server) {
    return of_server * devices_per_node / devices_per_server;
  };
  cluster.nics_per_node = static_cast<int>(std::max<std::int64_t>(1, share(server.nics)));
  cluster.host_memory = Bytes(share(server.host_memory.count));
  cluster.host_memory_bandwidth =
      BytesPerSecond(server.host_memory_bandwidth.count * devices_per_node / devices_per_server);
  cluster.host_cores = static_cast<int>(std::max<std::int64_t>(1, share(server.host_cores)));
  return cluster;
}

ClusterSpec make_cluster(const Server& server, int gpus) {
  ClusterSpec cluster =
      make_cluster(server, std::min(gpus, devices_per_server), static_cast<int>(ceil_div(gpus, devices_per_server)));
  cluster.spare_devices = cluster.world() - gpus;
  cluster.name = fmt::format("{}x{}", gpus, server.device.name);
  return cluster;
}

Result<ClusterSpec> preset_cluster(std::string_view name) {
  const std::string all =
      fmt::format("NxDEVICE, N GPUs in nodes of 8, DEVICE one of {}", fmt::join(device_names(), ", "));
  const std::size_t cross = name.find('x');
  std::int64_t gpus = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + std::min(cross, name.size()), gpus);
  const bool has_form = cross != std::string_view::npos && cross > 0 && end == name.data() + cross;
  if (!has_form)
    return make_error("cluster.preset", fmt::format("there is neither a file nor a cluster preset {}", name), all);
  if (error != std::errc() || gpus < 1 || gpus > limits::world) {
    return make_error(
        "cluster.preset",
        fmt::format("{} GPUs are not between 1 and {}", name.substr(0, cross), format_count(limits::world)), all);
  }
  const std::string_view device = name.substr(cross + 1);
  if (const Server* server = find_server(device)) return make_cluster(*server, static_cast<int>(gpus));
  std::vector<std::string> meant = devices_like(device);
  for (std::string& one : meant) one = fmt::format("{}x{}", gpus, one);
  return make_error("cluster.preset", fmt::format("the device {} is not known", device),
                    meant.empty() ? all : fmt::format("did you mean {}? {}", fmt::join(meant, " or "), all));
}

}  // namespace plimsoll
