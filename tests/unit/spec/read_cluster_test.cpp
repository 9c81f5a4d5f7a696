// The reader of cluster.json and the presets.
#include "planner/spec/read_cluster.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "planner/base/machine_error.hpp"
#include "planner/spec/devices.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Result<ClusterSpec> read(std::string text, std::optional<int> nodes = {}) {
  const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{"cluster.json", std::move(text)}));
  EXPECT_TRUE(document);
  return read_cluster(*document, "cluster", nodes);
}

std::vector<std::string> codes(const Result<ClusterSpec>& cluster) {
  std::vector<std::string> all;
  for (const Diagnostic& diagnostic : cluster.diagnostics()) all.push_back(diagnostic.code);
  return all;
}

TEST(ClusterPreset, IsGpusInNodesOfEight) {
  const auto cluster = load_cluster("64xh100");
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->name, "64xh100");
  EXPECT_EQ(cluster->devices_per_node, 8);
  EXPECT_EQ(cluster->nodes, 8);
  EXPECT_EQ(cluster->world(), 64);
  EXPECT_EQ(cluster->nics_per_node, 8);
}

TEST(ClusterPreset, OfFewerThanEightIsOneNodeWithItsShareOfTheServer) {
  const auto cluster = load_cluster("2xh200");
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->devices_per_node, 2);
  EXPECT_EQ(cluster->nodes, 1);
  EXPECT_EQ(cluster->nics_per_node, 2);
  EXPECT_EQ(cluster->host_memory, Bytes(std::int64_t{512} << 30));
  EXPECT_EQ(cluster->host_cores, 28);
}

TEST(ClusterPreset, MayLeaveTheLastNodePartlyEmpty) {
  const auto cluster = load_cluster("12xh100");
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->nodes, 2);
  EXPECT_EQ(cluster->world(), 12);
}

TEST(ClusterPreset, TakesAnotherNumberOfNodes) {
  EXPECT_EQ(load_cluster("8xh100", 8)->world(), 64);
  EXPECT_EQ(load_cluster("8xh100", 8)->name, "64xh100");
  EXPECT_EQ(load_cluster("12xh100", 1)->world(), 8);
  EXPECT_THAT(codes(load_cluster("8xh100", 0)), ElementsAre("cluster.nodes"));
  EXPECT_THAT(codes(load_cluster("8xh100", 1 << 20)), ElementsAre("cluster.nodes"));
}

TEST(ClusterPreset, HasTheMeasuredMemoryOfH200) {
  const auto cluster = load_cluster("1xh200");
  EXPECT_EQ(cluster->device.memory, Bytes(150'109'880'320));
  EXPECT_EQ(cluster->device.evidence, Evidence::measured);
}

TEST(ClusterPreset, ThatIsNotKnownNamesTheNearest) {
  EXPECT_THAT(load_cluster("8xh10").diagnostics()[0].help, HasSubstr("did you mean 8xh100?"));
  for (const char* wrong :
       {"8xfoo", "h100", "0xh100", "x", "", "8x", "99999999999999999999xh100", "2000000xh100", "-1xh100"}) {
    EXPECT_THAT(codes(load_cluster(wrong)), ElementsAre("cluster.preset")) << wrong;
  }
}

TEST(Devices, AreKnownAsPeopleWriteThem) {
  for (const auto& [written, name] : std::vector<std::pair<const char*, const char*>>{{"A100-80GB", "a100-80"},
                                                                                      {"a100-80g", "a100-80"},
                                                                                      {"NVIDIA-H100", "h100"},
                                                                                      {"h100-sxm5", "h100"},
                                                                                      {"A100-SXM4-40GB", "a100-40"},
                                                                                      {"RTX4090", "4090"}}) {
    const Server* server = find_server(written);
    ASSERT_NE(server, nullptr) << written;
    EXPECT_EQ(server->device.name, name);
  }
  EXPECT_THAT(load_cluster("8xA100").diagnostics()[0].help, HasSubstr("did you mean 8xa100-80 or 8xa100-40?"));
  EXPECT_THAT(load_cluster("8xh100-pcie").diagnostics()[0].help, HasSubstr("did you mean 8xh100?"));  // another card
}

TEST(Devices, AreCompleteAndNamedOnce) {
  std::set<std::string> names;
  for (const Server& server : servers()) {
    const DeviceSpec& device = server.device;
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_GT(device.memory.count, std::int64_t{8} << 30) << device.name;
    EXPECT_GE(device.compute_capability, 70) << device.name;
    EXPECT_GE(device.multiprocessors, 40) << device.name;
    EXPECT_GT(device.bf16_flops_per_s, device.fp32_flops_per_s) << device.name;
    EXPECT_GT(device.memory_bandwidth.count, server.in_node.bandwidth.count) << device.name;
    EXPECT_GE(server.in_node.bandwidth.count, server.nic.bandwidth.count) << device.name;
    EXPECT_FALSE(device.source.empty() || server.source.empty()) << device.name;
  }
  for (const char* name : {"h200", "h100", "a100-80", "a100-40", "b200", "h800", "l40s", "4090"}) {
    EXPECT_NE(find_server(name), nullptr) << name;
  }
}

TEST(ReadCluster, TakesWhatIsLeftOutFromTheDevicesServer) {
  const auto cluster = read(R"({"device": "h100", "nodes": 2})");
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->name, "cluster");
  EXPECT_EQ(cluster->world(), 16);
  EXPECT_EQ(cluster->in_node.bandwidth, find_server("h100")->in_node.bandwidth);
  EXPECT_EQ(cluster->host_memory, find_server("h100")->host_memory);
  EXPECT_EQ(cluster->places.at("/nodes").line, 1);
  EXPECT_EQ(cluster->places.at("/nodes").column, 29);
}

TEST(ReadCluster, ReadsEveryKey) {
  const auto cluster = read(R"({
    "name": "mine", "device": {"name": "x9", "memory": "100 GB", "memory_bandwidth": "3 TB/s", "bf16": "500 TFLOP/s",
      "fp32": "50 TFLOP/s", "compute_capability": 95, "multiprocessors": 99, "source": "a leaflet", "evidence": "measured"},
    "devices_per_node": 4, "nodes": 3,
    "pcie": {"bandwidth": "20 GB/s", "latency": "2 us"},
    "host": {"memory": "1 TiB", "memory_bandwidth": "300 GB/s", "cores": 48, "link": {"bandwidth": "25 GB/s", "latency": "0 us"}},
    "network": {"nics_per_node": 2, "bandwidth": "200 Gb/s", "latency": "5 us", "rail_optimized": false, "nodes_per_leaf": 2,
      "oversubscription": 2.5},
    "calibration": "h200", "source": "me", "evidence": "fitted"
  })");
  ASSERT_TRUE(cluster) << format(cluster.diagnostics()[0]);
  EXPECT_EQ(cluster->name, "mine");
  EXPECT_EQ(cluster->device.name, "x9");
  EXPECT_EQ(cluster->device.memory, Bytes(100'000'000'000));
  EXPECT_EQ(cluster->device.memory_bandwidth, BytesPerSecond(3e12));
  EXPECT_DOUBLE_EQ(cluster->device.bf16_flops_per_s, 500e12);
  EXPECT_DOUBLE_EQ(cluster->device.fp32_flops_per_s, 50e12);
  EXPECT_EQ(cluster->device.compute_capability, 95);
  EXPECT_EQ(cluster->device.multiprocessors, 99);
  EXPECT_EQ(cluster->device.evidence, Evidence::measured);
  EXPECT_EQ(cluster->world(), 12);
  EXPECT_EQ(cluster->in_node.tier, Tier::pcie);
  EXPECT_EQ(cluster->in_node.bandwidth, BytesPerSecond(20e9));
  EXPECT_EQ(cluster->in_node.latency, Seconds(2e-6));
  EXPECT_EQ(cluster->host_memory, Bytes(std::int64_t{1} << 40));
  EXPECT_EQ(cluster->host_cores, 48);
  EXPECT_EQ(cluster->host_link.tier, Tier::host);
  EXPECT_EQ(cluster->host_link.latency, Seconds(0));
  EXPECT_EQ(cluster->nics_per_node, 2);
  EXPECT_EQ(cluster->nic.bandwidth, BytesPerSecond(25e9));
  EXPECT_FALSE(cluster->rail_optimized);
  EXPECT_EQ(cluster->nodes_per_leaf, 2);
  EXPECT_EQ(cluster->spine_oversubscription, 2.5);
  EXPECT_EQ(cluster->calibration, "h200");
  EXPECT_EQ(cluster->source, "me");
  EXPECT_EQ(cluster->evidence, Evidence::fitted);
}

TEST(ReadCluster, RefusesNumbersWithoutAUnit) {
  const auto cluster =
      read(R"({"device": "h100", "nvlink": {"bandwidth": 360, "latency": "3"}, "host": {"memory": "2 TX"}})");
  ASSERT_FALSE(cluster);
  EXPECT_THAT(codes(cluster), ElementsAre("cluster.unit", "cluster.unit", "cluster.unit"));
  EXPECT_THAT(cluster.diagnostics()[0].message, HasSubstr("/nvlink/bandwidth is 360, without a unit"));
  EXPECT_EQ(cluster.diagnostics()[0].place.pointer, "/nvlink/bandwidth");
  EXPECT_THAT(cluster.diagnostics()[0].help, HasSubstr("400 GB/s"));
}

// At a byte a second a step would take longer than simulated time can be told.
TEST(ReadCluster, RefusesRatesThatNoLinkHas) {
  const auto cluster = read(R"({"device": "h100", "nvlink": {"bandwidth": "1 B/s"}})");
  ASSERT_FALSE(cluster);
  EXPECT_THAT(codes(cluster), ElementsAre("cluster.range"));
  EXPECT_THAT(cluster.diagnostics()[0].message, HasSubstr("/nvlink/bandwidth is \"1 B/s\", which is too little"));
}

TEST(ReadCluster, CollectsAllErrorsWithTheirPlaces) {
  const auto cluster =
      read("{\"device\": \"h1000\",\n \"nodes\": 0,\n \"netwrok\": {},\n \"nvlink\": {\"bandwidth\": \"0 GB/s\"}}");
  EXPECT_THAT(codes(cluster),
              UnorderedElementsAre("cluster.device", "cluster.range", "cluster.unknown", "cluster.range"));
  for (const Diagnostic& diagnostic : cluster.diagnostics()) {
    EXPECT_GT(diagnostic.place.line, 0) << diagnostic.message;
    if (diagnostic.code == "cluster.device") {
      EXPECT_THAT(diagnostic.help, HasSubstr("did you mean h100?"));
    }
  }
}

TEST(ReadCluster, DemandsWhatNoKnownDeviceStandsInFor) {
  const auto cluster = read(R"({"device": {"name": "x9", "memory": "100 GB"}, "devices_per_node": 4,
                               "network": {"nics_per_node": 0}})");  // no NIC has no bandwidth
  std::set<std::string> missing;
  for (const Diagnostic& diagnostic : cluster.diagnostics()) {
    EXPECT_EQ(diagnostic.code, "cluster.missing");
    missing.insert(diagnostic.message.substr(0, diagnostic.message.find(' ')));
  }
  EXPECT_THAT(missing,
              UnorderedElementsAre("/device/memory_bandwidth", "/device/bf16", "/device/fp32", "/nvlink", "/host"));
  EXPECT_THAT(codes(read("{}")), ElementsAre("cluster.missing"));
  EXPECT_FALSE(read("[]"));
}

TEST(ReadCluster, RefusesTwoWaysBetweenTheGpusOfANode) {
  EXPECT_THAT(codes(read(R"({"device": "h100", "nvlink": {}, "pcie": {"bandwidth": "20 GB/s"}})")),
              ElementsAre("cluster.links"));
  // An NVLink device in a machine without NVLink must say how fast its PCIe is.
  EXPECT_THAT(codes(read(R"({"device": "h100", "pcie": {}})")), ElementsAre("cluster.missing"));
}

TEST(ReadCluster, TakesTheNodesOfTheCommandLine) {
  EXPECT_EQ(read(R"({"device": "h100", "nodes": 2})", 5)->world(), 40);
  EXPECT_THAT(codes(read(R"({"device": "h100"})", -3)), ElementsAre("cluster.nodes"));
  EXPECT_THAT(codes(read(R"({"device": "h100", "devices_per_node": 1024, "nodes": 1048576})")),
              ElementsAre("cluster.nodes"));
}

TEST(LoadCluster, ReadsTheExamples) {
  const std::string folder = PLIMSOLL_SOURCE_DIR "/configs/clusters/";
  const auto dgx = load_cluster(folder + "dgx-h100.json");
  ASSERT_TRUE(dgx) << format(dgx.diagnostics()[0]);
  const ClusterSpec preset = *preset_cluster("8xh100");
  EXPECT_EQ(dgx->device.memory, preset.device.memory);
  EXPECT_EQ(dgx->in_node.bandwidth, preset.in_node.bandwidth);
  EXPECT_EQ(dgx->host_memory_bandwidth, preset.host_memory_bandwidth);
  const auto rails = load_cluster(folder + "64xh100-rails.json");
  ASSERT_TRUE(rails);
  EXPECT_EQ(rails->world(), 64);
  EXPECT_EQ(rails->spine_oversubscription, 2);
  const auto pcie = load_cluster(folder + "8x4090-pcie.json", 2);
  ASSERT_TRUE(pcie);
  EXPECT_EQ(pcie->world(), 16);
  EXPECT_EQ(pcie->in_node.tier, Tier::pcie);
}

TEST(LoadCluster, FailsForAFileThatIsNotThere) { EXPECT_THROW(load_cluster("nowhere/cluster.json"), MachineError); }

}  // namespace
}  // namespace plimsoll
