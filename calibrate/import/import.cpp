// Which kind of log is it?  And Google Benchmark's JSON (calibrate/import/import.hpp).
#include "calibrate/import/import.hpp"

#include <fmt/format.h>

#include <cmath>

#include "calibrate/samples/text_lines.hpp"
#include "planner/spec/devices.hpp"
#include "planner/spec/document.hpp"

namespace plimsoll::calibrate {

const char* name_of(LogKind kind) {
  switch (kind) {
    case LogKind::nccl_tests: return "nccl-tests";
    case LogKind::kineto: return "Kineto trace";
    case LogKind::google_benchmark: return "Google Benchmark";
    case LogKind::unknown: return "unknown";
  }
  return "";
}

LogKind kind_of_log(const std::string& path) {
  PieceReader reader(path);
  const std::string head(reader.next());
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return LogKind::unknown;
  if (head[first] == '{' || head[first] == '[') {
    if (head.find("\"library_build_type\"") != std::string::npos || head.find("\"benchmarks\"") != std::string::npos)
      return LogKind::google_benchmark;
    if (head.find("\"traceEvents\"") != std::string::npos || head.find("\"ph\"") != std::string::npos)
      return LogKind::kineto;
    return LogKind::unknown;
  }
  for (const char* mark : {"algbw", "nccl-tests", "busbw", "minBytes"}) {
    if (head.find(mark) != std::string::npos) return LogKind::nccl_tests;
  }
  return LogKind::unknown;
}

namespace {

/// "gemm/dtype=bf16/m=8192/iterations:1/manual_time" -> the point; false where it is no key.
bool parse_key(const std::string& name, Point& point) {
  std::size_t at = 0;
  bool first = true;
  while (at <= name.size()) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    at = end + 1;
    if (first) {
      point.kind = part;
      first = false;
      continue;
    }
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) continue;  // iterations:1, manual_time
    const std::string value = part.substr(equals + 1);
    if (!value.empty() && value.find_first_not_of("0123456789") == std::string::npos && value.size() < 19) {
      point.sizes[part.substr(0, equals)] = std::stoll(value);
    } else {
      point.labels[part.substr(0, equals)] = value;
    }
  }
  return !point.kind.empty() && (!point.sizes.empty() || !point.labels.empty());
}

double seconds_per(const std::string& unit) {
  return unit == "ns" ? 1e-9 : unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1 : 0;
}

}  // namespace

Result<Imported> import_google_benchmark(const std::string& path, const ImportOptions& options) {
  std::string text;
  PieceReader reader(path);
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) text += piece;
  // NaN is no JSON, but what is written where a time could not be taken.
  const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{path, std::move(text)}), Syntax::json);
  if (!document) return document.diagnostics();
  const Node* const benchmarks = document->root().find("benchmarks");
  if (!benchmarks || !benchmarks->is_array()) {
    return Diagnostic{Severity::error,
                      "import.json",
                      document->root().place(),
                      "this is no JSON of Google Benchmark",
                      {},
                      "--benchmark_out=FILE --benchmark_out_format=json writes one"};
  }
  Diagnostics diagnostics;
  const auto warn = [&diagnostics](const Node& at, const char* code, std::string message) {
    diagnostics.push_back({Severity::warning, code, at.place(), std::move(message), {}, {}});
  };
  Imported result;
  result.kind = LogKind::google_benchmark;
  result.header.backend = "import";
  result.header.device = options.device;
  for (const Node* entry : benchmarks->items()) {
    const auto text_of = [&](const char* key) {
      const Node* const found = entry->find(key);
      return found && found->is_string() ? found->as_string() : std::string();
    };
    if (const Node* failed = entry->find("error_occurred"); failed && failed->source() == "true") {
      ++result.leftovers["points that failed or were skipped"];
      continue;
    }
    if (const std::string type = text_of("run_type"); !type.empty() && type != "iteration") {
      ++result.leftovers["aggregates"];
      continue;
    }
    Sample sample;
    const std::string name = text_of("name");
    if (!parse_key(name, sample.point)) {
      ++result.leftovers["benchmarks of other programs"];
      continue;
    }
    const double unit = seconds_per(text_of("time_unit"));
    if (unit <= 0) {
      const Node* const given = entry->find("time_unit");
      warn(given ? *given : *entry, "import.units",
           fmt::format("{} has no unit that is ns, us, ms or s; it is left out", name));
      continue;
    }
    const Node* const time = entry->find("real_time");
    const double seconds = time && time->is_number() ? unit * time->as_double() : 0;
    if (!is_possible_time(seconds)) {
      warn(time ? *time : *entry, "import.time",
           fmt::format("{} has no time from a nanosecond to a thousand seconds; it is left out", name));
      continue;
    }
    sample.time_s = sample.low_s = sample.high_s = seconds;
    for (const auto& [key, into] : {std::pair{"low_s", &sample.low_s}, std::pair{"high_s", &sample.high_s}}) {
      const Node* const found = entry->find(key);
      if (!found || !found->is_number()) continue;
      // An end of the interval that is the median itself is so in another unit, but for rounding.
      constexpr double rounding = 1e-12;
      if (std::abs(found->as_double() / seconds - 1) > rounding) *into = found->as_double();
    }
    sample.source = path;
    result.samples.push_back(std::move(sample));
  }
  return {std::move(result), std::move(diagnostics)};
}

}  // namespace plimsoll::calibrate
