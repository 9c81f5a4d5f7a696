// Which prices does a scenario get?  Those of a file or a preset, the published figures of the cluster's device in the place of
// what it leaves out, and these alone where none is named (planner/spec/read_calibration.hpp).
#include <fmt/format.h>

#include <map>
#include <string>
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

/// Names are open: a rule may come with a kernel that other files do not know.  One that is nearly that of a kernel which the
/// calibration lacks is a slip of the pen.
template <class Price>
void report_slips(const std::map<std::string, Price>& given, const std::map<std::string, Price>& known,
                  const std::string& where, Diagnostics& diagnostics) {
  std::vector<std::string> lacking;
  for (const auto& [key, price] : known)
    if (given.count(key) == 0) lacking.push_back(key);
  for (const auto& [key, price] : given) {
    if (known.count(key) != 0) continue;
    if (const auto meant = nearest(key, lacking))
      diagnostics.push_back({Severity::warning,
                             "calibration.unknown",
                             {},
                             fmt::format("{}/{} prices nothing", where, key),
                             {},
                             fmt::format("did you mean {}?", *meant)});
  }
}

/// What a calibration does not hold is priced by the published figures, and said.
void fill_holes(Calibration& calibration, const ClusterSpec& cluster, const std::string& name,
                Diagnostics& diagnostics) {
  const Calibration published = published_prices(cluster);
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
  report_slips(calibration.kernels, published.kernels, "/kernels", diagnostics);
  report_slips(calibration.host.work_s, published.host.work_s, "/host/work_us", diagnostics);
  const InterferencePrices& beside = calibration.interference;
  const auto& kernels_beside = published.interference.factor;
  report_slips(beside.factor, kernels_beside, "/interference/factor", diagnostics);
  report_slips(beside.exchange_factor, kernels_beside, "/interference/factor_exchange", diagnostics);
  report_slips(beside.collective_beside, kernels_beside, "/interference/collective_beside", diagnostics);
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
  const std::string asked(file_or_preset);
  if (!asked.empty()) {
    const auto preset = find_preset("calibrations", asked);
    auto result = read_file(preset ? preset->string() : asked, asked);
    if (result && result->device != cluster.device.name) {
      result.diagnostics().push_back({Severity::warning,
                                      "calibration.device",
                                      {},
                                      fmt::format("the calibration {} is of device {}, the cluster has {}", asked,
                                                  result->device, cluster.device.name),
                                      {},
                                      "its times are those of another device"});
    }
    if (result) fill_holes(*result, cluster, asked, result.diagnostics());
    return result;
  }
  if (!cluster.calibration.empty()) {
    if (const auto preset = find_preset("calibrations", cluster.calibration))
      return read_file(preset->string(), cluster.calibration);
  }
  return published_prices(cluster);
}

Calibration published_prices(const ClusterSpec& cluster) {
  Calibration result;
  // The form of the rules and the host's costs come from the measured preset; rates are scaled to the device's figures.
  if (const auto preset = find_preset("calibrations", "h200")) {
    if (auto measured = read_file(preset->string(), "h200")) result = std::move(*measured);
  }
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
  for (double* r : {&gemm.flops_per_s, &gemm.fp32_flops_per_s, &result.grouped_gemm.flops_per_s}) *r *= matrix;
  for (double* r : {&gemm.traffic_bytes_per_s, &gemm.memory_bytes_per_s, &gemm.skinny_bytes_per_s}) *r *= memory;
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
