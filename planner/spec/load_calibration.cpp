// Which prices does a scenario get?  Those of a file or a preset, the published figures of the cluster's device in the place of
// what it leaves out, and these alone where none is named (planner/spec/read_calibration.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/base/format.hpp"
#include "planner/spec/presets.hpp"
#include "planner/spec/read_calibration.hpp"

namespace plimsoll {
namespace {

Result<Calibration> read_file(const std::string& path, std::string name) {
  auto document = parse_document(load_source(path));
  if (!document || has_errors(document.diagnostics())) return document.diagnostics();
  return read_calibration(*document, std::move(name));
}

/// Warns of names in a section of the file, an object at `pointer`, that price nothing.
class NameCheck {
 public:
  NameCheck(const Document& document, Diagnostics& diagnostics) : root_(document.root()), diagnostics_(diagnostics) {}

  /// @param open names that nobody knows are let pass unless they are nearly one that the file lacks: a slip of the pen
  void section(const std::string& pointer, const std::set<std::string>& known, bool open) {
    const Node* const node = at(pointer);
    if (!node || !node->is_object()) return;
    std::vector<std::string> lacking;
    for (const std::string& name : known)
      if (!node->find(name)) lacking.push_back(name);
    for (const Node::Member& member : node->members()) {
      if (known.contains(member.key)) continue;
      const auto meant = nearest(member.key, lacking);
      if (open && !meant) continue;
      std::string help = "the names are those in the listing of plimsoll explain";
      if (meant) help = fmt::format("did you mean {}?", *meant);
      if (member.key == "other") help = "kinds that are not named here take their entry of factor, or collective";
      diagnostics_.push_back({Severity::warning,
                              "calibration.unknown",
                              member.value->key_place(),
                              fmt::format("{}/{} prices nothing", pointer, member.key),
                              {},
                              std::move(help)});
    }
  }

 private:
  /// "/interference/factor"; null where there is none.
  const Node* at(std::string_view pointer) const {
    const Node* node = &root_;
    while (node && !pointer.empty()) {
      const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
      node = node->find(pointer.substr(1, end - 1));
      pointer.remove_prefix(end);
    }
    return node;
  }

  const Node& root_;
  Diagnostics& diagnostics_;
};

template <class Value>
std::set<std::string> keys_of(const std::map<std::string, Value>& map) {
  std::set<std::string> keys;
  for (const auto& [key, value] : map) keys.insert(key);
  return keys;
}

/// Files may price kernels that no step has (bench measures some); what they say of pairs and of the host is looked up by name.
void check_names(const Document& document, const Calibration& published, Diagnostics& diagnostics) {
  NameCheck check(document, diagnostics);
  check.section("/kernels", keys_of(published.kernels), true);
  check.section("/host/work_us", keys_of(published.host.work_s), false);
  // Between them these two name every kind of kernel (a test compares).
  std::set<std::string> kinds = keys_of(published.kernels);
  kinds.merge(keys_of(published.interference.factor));
  check.section("/interference/factor", kinds, false);
  kinds.erase("other");
  check.section("/interference/factor_exchange", kinds, false);
  check.section("/interference/collective_beside", kinds, false);
}

/// What a calibration does not hold is priced by the published figures, and said.
void fill_holes(Calibration& calibration, const Calibration& published, const std::string& name,
                Diagnostics& diagnostics) {
  std::vector<std::string> holes;
  if (calibration.gemm.tiles.empty()) {
    calibration.gemm = published.gemm;
    holes.emplace_back("gemm");
  }
  if (calibration.attention.forward.empty() || calibration.attention.backward.empty()) {
    calibration.attention = published.attention;
    holes.emplace_back("attention");
  }
  if (calibration.host.work_s.empty()) {
    calibration.host = published.host;
    holes.emplace_back("host");
  }
  const std::size_t priced = calibration.kernels.size();
  calibration.kernels.insert(published.kernels.begin(), published.kernels.end());
  if (const std::size_t missing = calibration.kernels.size() - priced; missing > 0)
    holes.push_back(fmt::format("price for {} kinds of kernels", missing));
  if (calibration.collectives.empty()) holes.emplace_back("collectives");
  if (holes.empty()) return;
  diagnostics.push_back({Severity::warning,
                         "calibration.hole",
                         {},
                         fmt::format("the calibration {} has no {}", name, fmt::join(holes, ", no ")),
                         {},
                         "there the published figures are used, which are assumed"});
}

}  // namespace

Result<Calibration> load_calibration(std::string_view file_or_preset, const ClusterSpec& cluster) {
  const bool of_cluster = file_or_preset.empty();
  const std::string asked(of_cluster ? cluster.calibration : file_or_preset);
  const auto preset = find_preset("calibrations", asked);
  if (of_cluster && !preset) return published_prices(cluster);
  auto document = parse_document(load_source(preset ? preset->string() : asked));
  if (!document || has_errors(document.diagnostics())) return document.diagnostics();
  auto result = read_calibration(*document, asked);
  if (!result) return result;
  if (!cluster.device.name.empty() && result->device != cluster.device.name) {
    const auto place = cluster.places.find("/calibration");
    result.diagnostics().push_back({Severity::warning,
                                    "calibration.device",
                                    of_cluster && place != cluster.places.end() ? place->second : Place{},
                                    fmt::format("the calibration {} is of device {}, the cluster has {}", asked,
                                                result->device, cluster.device.name),
                                    {},
                                    "its times are those of another device"});
  }
  Result<Calibration> published = published_prices(cluster);
  if (!published) return published;
  check_names(*document, *published, result.diagnostics());
  fill_holes(*result, *published, asked, result.diagnostics());
  return result;
}

Result<Calibration> published_prices(const ClusterSpec& cluster) {
  // The form of the rules and the host's costs come from the measured preset; rates are scaled to the device's figures.
  const auto preset = find_preset("calibrations", "h200");
  Result<Calibration> measured = read_file(preset ? preset->string() : "calibrations/h200.json", "h200");
  if (!measured) return measured;
  Calibration result = std::move(*measured);
  const double matrix = cluster.device.bf16_flops_per_s > 0 ? cluster.device.bf16_flops_per_s / 989e12 : 1;
  const double memory = cluster.device.memory_bandwidth.count > 0 ? cluster.device.memory_bandwidth.count / 4.8e12 : 1;
  const auto assume = [&](Provenance& p) {
    p = {};
    p.source = fmt::format("rules measured on H200, rates scaled to the published figures of {}", cluster.device.name);
  };
  result.name = cluster.device.name + " (published figures)";
  result.device = cluster.device.name;
  result.date = result.versions = "";
  result.source = cluster.device.source;
  GemmPrice& gemm = result.gemm;
  GroupedGemmPrice& grouped = result.grouped_gemm;
  for (double* r : {&gemm.flops_per_s, &gemm.fp32_flops_per_s, &grouped.flops_per_s, &grouped.large.flops_per_s,
                    &grouped.small.flops_per_s})
    *r *= matrix;
  for (double* r : {&gemm.traffic_bytes_per_s, &gemm.memory_bytes_per_s, &gemm.skinny_bytes_per_s,
                    &gemm.fp32_bytes_per_s, &grouped.large.memory_bytes_per_s, &grouped.small.memory_bytes_per_s})
    *r *= memory;
  for (auto* rates : {&result.attention.forward, &result.attention.backward}) {
    for (auto& r : *rates) r.flops_per_s *= matrix;
  }
  result.attention.backward_s_per_element /= memory;
  for (auto& [name, price] : result.kernels) {
    price.s_per_element /= memory;
    price.bytes_per_s *= memory;
    assume(price.provenance);
  }
  assume(gemm.provenance);
  assume(result.grouped_gemm.provenance);
  assume(result.attention.provenance);
  assume(result.interference.provenance);
  assume(result.copies);
  if (cluster.host_link.bandwidth.count > 0) result.copy_bytes_per_s = 0.85 * cluster.host_link.bandwidth.count;
  result.collectives.clear();  // from the cluster's links
  return result;
}

}  // namespace plimsoll
