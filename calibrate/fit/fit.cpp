// All classes together (calibrate/fit/fit.hpp).
#include "calibrate/fit/fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_set>

#include "calibrate/samples/rounds.hpp"
#include "planner/base/format.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/price_rules.hpp"

namespace plimsoll::calibrate {
namespace {

/// @param line of the file; 0: all of it
Diagnostic diagnostic(Severity severity, const char* code, const std::string& path, std::string message,
                      std::string help, int line = 0) {
  const int column = line > 0 ? 1 : 0;
  return {severity,           code, {std::make_shared<SourceFile>(SourceFile{path, {}}), line, column, 1, {}},
          std::move(message), {},   std::move(help)};
}

double d(std::int64_t value) { return static_cast<double>(value); }

/// One device in all files, or an error; several machines of it, a warning.
Diagnostics check_devices(const std::vector<SampleFile>& files) {
  Diagnostics diagnostics;
  std::set<std::string> machines;
  for (const SampleFile& file : files) {
    machines.insert(file.header.machine);
    if (file.header.device != files.front().header.device) {
      diagnostics.push_back(diagnostic(Severity::error, "fit.device", file.path,
                                       fmt::format("these are samples of a {}, those of {} of a {}", file.header.device,
                                                   files.front().path, files.front().header.device),
                                       "fit one device at a time"));
    }
  }
  if (machines.size() > 1 && diagnostics.empty()) {
    diagnostics.push_back(diagnostic(
        Severity::warning, "fit.machines", files.back().path,
        fmt::format("the files come from {} machines of this kind; they are fitted together", machines.size()),
        "residuals then hold the differences between them"));
  }
  return diagnostics;
}

constexpr std::string_view bench = "plimsoll-calibrate";  // how the source of what it measured begins

std::string source_of(const std::vector<SampleFile>& files) {
  std::set<std::string> backends;
  for (const SampleFile& file : files) backends.insert(file.header.backend);
  return fmt::format("{}, {}, {}", bench, fmt::join(backends, " and "), files.front().header.date);
}

/// True if the sizes are there by which the kind's rule knows its time.
bool has_sizes(const Point& point) {
  static const std::map<std::string, std::vector<const char*>> needed{{"gemm", {"m", "n", "k"}},
                                                                      {"gemm_grouped", {"m", "n", "k"}},
                                                                      {"attention", {"batch", "length", "head_dim"}},
                                                                      {"copy", {"bytes"}},
                                                                      {"collective", {"bytes", "ranks"}}};
  if (point.kind == "kernel") return point.size("elements") > 0 || point.size("bytes") > 0;
  const auto found = needed.find(point.kind);
  return found == needed.end() || std::all_of(found->second.begin(), found->second.end(),
                                              [&](const char* size) { return point.size(size) > 0; });
}

/// Samples by kind; what is no part of a fit is told, a file at a time.
std::map<std::string, Samples> by_class(const std::vector<SampleFile>& files, Diagnostics& diagnostics) {
  static const std::set<std::string> kinds{"gemm",       "gemm_grouped", "attention", "kernel",     "copy",
                                           "collective", "pair",         "host",      "fixed_bytes"};
  std::map<std::string, Samples> classes;
  std::unordered_set<std::string> seen;
  std::set<std::pair<std::string, double>> copies;  // that count, by point and time
  for (const SampleFile& file : files) {
    std::map<std::string, std::pair<int, int>> unknown, without_sizes;  // kind: samples, line of the first
    std::size_t used = 0;
    for (const Sample& sample : file.samples) {
      const std::string& kind = sample.point.kind;
      if (!kinds.contains(kind)) {
        ++unknown.try_emplace(kind, 0, sample.line).first->second.first;
        continue;
      }
      if (!has_sizes(sample.point)) {
        ++without_sizes.try_emplace(kind, 0, sample.line).first->second.first;
        continue;
      }
      // The first file's measurement of a point counts: bench before traces.  Copies are fitted to all of bench's, since they
      // differ more from run to run, by the processor's core and its other work, than by anything a rule knows.
      const bool first = seen.insert(key_of(sample.point)).second;
      const bool again = kind == "copy" && sample.source == "bench";
      if (!first && !again) continue;
      if (again && !copies.emplace(key_of(sample.point), sample.time_s).second)
        continue;  // one measurement, given twice
      classes[kind].push_back(&sample);
      ++used;
    }
    for (const auto& [kind, found] : unknown) {
      diagnostics.push_back(diagnostic(
          Severity::warning, "fit.kind", file.path,
          fmt::format("nothing is fitted to the kind {}; of its samples ({}) this is the first", kind, found.first),
          fmt::format("kinds are {}", fmt::join(kinds, ", ")), found.second));
    }
    for (const auto& [kind, found] : without_sizes) {
      diagnostics.push_back(diagnostic(
          Severity::warning, "fit.sizes", file.path,
          fmt::format(
              "{} of kind {} lack a size that says what was measured, or it is 0; they are left out, this is the first",
              counted(found.first, "sample"), kind),
          {}, found.second));
    }
    if (used == 0 && unknown.empty() && without_sizes.empty()) {
      diagnostics.push_back(diagnostic(
          Severity::warning, "fit.unused", file.path,
          file.samples.empty()
              ? "this file holds no samples"
              : fmt::format("all {} points of this file stand in an earlier one, which counts", file.samples.size()),
          {}));
    }
  }
  return classes;
}

/// The file that holds a sample.
const std::string& path_of(const Sample& sample, const std::vector<SampleFile>& files) {
  for (const SampleFile& file : files) {
    if (!file.samples.empty() && &sample >= &file.samples.front() && &sample <= &file.samples.back()) return file.path;
  }
  return files.front().path;
}

/// A base of another device: nothing in it is known of this one.
void assume(Calibration& c, const Calibration& base) {
  const auto mark = [&](Provenance& p) {
    p = {};
    p.source = fmt::format("that of {}", base.name);
  };
  for (Provenance* p : {&c.gemm.provenance, &c.grouped_gemm.provenance, &c.attention.provenance, &c.host.provenance,
                        &c.interference.provenance, &c.copies})
    mark(*p);
  for (auto& [kind, price] : c.kernels) mark(price.provenance);
  for (CollectivePrice& price : c.collectives) mark(price.provenance);
}

}  // namespace

std::vector<SampleFile> as_fitted(std::vector<SampleFile> files) {
  for (SampleFile& file : files) {
    file.samples = rounds_together(std::move(file.samples));
    double timed_s = 0, in_a_row_s = 0;
    for (const Sample& sample : file.samples) {
      if (sample.point.kind != "host") continue;
      if (sample.point.label("op") == "timed_empty") timed_s = sample.time_s;
      if (sample.point.label("op") == "kernel_gap") in_a_row_s = sample.time_s;
    }
    const double added_s = timed_s > 0 && in_a_row_s > 0 ? std::max(0.0, timed_s - in_a_row_s) : 0;
    static const std::set<std::string> kinds{"gemm", "gemm_grouped", "attention", "kernel"};
    for (Sample& sample : file.samples) {
      if (added_s <= 0 || sample.source != "bench" || !kinds.contains(sample.point.kind)) continue;
      for (double* time : {&sample.time_s, &sample.low_s, &sample.high_s})
        *time = std::max(0.2 * *time, *time - added_s);
    }
  }
  return files;
}

Result<FitResult> fit_calibration(const std::vector<SampleFile>& measured, const Calibration& base,
                                  const std::string& name) {
  Diagnostics diagnostics = check_devices(measured);
  if (has_errors(diagnostics)) return diagnostics;
  const std::vector<SampleFile> files = as_fitted(measured);
  std::map<std::string, Samples> classes = by_class(files, diagnostics);
  FitResult result;
  Calibration& c = result.calibration;
  const Header& header = files.front().header;
  c = base;
  if (base.device != header.device) assume(c, base);
  c.name = name;
  c.device = header.device;
  c.date = header.date;
  c.versions = header.versions;
  const std::string source = source_of(files);
  c.source = base.name.empty() ? source : fmt::format("{}; what it did not measure: {}", source, base.name);
  const int multiprocessors = std::max(1, header.multiprocessors);
  bool any = false;
  const auto leave_out = [&](const Sample& sample, const std::string& why) {
    diagnostics.push_back(diagnostic(Severity::warning, "fit.left_out", path_of(sample, files),
                                     fmt::format("{} is left out: {}", key_of(sample.point), why), {}, sample.line));
  };
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const SampleFile& file : files) paths.push_back(file.path);
  const auto take = [&](std::vector<Entry> entries) {
    for (Entry& entry : entries) {
      for (const auto& [sample, why] : entry.left_out) leave_out(*sample, why);
      any = any || entry.refused.empty();
      if (!entry.refused.empty()) {
        diagnostics.push_back(diagnostic(Severity::warning, "fit.refused", fmt::format("{}", fmt::join(paths, ", ")),
                                         fmt::format("{} is not fitted: {}", entry.name, entry.refused),
                                         "the base's figures stay; measure more points: bench --resume"));
      }
      result.entries.push_back(std::move(entry));
    }
  };
  take(fit_gemm(classes["gemm"], multiprocessors, c, source));
  take(fit_grouped(classes["gemm_grouped"], c, source));
  take(fit_attention(classes["attention"], c, source));
  std::int64_t cache_bytes = 0;
  for (const SampleFile& file : files) cache_bytes = std::max(cache_bytes, file.header.cache_bytes);
  take(fit_kernels(classes["kernel"], d(cache_bytes), c, source));
  take(fit_copies(classes["copy"], c, source));
  take(fit_collectives(classes["collective"], c, source));
  take(fit_host(classes["host"], c, source));
  take(fit_pairs(classes["pair"], c, source));
  for (const Sample* sample : classes["fixed_bytes"]) {
    const auto found = sample->figures.find("bytes");
    if (found == sample->figures.end() || found->second < 0 || found->second > d(limits::bytes)) {
      leave_out(*sample, "its figure bytes is none from 0 to 2^60");
      continue;
    }
    c.fixed_bytes[sample->point.label("what")] = found->second;
    any = true;
  }
  if (!any) {
    diagnostics.push_back(diagnostic(Severity::error, "fit.empty", files.front().path,
                                     "there is nothing here that can be fitted; no calibration is written",
                                     "bench measures what a calibration needs: plimsoll calibrate bench"));
    return diagnostics;
  }
  for (const auto& [kind, words] : {std::pair{"gemm", "products"},
                                    {"gemm_grouped", "grouped products"},
                                    {"attention", "attention"},
                                    {"collective", "collectives"},
                                    {"pair", "interference"},
                                    {"copy", "copies"}}) {
    if (classes[kind].empty()) result.kept.emplace_back(words);
  }
  return {std::move(result), std::move(diagnostics)};
}

bool is_from_bench(const Provenance& provenance) { return provenance.source.starts_with(bench); }

bool is_from_framework(const Provenance& provenance) {
  return provenance.evidence != Evidence::assumed && !is_from_bench(provenance);
}

bool speaks_of(const Calibration& calibration, const Point& point) {
  if (point.kind == "gemm_grouped") return is_from_bench(calibration.grouped_gemm.provenance);
  if (point.kind != "kernel") return true;
  const auto price = calibration.kernels.find(point.label("op"));
  return price != calibration.kernels.end() && is_from_bench(price->second.provenance);
}

namespace {

/// What a finished calibration says for a point; NaN where it has no rule.
double predicted(const Calibration& c, int multiprocessors, const Sample& sample) {
  const Point& p = sample.point;
  if (p.kind == "gemm")
    return gemm_seconds(c.gemm, multiprocessors, d(p.size("m")), d(p.size("n")), d(p.size("k")),
                        p.label("dtype") == "fp32" ? DType::fp32 : DType::bf16);
  if (p.kind == "gemm_grouped")
    return grouped_gemm_seconds(c.grouped_gemm, p.size("groups"), d(p.size("m")), d(p.size("n")), d(p.size("k")));
  if (p.kind == "attention") {
    const double seconds = attention_seconds(c.attention, p.label("direction") == "backward", d(p.size("batch")),
                                             d(p.size("length")), d(p.size("head_dim")), flops_of(p));
    return std::isfinite(seconds) ? seconds : std::nan("");
  }
  if (p.kind == "kernel") {
    const auto price = c.kernels.find(p.label("op"));
    if (price == c.kernels.end()) return std::nan("");
    return pointwise_seconds(price->second, {}, d(p.size("elements")), bytes_of(p), 1);
  }
  if (p.kind == "copy") {
    for (const CopyPrice& copy : c.copy_prices) {
      if (copy.to_device == (p.label("direction") != "device_to_host") &&
          copy.pinned == (p.label("memory") != "pageable") && copy.all_ranks == (p.label("ranks") == "all"))
        return copy_seconds(copy, d(p.size("bytes")));
    }
    return p.label("memory") == "pageable" ? std::nan("") : c.copy_fixed_s + d(p.size("bytes")) / c.copy_bytes_per_s;
  }
  if (p.kind == "collective") {
    for (const CollectivePrice& price : c.collectives) {
      if (p.label("op") == name_of(price.kind) && price.ranks == p.size("ranks"))
        return collective_seconds(price, d(p.size("bytes")));
    }
  }
  return std::nan("");
}

std::string class_of(const Point& p) {
  if (p.kind == "kernel" || p.kind == "collective") return p.kind + " " + p.label("op");
  if (p.kind == "attention") return fmt::format("attention {} d {}", p.label("direction"), p.size("head_dim"));
  if (p.kind == "copy") return fmt::format("copy {} {} {}", p.label("direction"), p.label("memory"), p.label("ranks"));
  return p.kind;
}

}  // namespace

std::vector<Entry> compare_with(const Calibration& calibration, int multiprocessors,
                                const std::vector<Sample>& samples) {
  std::map<std::string, Entry> entries;
  for (const Sample& sample : samples) {
    const double seconds = predicted(calibration, std::max(1, multiprocessors), sample);
    if (!std::isfinite(seconds)) continue;
    const std::string name = class_of(sample.point);
    Entry& entry = entries[name];
    entry.kind = sample.point.label("memory") == "pageable" ? "pageable copy" : sample.point.kind;
    entry.name = name;
    entry.residuals.push_back({key_of(sample.point), sample.time_s, seconds, seconds});
  }
  std::vector<Entry> result;
  result.reserve(entries.size());
  for (auto& [name, entry] : entries) result.push_back(std::move(entry));
  return result;
}

}  // namespace plimsoll::calibrate
