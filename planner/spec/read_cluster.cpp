// The reader of cluster.json, key by key.
#include "planner/spec/read_cluster.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "planner/base/format.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/presets.hpp"

namespace plimsoll {
namespace {

constexpr std::int64_t most_devices_per_node = 1024;
constexpr std::int64_t most_nics_per_node = 1024;
constexpr double longest_latency_s = 10;

// "989 TFLOP/s": the prefixes are those of bytes per second.
std::optional<BytesPerSecond> parse_flops_per_second(std::string_view text) {
  constexpr std::string_view unit = "FLOP/s";
  if (!text.ends_with(unit)) return std::nullopt;
  return parse_bytes_per_second(std::string(text.substr(0, text.size() - unit.size())) + "B/s");
}

std::vector<std::string> evidence_names() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(Evidence::assumed); ++i) names.emplace_back(name_of(static_cast<Evidence>(i)));
  return names;
}

// Reads one file into a ClusterSpec: first what the usual server of the device has, then what the file says.
class ClusterReader {
 public:
  explicit ClusterReader(const Document& document) : root_(document.root(), diagnostics_, "cluster") {}

  Result<ClusterSpec> read(std::string name, std::optional<int> nodes) {
    read_shape(nodes);
    read_device();
    read_in_node_link();
    read_host();
    read_network();
    cluster_.name = root_.string("name").value_or(std::move(name));
    read_calibration_name();
    cluster_.source = root_.string("source").value_or(cluster_.source);
    if (const auto index = root_.choice("evidence", evidence_names()))
      cluster_.evidence = static_cast<Evidence>(*index);
    root_.report_unknown();
    cluster_.places = std::move(places_);
    if (has_errors(diagnostics_)) return diagnostics_;
    return {std::move(cluster_), std::move(diagnostics_)};
  }

 private:
  void read_shape(std::optional<int> nodes);
  const Server* known_server();
  void read_device();
  void read_in_node_link();
  void read_link(ObjectReader& reader, LinkSpec& link);
  void read_host();
  void read_network();
  void read_calibration_name();

  // A value with its unit; `example` shows how one is written.
  template <class Parse>
  auto quantity(ObjectReader& reader, std::string_view key, Parse parse, const char* example, double min, double max)
      -> decltype(parse(std::string_view())) {
    const Node* node = reader.find(key);
    if (node == nullptr || node->is_null()) return std::nullopt;
    places_[node->pointer()] = node->place();
    const auto value = node->is_string() ? parse(node->as_string()) : std::nullopt;
    if (!value) {
      const char* wrong = node->is_number() ? "without a unit" : "which is no number with a known unit";
      reader.report(Severity::error, key, "unit", fmt::format("{} is {}, {}", node->pointer(), node->source(), wrong),
                    fmt::format("write it as in \"{}\"", example));
      return std::nullopt;
    }
    const auto count = static_cast<double>(value->count);
    if (count > max || count < min) {
      const char* wrong = count > max ? "too much" : count > 0 ? "too little" : "nothing";
      reader.report(Severity::error, key, "range",
                    fmt::format("{} is {}, which is {}", node->pointer(), node->source(), wrong));
      return std::nullopt;
    }
    return value;
  }

  void bytes(ObjectReader& reader, std::string_view key, Bytes& into) {
    const auto value = quantity(reader, key, parse_bytes, "80 GiB", 1, static_cast<double>(limits::bytes));
    if (value) into = *value;
  }
  void rate(ObjectReader& reader, std::string_view key, BytesPerSecond& into) {
    if (const auto value =
            quantity(reader, key, parse_bytes_per_second, "400 GB/s", limits::lowest_rate, limits::highest_rate))
      into = *value;
  }
  void flops(ObjectReader& reader, std::string_view key, double& into) {
    const auto value =
        quantity(reader, key, parse_flops_per_second, "989 TFLOP/s", limits::lowest_rate, limits::highest_rate);
    if (value) into = value->count;
  }

  // Reports a key that nothing stands in for, since the device is not a known one.
  void require(ObjectReader& reader, std::string_view key) {
    if (known_ || reader.has(key)) return;
    reader.report(Severity::error, key, "missing",
                  fmt::format("{}/{} is missing, and the device is not a known one that could stand in for it",
                              reader.node().pointer(), key),
                  fmt::format("known devices: {}", fmt::join(device_names(), ", ")));
  }

  Diagnostics diagnostics_;
  ObjectReader root_;
  ClusterSpec cluster_;
  std::map<std::string, Place> places_;
  bool known_ = false;  // the device has a usual server
};

void ClusterReader::read_shape(std::optional<int> nodes) {
  for (const char* key : {"devices_per_node", "nodes", "device", "network"}) {
    if (const Node* node = root_.find(key)) places_[node->pointer()] = node->place();
  }
  const std::int64_t devices = root_.integer("devices_per_node", 1, most_devices_per_node).value_or(devices_per_server);
  std::int64_t count = root_.integer("nodes", 1, limits::world).value_or(1);
  if (nodes) count = *nodes;
  if (count < 1 || count * devices > limits::world) {
    root_.report(
        Severity::error, "nodes", "nodes",
        fmt::format("{} nodes of {} GPUs are not between 1 and {} GPUs", count, devices, format_count(limits::world)));
    count = 1;
  }
  const Server* server = known_server();
  known_ = server != nullptr;
  if (known_) cluster_ = make_cluster(*server, static_cast<int>(devices), static_cast<int>(count));
  cluster_.devices_per_node = static_cast<int>(devices);
  cluster_.nodes = static_cast<int>(count);
}

// The server of "device": "h100", or of "device": {"name": "h100", ...}.
const Server* ClusterReader::known_server() {
  const Node* device = root_.find("device");
  if (device != nullptr && device->is_object()) device = device->find("name");
  return device != nullptr && device->is_string() ? find_server(device->as_string()) : nullptr;
}

void ClusterReader::read_device() {
  const Node* node = root_.find("device");
  if (node == nullptr || node->is_null()) {
    if (root_.node().is_object()) {
      root_.report(Severity::error, "", "missing", "/device is missing",
                   fmt::format("name one of {}, or describe it", fmt::join(device_names(), ", ")));
    }
    known_ = true;  // what is missing only for that reason is not reported too
    return;
  }
  if (node->is_string()) {
    if (known_) return;
    const auto near = nearest(node->as_string(), device_names());
    root_.report(Severity::error, "device", "device", fmt::format("/device is {}, which is not known", node->source()),
                 fmt::format("{}known: {}; others are described by an object",
                             near ? "did you mean " + *near + "? " : "", fmt::join(device_names(), ", ")));
    known_ = true;
    return;
  }
  ObjectReader reader(*node, diagnostics_, "cluster");
  DeviceSpec& device = cluster_.device;
  for (const char* key : {"name", "memory", "memory_bandwidth", "bf16", "fp32"}) require(reader, key);
  device.name = reader.string("name").value_or(device.name);
  bytes(reader, "memory", device.memory);
  rate(reader, "memory_bandwidth", device.memory_bandwidth);
  flops(reader, "bf16", device.bf16_flops_per_s);
  flops(reader, "fp32", device.fp32_flops_per_s);
  device.compute_capability =
      static_cast<int>(reader.integer("compute_capability", 30, 999).value_or(device.compute_capability));
  device.multiprocessors =
      static_cast<int>(reader.integer("multiprocessors", 1, 4096).value_or(device.multiprocessors));
  device.source = reader.string("source").value_or(known_ ? device.source : "");
  if (const auto index = reader.choice("evidence", evidence_names())) device.evidence = static_cast<Evidence>(*index);
  reader.report_unknown();
}

void ClusterReader::read_link(ObjectReader& reader, LinkSpec& link) {
  rate(reader, "bandwidth", link.bandwidth);
  if (const auto latency = quantity(reader, "latency", parse_seconds, "25 us", 0, longest_latency_s)) {
    link.latency = *latency;
  }
}

// "nvlink" or "pcie": how the GPUs of a node reach each other.
void ClusterReader::read_in_node_link() {
  const Node* nvlink = root_.object("nvlink");
  const Node* pcie = root_.object("pcie");
  if (nvlink != nullptr && pcie != nullptr) {
    root_.report(Severity::error, "pcie", "links", "/nvlink and /pcie are both stated: GPUs of a node use one of them",
                 "the link to host memory is /host/link");
  }
  const Node* node = nvlink != nullptr ? nvlink : pcie;
  if (node == nullptr) {
    if (cluster_.devices_per_node > 1) require(root_, "nvlink");
    return;
  }
  const Tier tier = nvlink != nullptr ? Tier::nvlink : Tier::pcie;
  ObjectReader reader(*node, diagnostics_, "cluster");
  if (cluster_.in_node.tier != tier) cluster_.in_node = {tier, BytesPerSecond(0), Seconds(0)};
  if (cluster_.in_node.bandwidth.count == 0 && !reader.has("bandwidth")) {
    reader.report(Severity::error, "", "missing", fmt::format("{}/bandwidth is missing", node->pointer()),
                  "what one GPU sends in one direction");
  }
  read_link(reader, cluster_.in_node);
  reader.report_unknown();
}

void ClusterReader::read_host() {
  const Node* node = root_.object("host");
  if (node == nullptr) return require(root_, "host");
  ObjectReader reader(*node, diagnostics_, "cluster");
  for (const char* key : {"memory", "memory_bandwidth", "cores", "link"}) require(reader, key);
  bytes(reader, "memory", cluster_.host_memory);
  rate(reader, "memory_bandwidth", cluster_.host_memory_bandwidth);
  cluster_.host_cores = static_cast<int>(reader.integer("cores", 1, 1 << 16).value_or(cluster_.host_cores));
  cluster_.host_link.tier = Tier::host;
  if (const Node* link = reader.object("link")) {
    ObjectReader link_reader(*link, diagnostics_, "cluster");
    require(link_reader, "bandwidth");
    read_link(link_reader, cluster_.host_link);
    link_reader.report_unknown();
  }
  reader.report_unknown();
}

// Without one, and without a known device, nothing leaves a node; who needs it is told by planner/spec/topology.hpp.
void ClusterReader::read_network() {
  const Node* node = root_.object("network");
  if (node == nullptr) return;
  ObjectReader reader(*node, diagnostics_, "cluster");
  require(reader, "nics_per_node");
  cluster_.nic.tier = Tier::nic;
  cluster_.nics_per_node =
      static_cast<int>(reader.integer("nics_per_node", 0, most_nics_per_node).value_or(cluster_.nics_per_node));
  if (cluster_.nics_per_node > 0) require(reader, "bandwidth");
  read_link(reader, cluster_.nic);
  cluster_.rail_optimized = reader.boolean("rail_optimized").value_or(cluster_.rail_optimized);
  cluster_.nodes_per_leaf =
      static_cast<int>(reader.integer("nodes_per_leaf", 1, limits::world).value_or(cluster_.nodes_per_leaf));
  cluster_.spine_oversubscription =
      reader.number("oversubscription", 1, 1000).value_or(cluster_.spine_oversubscription);
  reader.report_unknown();
}

// Of a preset; files are --calibration's.
void ClusterReader::read_calibration_name() {
  const auto name = root_.string("calibration");
  if (!name) return;
  places_["/calibration"] = root_.place("calibration");
  cluster_.calibration = *name;
  if (find_preset("calibrations", *name)) return;
  const std::vector<std::string> known = preset_names("calibrations");
  const auto near = nearest(*name, known);
  root_.report(Severity::error, "calibration", "calibration",
               fmt::format("/calibration is {}, and there is no such preset", root_.find("calibration")->source()),
               fmt::format("{}presets: {}; a file is given by --calibration",
                           near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(known, ", ")));
}

Result<ClusterSpec> read_file(const std::filesystem::path& file, std::optional<int> nodes) {
  auto document = parse_document(load_source(file.string()));
  if (!document) return document.diagnostics();
  auto cluster = read_cluster(*document, file.stem().string(), nodes);
  Diagnostics all = document.diagnostics();
  all.insert(all.end(), cluster.diagnostics().begin(), cluster.diagnostics().end());
  if (!cluster || has_errors(all)) return all;
  return {*std::move(cluster), std::move(all)};
}

// --nodes over a preset: that many whole nodes.
Result<ClusterSpec> with_nodes(ClusterSpec cluster, int nodes) {
  const std::int64_t gpus = std::int64_t{cluster.devices_per_node} * nodes;
  if (nodes < 1 || gpus > limits::world) {
    Diagnostic diagnostic;
    diagnostic.code = "cluster.nodes";
    diagnostic.message = fmt::format("{} nodes of {} GPUs are not between 1 and {} GPUs", nodes,
                                     cluster.devices_per_node, format_count(limits::world));
    return diagnostic;
  }
  cluster.nodes = nodes;
  cluster.spare_devices = 0;
  cluster.name = fmt::format("{}x{}", gpus, cluster.device.name);
  return cluster;
}

}  // namespace

Result<ClusterSpec> read_cluster(const Document& document, std::string name, std::optional<int> nodes) {
  return ClusterReader(document).read(std::move(name), nodes);
}

Result<ClusterSpec> load_cluster(std::string_view file_or_preset, std::optional<int> nodes) {
  const std::filesystem::path path(file_or_preset);
  std::error_code error;
  const bool must_be_file = path.extension() == ".json" || file_or_preset.find('/') != std::string_view::npos;
  const bool is_folder = std::filesystem::is_directory(path, error);
  // A link that leads nowhere is there, and cannot be read.
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(path, error));
  if (must_be_file || (is_there && !is_folder)) return read_file(path, nodes);
  if (const auto preset = find_preset("clusters", file_or_preset)) return read_file(*preset, nodes);
  auto cluster = preset_cluster(file_or_preset);
  if (!cluster && is_folder) return read_file(path, nodes);  // which says so
  return cluster && nodes ? with_nodes(*std::move(cluster), *nodes) : cluster;
}

}  // namespace plimsoll
