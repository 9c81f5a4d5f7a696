// What runs beside what (calibrate/fit/fit.hpp): the factor on a kernel while a collective is resident, by kind of kernel, and on
// collectives beside compute; means of the logarithms of the measured slowdowns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/fit/fit.hpp"

namespace plimsoll::calibrate {
namespace {

/// The kind of kernel that a member of a pair is; "" for collectives and copies.
std::string kernel_of(const std::string& member) {
  if (member.starts_with("gemm_")) return "gemm";
  if (member == "attention") return "attention_forward";
  if (member == "grouped_gemm" || member == "vectorized") return member;
  return "";
}
bool is_collective(const std::string& member) {
  return member.starts_with("all_") || member == "reduce_scatter" || member == "broadcast";
}
double figure(const Sample& sample, const char* name) {
  const auto found = sample.figures.find(name);
  return found == sample.figures.end() ? 0 : found->second;
}

struct Mean {
  double logs = 0;
  int count = 0;
  void add(double factor) {
    logs += std::log(std::max(1.0, factor));
    ++count;
  }
  double value() const { return count == 0 ? 1 : std::exp(logs / count); }
};

}  // namespace

std::vector<Entry> fit_pairs(const Samples& samples, Calibration& into, const std::string& source) {
  std::map<std::string, Mean> kernels;
  Mean collectives, copies;
  for (const Sample* sample : samples) {
    const std::string first = sample->point.label("first"), second = sample->point.label("second");
    const double slow_first = figure(*sample, "slowdown_first"), slow_second = figure(*sample, "slowdown_second");
    if (slow_first <= 0 || slow_second <= 0) continue;
    const std::string kernel = kernel_of(first);
    if (!kernel.empty() && is_collective(second)) {
      kernels[kernel].add(slow_first);
      collectives.add(slow_second);
    }
    if (!kernel.empty() && second == "copy") copies.add(slow_first);
  }
  if (kernels.empty() && copies.count == 0) return {};
  InterferencePrices& prices = into.interference;
  // A traced step tells how kernels slow down while a collective is resident; a pair measured here, how both fare together,
  // the wait of a collective for free SMs included.  The former is what the simulator means.
  const bool framework =
      prices.provenance.evidence != Evidence::assumed && !prices.provenance.source.starts_with("plimsoll-calibrate");
  const InterferencePrices kept = prices;
  for (const auto& [kernel, mean] : kernels) {
    prices.factor[kernel] = mean.value();
    if (kernel == "attention_forward") prices.factor["attention_backward"] = mean.value();
  }
  if (collectives.count > 0) prices.collective_factor = collectives.value();
  Entry entry{"pair", "pairs at once"};
  for (const Sample* sample : samples) {
    const std::string kernel = kernel_of(sample->point.label("first"));
    const std::string second = sample->point.label("second");
    const double alone = figure(*sample, "alone_first_s");
    if (kernel.empty() || alone <= 0) continue;
    const double factor = is_collective(second) ? kernels[kernel].value() : second == "copy" ? copies.value() : 1;
    Residual residual{key_of(sample->point), alone * figure(*sample, "slowdown_first"), alone * factor, std::nan("")};
    // Left out of its own mean.
    if (is_collective(second) && kernels[kernel].count > 1) {
      Mean rest = kernels[kernel];
      rest.logs -= std::log(std::max(1.0, figure(*sample, "slowdown_first")));
      --rest.count;
      residual.held_out_s = alone * rest.value();
    }
    entry.residuals.push_back(residual);
  }
  entry.rule = fmt::format("collectives beside compute x{:.2f}", prices.collective_factor);
  for (const auto& [kernel, mean] : kernels) entry.rule += fmt::format(", {} x{:.2f}", kernel, mean.value());
  prices.provenance = entry.provenance(source);
  if (framework) {
    prices = kept;
    entry.rule = "the base's stays; here " + entry.rule;
  }
  return {std::move(entry)};
}

}  // namespace plimsoll::calibrate
