// What runs beside what (calibrate/fit/fit.hpp): means of the logarithms of measured slowdowns, by kind of kernel.
//
// Of a pair whose collective was resident first, both factors are what the simulator means: the kernel's, beside a ring and
// beside an all-to-all (which holds more multiprocessors), and the collective's beside that kernel.  Where both were launched in
// full queues, the collective also waits for free multiprocessors behind each kernel: those pairs are told, and their kernel's
// factor counts only where no resident one was measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/fit/fit.hpp"

namespace plimsoll::calibrate {
namespace {

/// Kernels that read and write memory once: what they cost a collective stands for all kernels that are not measured.
bool is_streaming(const std::string& kernel) { return kernel == "vectorized" || kernel == "silu" || kernel == "adamw"; }

/// The kind of kernel that a member of a pair is; "" for collectives and copies.
std::string kernel_of(const std::string& member) {
  if (member.starts_with("gemm_")) return "gemm";
  if (member.starts_with("grouped_gemm")) return "grouped_gemm";
  if (member.starts_with("attention_backward")) return "attention_backward";
  if (member.starts_with("attention")) return "attention_forward";
  return is_streaming(member) ? member : "";
}
double figure(const Sample& sample, const char* name) {
  const auto found = sample.figures.find(name);
  return found == sample.figures.end() ? 0 : found->second;
}

constexpr double most_slowdown = 100;  ///< that a calibration may hold

/// Nothing is faster beside something else: what was measured so is noise.
double log_of(double factor) { return std::log(std::max(1.0, factor)); }

struct Mean {
  double logs = 0;
  int count = 0;
  void add(double factor) {
    logs += log_of(factor);
    ++count;
  }
  double value() const { return count == 0 ? 1 : std::exp(logs / count); }
  /// Of the others; not a number if there are none.
  double without(double factor) const {
    if (count < 2) return std::nan("");
    return std::exp((logs - log_of(factor)) / (count - 1));
  }
};
using Means = std::map<std::string, Mean>;

/// One measured pair of a kernel and a collective or copy.
struct Measured {
  const Sample* sample;
  std::string kernel;
  bool resident, exchange, copy;
  double first, second;  ///< slowdowns

  /// What is averaged: pairs of one kind.
  std::string kind() const {
    return kernel + (copy ? " beside a copy" : exchange ? " beside an exchange" : "") + (resident ? ", resident" : "");
  }
};

/// Beyond this width of its interval, over the median, a pair is not known: bench marks such samples.
constexpr double widest_interval = 0.1;

/// Why a pair says nothing for the rule; empty: it does.
std::string unusable(const Measured& pair) {
  const std::string first = pair.sample->point.label("first"), second = pair.sample->point.label("second");
  if (pair.kernel.empty()) return fmt::format("no kernel is called {}", first);
  if (!pair.copy && !collective_of(second)) return fmt::format("no collective is called {}", second);
  for (const double factor : {pair.first, pair.second}) {
    if (!(factor > 0 && factor <= most_slowdown))
      return fmt::format("a slowdown of {:.3g} makes no sense; it may be up to {:.0f}", factor, most_slowdown);
  }
  if (!(figure(*pair.sample, "alone_first_s") > 0)) return "its first member took no time alone";
  const double width = (pair.sample->high_s - pair.sample->low_s) / pair.sample->time_s;
  if (width > widest_interval)
    return fmt::format("its interval is {:.0f} % wide, beyond {:.0f} %", 100 * width, 100 * widest_interval);
  return {};
}

/// Pairs of a kernel and a collective or copy; others (two collectives, a copy beside one) stand in the samples only.
std::vector<Measured> measured(const Samples& samples, Entry& entry) {
  std::vector<Measured> all;
  for (const Sample* sample : samples) {
    const std::string first = sample->point.label("first"), second = sample->point.label("second");
    if ((collective_of(first) || first == "copy") && collective_of(second)) continue;
    Measured one{sample,
                 kernel_of(first),
                 sample->point.label("resident") == "second",
                 second == "all_to_all",
                 second == "copy",
                 figure(*sample, "slowdown_first"),
                 figure(*sample, "slowdown_second")};
    if (std::string why = unusable(one); why.empty()) {
      all.push_back(std::move(one));
    } else {
      entry.left_out.emplace_back(sample, std::move(why));
    }
  }
  return all;
}

std::map<std::string, double> values(const Means& means) {
  std::map<std::string, double> values;
  for (const auto& [kernel, mean] : means) values[kernel] = mean.value();
  return values;
}

std::string listed(const Means& means) {
  std::string text;
  for (const auto& [kernel, mean] : means)
    text += fmt::format("{}{} x{:.2f}", text.empty() ? "" : ", ", kernel, mean.value());
  return text;
}

}  // namespace

std::vector<Entry> fit_pairs(const Samples& samples, Calibration& into, const std::string& source) {
  if (samples.empty()) return {};
  Entry entry{"pair", "pairs at once"};
  const std::vector<Measured> pairs = measured(samples, entry);
  if (pairs.empty()) {
    entry.refused = "no pair of a kernel and a collective or copy is usable";
    return {std::move(entry)};
  }
  Means of_kind, queued, rings, exchanges, beside;
  for (const Measured& pair : pairs) {
    of_kind[pair.kind()].add(pair.first);
    if (pair.copy) continue;
    if (!pair.resident) {
      queued[pair.kernel].add(pair.first);
      continue;
    }
    (pair.exchange ? exchanges : rings)[pair.kernel].add(pair.first);
    beside[pair.kernel].add(pair.second);
  }
  const bool any_resident = !beside.empty();
  for (const Measured& pair : pairs) {
    const double alone = figure(*pair.sample, "alone_first_s");
    const Mean& mean = of_kind[pair.kind()];
    entry.residuals.push_back(
        {key_of(pair.sample->point), alone * pair.first, alone * mean.value(), alone * mean.without(pair.first)});
  }
  InterferencePrices& prices = into.interference;
  entry.rule = any_resident ? fmt::format("beside a resident ring {}; exchange {}; a collective beside {}",
                                          listed(rings), listed(exchanges), listed(beside))
                            : listed(queued);
  // A traced step's factors are of resident collectives: full queues tell less.
  const bool framework = is_from_framework(prices.provenance);
  if (!any_resident && framework) {
    entry.rule = "the base's stays; here " + entry.rule;
    return {std::move(entry)};
  }
  if (!framework) {
    for (const auto& [kernel, mean] : queued) prices.factor[kernel] = mean.value();
  }
  for (const auto& [kernel, mean] : rings) prices.factor[kernel] = mean.value();
  prices.exchange_factor = values(exchanges);
  prices.collective_beside = values(beside);
  // Products, attention and grouped products are measured by name: what is left streams memory.
  Mean streaming;
  for (const auto& [kernel, mean] : beside)
    if (is_streaming(kernel)) streaming.add(mean.value());
  if (streaming.count > 0) prices.collective_factor = streaming.value();
  prices.provenance = entry.provenance(source);
  return {std::move(entry)};
}

}  // namespace plimsoll::calibrate
